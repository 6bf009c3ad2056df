//! Cleaning up after a test process, however it ends.
//!
//! The kernel can kill a child when its parent dies, but that is tied to the *thread* that made
//! the child, does not reach grandchildren, and leaves the folders behind. A small shell script
//! that waits for the end of the test process does all of it.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;

use nix::unistd::Pid;
use tempfile::TempDir;

struct Janitor {
    root: PathBuf,
    /// Holds the pipe whose closing tells the script that this process is gone.
    _script: Child,
}

fn janitor() -> &'static Janitor {
    static JANITOR: OnceLock<Janitor> = OnceLock::new();
    JANITOR.get_or_init(|| {
        let root = tempfile::Builder::new()
            .prefix("hapax-test-")
            .permissions(traversable())
            .tempdir()
            .expect("cannot make a temporary folder")
            .keep();
        fs::create_dir(root.join("pids")).expect("cannot make a temporary folder");
        let script = Command::new("/bin/sh")
            .args(["-c", include_str!("janitor.sh"), "janitor"])
            .arg(&root)
            .current_dir("/")
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            // A group of its own: Ctrl-C must end the tests, not the janitor.
            .process_group(0)
            .spawn()
            .expect("cannot start /bin/sh");
        Janitor { root, _script: script }
    })
}

/// PostgreSQL runs as another user when the tests run as root, and has to get through.
fn traversable() -> fs::Permissions {
    fs::Permissions::from_mode(0o755)
}

/// A new folder that goes away when dropped, and at the latest when the process ends.
pub(crate) fn folder(prefix: &str) -> TempDir {
    tempfile::Builder::new()
        .prefix(prefix)
        .permissions(traversable())
        .tempdir_in(&janitor().root)
        .expect("cannot make a temporary folder")
}

/// From now on the process ends with this one.
pub(crate) fn watch(pid: Pid) {
    fs::write(record(pid), "").expect("cannot write a process record");
}

/// To be called before the process is reaped: after that its number may be somebody else's.
pub(crate) fn forget(pid: Pid) {
    let _ = fs::remove_file(record(pid));
}

fn record(pid: Pid) -> PathBuf {
    Path::new(&janitor().root).join("pids").join(pid.to_string())
}
