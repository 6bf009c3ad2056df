//! Ends servers and removes folders after a test process, however it ends.
//!
//! The kernel can kill a child when its parent dies, but that depends on the *thread* that started the child, does not
//! reach grandchildren, and leaves the folders. Therefore a shell script waits for the end of the test process.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;

use nix::unistd::Pid;
use tempfile::TempDir;

struct CleanupScript {
    root: PathBuf,
    /// Holds the pipe that closes with this process, on which the script waits.
    _process: Child,
}

fn cleanup_script() -> &'static CleanupScript {
    static SCRIPT: OnceLock<CleanupScript> = OnceLock::new();
    SCRIPT.get_or_init(|| {
        let root = tempfile::Builder::new()
            .prefix("hapax-test-")
            .permissions(traversable())
            .tempdir()
            .expect("cannot make a temporary folder")
            .keep();
        fs::create_dir(root.join("pids")).expect("cannot make a temporary folder");
        let process = Command::new("/bin/sh")
            .args(["-c", include_str!("cleanup.sh"), "cleanup"])
            .arg(&root)
            .current_dir("/")
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            // A group of its own, so that Ctrl-C does not end the script.
            .process_group(0)
            .spawn()
            .expect("cannot start /bin/sh");
        CleanupScript { root, _process: process }
    })
}

/// Folders that PostgreSQL can enter, which runs as another user when the tests run as root.
fn traversable() -> fs::Permissions {
    fs::Permissions::from_mode(0o755)
}

/// Makes a folder that is removed when dropped, or at the latest after the process has ended.
pub(crate) fn temp_folder(prefix: &str) -> TempDir {
    tempfile::Builder::new()
        .prefix(prefix)
        .permissions(traversable())
        .tempdir_in(&cleanup_script().root)
        .expect("cannot make a temporary folder")
}

/// Has the process killed when this one ends.
pub(crate) fn register(pid: Pid) {
    fs::write(pid_file(pid), "").expect("cannot write a process number");
}

/// Undoes [`register`]. Call it before the process is reaped: after that another process may have its number.
pub(crate) fn unregister(pid: Pid) {
    let _ = fs::remove_file(pid_file(pid));
}

fn pid_file(pid: Pid) -> PathBuf {
    Path::new(&cleanup_script().root).join("pids").join(pid.to_string())
}
