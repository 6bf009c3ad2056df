//! CPU time, from what the kernel tells about processes.

use std::collections::HashMap;
use std::fs;
use std::time::Duration;

/// Processes whose CPU time is counted, each with all its descendants.
#[derive(Clone, Debug, Default)]
pub struct Processes(Vec<u32>);

/// `/proc/PID/stat`, as far as it matters here.
struct Stat {
    parent: u32,
    /// Ticks of its own.
    own: u64,
    /// Ticks of children that have ended.
    ended: u64,
}

impl Processes {
    /// These, by their process numbers.
    pub fn new(pids: impl IntoIterator<Item = u32>) -> Self {
        Self(pids.into_iter().collect())
    }

    /// This one.
    pub fn this() -> Self {
        Self(vec![std::process::id()])
    }

    /// Whether there is none to count.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// User and system time so far. Zero where the kernel does not tell, as outside Linux.
    pub fn cpu_time(&self) -> Duration {
        let all = if self.is_empty() { HashMap::new() } else { stats() };
        let ticks: u64 = self.0.iter().map(|pid| family_ticks(&all, *pid)).sum();
        Duration::from_secs(ticks) / u32::try_from(ticks_per_second()).unwrap_or(100)
    }
}

fn ticks_per_second() -> u64 {
    rustix::param::clock_ticks_per_second().max(1)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cpu_time_of_a_busy_process_grows() {
        let this = Processes::this();
        let before = this.cpu_time();
        let mut number = 1_u64;
        // Ticks are 10 ms: as many rounds as it takes to see some, however fast the machine.
        while this.cpu_time() < before + Duration::from_millis(20) {
            for _ in 0..1_000_000 {
                number = std::hint::black_box(number.wrapping_mul(3));
            }
        }
    }

    #[test]
    fn no_processes_take_no_time() {
        assert_eq!(Processes::default().cpu_time(), Duration::ZERO);
    }
}
