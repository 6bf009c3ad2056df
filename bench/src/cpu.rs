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

    /// Whether there is none to count.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// User and system time so far. Zero where the kernel does not tell, as outside Linux.
    pub fn cpu_time(&self) -> Duration {
        let all = if self.is_empty() { HashMap::new() } else { stats() };
        time(self.0.iter().map(|pid| family_ticks(&all, *pid)).sum())
    }

    /// These and all their descendants.
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Ticks are 10 ms: as many rounds as it takes to see some, however fast the machine.
    const SOME: Duration = Duration::from_millis(50);

    #[test]
    fn the_cpu_time_of_a_busy_process_grows() {
        let before = own_cpu_time();
        let mut number = 1_u64;
        while own_cpu_time() < before + SOME {
            for _ in 0..1_000_000 {
                number = std::hint::black_box(number.wrapping_mul(3));
            }
        }
    }

    #[test]
    fn a_childs_time_is_its_familys_and_not_ones_own() {
        let mut child = std::process::Command::new("sh")
            .args(["-c", "sh -c 'while :; do :; done' & echo $!; wait"])
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let family = Processes::new([child.id()]);
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
    fn no_processes_take_no_time() {
        assert_eq!(Processes::default().cpu_time(), Duration::ZERO);
    }
}
