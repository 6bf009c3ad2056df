//! How much memory processes have, from what the kernel tells.

use std::fs;

use crate::Processes;

impl Processes {
    /// Bytes in memory, each process with all its descendants; pages that they share count for each.
    /// What the kernel holds for them, such as the buffers of sockets, is not in it. Zero where the
    /// kernel does not tell.
    pub fn resident_bytes(&self) -> u64 {
        self.family().into_iter().filter_map(resident).sum()
    }
}

/// Exact, unlike the counters of `/proc/PID/stat`, which each processor keeps for itself for a while.
fn resident(pid: u32) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("Rss:"))?;
    let kilobytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kilobytes * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_filled_is_in_memory() {
        const SIZE: usize = 32 << 20;
        let own = Processes::new([std::process::id()]);
        let before = own.resident_bytes();
        let filled = std::hint::black_box(vec![1_u8; SIZE]);
        assert!(own.resident_bytes() >= before + SIZE as u64 / 2);
        drop(filled);
    }
}
