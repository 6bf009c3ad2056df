//! Finds the programs that the tests start.

use std::env;
use std::io;
use std::path::{Path, PathBuf};

/// Looks for a program on the `PATH`, and then in Debian's other program folders.
///
/// # Errors
///
/// When the program is not found; the message says how to install it.
pub fn find_binary(name: &str) -> io::Result<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    // An unprivileged user's PATH often lacks the sbin folders.
    let usual = ["/usr/local/bin", "/usr/bin", "/usr/sbin", "/sbin"].map(PathBuf::from);
    env::split_paths(&path)
        .chain(usual)
        .map(|folder| folder.join(name))
        .find(|candidate| candidate.is_file())
        .ok_or_else(|| {
            let advice = "run ./test.sh, which installs what the tests need";
            let message = format!("`{name}` is not installed; {advice}");
            io::Error::new(io::ErrorKind::NotFound, message)
        })
}

pub(crate) fn require(name: &str) -> PathBuf {
    find_binary(name).unwrap_or_else(|missing| panic!("{missing}"))
}

/// Looks for a PostgreSQL program: Debian keeps those of each version in a folder that is not on the `PATH`, and its
/// `psql` on the `PATH` is a slow wrapper script.
pub(crate) fn require_postgres(name: &str) -> PathBuf {
    newest_postgres_folder(Path::new("/usr/lib/postgresql"))
        .map(|folder| folder.join(name))
        .filter(|candidate| candidate.is_file())
        .unwrap_or_else(|| require(name))
}

fn newest_postgres_folder(versions: &Path) -> Option<PathBuf> {
    std::fs::read_dir(versions)
        .ok()?
        .filter_map(|entry| {
            let path = entry.ok()?.path();
            let version: u32 = path.file_name()?.to_str()?.parse().ok()?;
            let programs = path.join("bin");
            // The client package makes the folder as well.
            programs.join("initdb").is_file().then_some((version, programs))
        })
        .max_by_key(|(version, _)| *version)
        .map(|(_, programs)| programs)
}
