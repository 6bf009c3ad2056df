//! What the kernel says about a process.

use std::fs;

/// The resident memory of a process in bytes; `None` if it does not run.
pub(crate) fn resident_memory(pid: i32) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    Some(line.trim().trim_end_matches("kB").trim().parse::<u64>().ok()? * 1024)
}

/// How many files and sockets it has open; `None` if it does not run.
pub(crate) fn open_files(pid: i32) -> Option<u64> {
    Some(fs::read_dir(format!("/proc/{pid}/fd")).ok()?.count() as u64)
}
