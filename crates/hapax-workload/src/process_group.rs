//! CPU time and memory of processes, as the kernel reports them.

use std::collections::HashMap;
use std::fs;
use std::time::Duration;

/// Processes whose CPU time and memory are counted, each with all its descendants.
#[derive(Clone, Debug, Default)]
pub struct ProcessGroup(Vec<u32>);

/// The fields of `/proc/PID/stat` that are used here.
struct Stat {
    parent: u32,
    /// CPU ticks of the process itself.
    own: u64,
    /// CPU ticks of children that have ended.
    ended: u64,
}

impl ProcessGroup {
    /// The processes with these ids.
    pub fn new(pids: impl IntoIterator<Item = u32>) -> Self {
        Self(pids.into_iter().collect())
    }

    /// Whether the group has no process.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// User and system time so far; zero outside Linux.
    pub fn cpu_time(&self) -> Duration {
        let all = if self.is_empty() { HashMap::new() } else { stats() };
        time(self.0.iter().map(|pid| family_ticks(&all, *pid)).sum())
    }

    /// The processes and all their descendants.
    pub(crate) fn family(&self) -> Vec<u32> {
        let all = stats();
        let mut family = self.0.clone();
        let mut next = 0;
        while let Some(parent) = family.get(next).copied() {
            family
                .extend(all.iter().filter(|(_, child)| child.parent == parent).map(|(pid, _)| pid));
            next += 1;
        }
        family
    }
}

/// User and system time of this process so far, without its children: the servers that a benchmark
/// started are among them, and are counted on their own.
pub fn own_cpu_time() -> Duration {
    time(stat(std::process::id()).map_or(0, |stat| stat.own))
}

fn time(ticks: u64) -> Duration {
    let per_second = rustix::param::clock_ticks_per_second().max(1);
    Duration::from_secs(ticks) / u32::try_from(per_second).unwrap_or(100)
}

fn family_ticks(all: &HashMap<u32, Stat>, pid: u32) -> u64 {
    let Some(stat) = all.get(&pid) else { return 0 };
    let children = all.iter().filter(|(_, child)| child.parent == pid);
    let living: u64 = children.map(|(child, _)| family_ticks(all, *child)).sum();
    stat.own + stat.ended + living
}

fn stats() -> HashMap<u32, Stat> {
    let Ok(entries) = fs::read_dir("/proc") else { return HashMap::new() };
    entries
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .filter_map(|pid| Some((pid, stat(pid)?)))
        .collect()
}

fn stat(pid: u32) -> Option<Stat> {
    let line = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name in brackets may contain anything, brackets and blanks included.
    let (_, after_name) = line.rsplit_once(')')?;
    let fields: Vec<&str> = after_name.split_ascii_whitespace().collect();
    let number = |at: usize| fields.get(at)?.parse::<u64>().ok();
    Some(Stat {
        parent: u32::try_from(number(1)?).ok()?,
        own: number(11)? + number(12)?,
        ended: number(13)? + number(14)?,
    })
}

impl ProcessGroup {
    /// Resident bytes of the processes and their descendants; shared pages count for each. Memory of the
    /// kernel, such as socket buffers, is not included. Zero outside Linux.
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

    /// Ticks are 10 ms: as many rounds as it takes to see some, however fast the machine.
    const SOME: Duration = Duration::from_millis(50);

    #[test]
    fn own_cpu_time_grows_while_busy() {
        let before = own_cpu_time();
        let mut number = 1_u64;
        while own_cpu_time() < before + SOME {
            for _ in 0..1_000_000 {
                number = std::hint::black_box(number.wrapping_mul(3));
            }
        }
    }

    #[test]
    fn process_group_counts_descendants() {
        let mut child = std::process::Command::new("sh")
            .args(["-c", "sh -c 'while :; do :; done' & echo $!; wait"])
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let family = ProcessGroup::new([child.id()]);
        // The grandchild alone is busy: this process sleeps meanwhile.
        while family.cpu_time() < SOME * 10 {
            std::thread::sleep(Duration::from_millis(20));
        }
        let stats = stats();
        let (own, all) = (stats[&child.id()].own, family_ticks(&stats, child.id()));
        let mut line = String::new();
        let mut said = std::io::BufReader::new(child.stdout.take().unwrap());
        std::io::BufRead::read_line(&mut said, &mut line).unwrap();
        let _ = std::process::Command::new("kill").args(["-KILL", line.trim()]).status();
        let _ = child.wait();
        assert!(time(own) < SOME && time(all) >= SOME * 10, "{own} of {all} ticks");
    }

    #[test]
    fn empty_process_group_takes_no_time() {
        assert_eq!(ProcessGroup::default().cpu_time(), Duration::ZERO);
    }

    #[test]
    fn resident_bytes_grow_with_filled_memory() {
        const SIZE: usize = 32 << 20;
        let own = ProcessGroup::new([std::process::id()]);
        let before = own.resident_bytes();
        let filled = std::hint::black_box(vec![1_u8; SIZE]);
        assert!(own.resident_bytes() >= before + SIZE as u64 / 2);
        drop(filled);
    }
}
