//! What the numbers were measured on.

use std::fs;

/// Cores, processor, kernel: one line.
pub(crate) fn facts() -> String {
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let kernel = read("/proc/sys/kernel/osrelease").unwrap_or_else(|| "unknown kernel".into());
    let processor = read("/proc/cpuinfo")
        .and_then(|text| {
            let line = text.lines().find(|line| line.starts_with("model name"))?.to_owned();
            Some(line.split_once(':')?.1.trim().to_owned())
        })
        .unwrap_or_else(|| "unknown processor".into());
    let build =
        if cfg!(debug_assertions) { ", DEBUG BUILD: these numbers mean nothing" } else { "" };
    format!("{cores} cores ({processor}), {} {kernel}{build}", std::env::consts::OS)
}

fn read(path: &str) -> Option<String> {
    Some(fs::read_to_string(path).ok()?.trim().to_owned())
}
