//! What the kernel tells about processes.

use std::fs;

use nix::unistd::Pid;

struct Stat {
    state: char,
    parent: i32,
}

fn stat(pid: i32) -> Option<Stat> {
    let line = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name before it may contain anything, brackets and blanks included.
    let (_, after_name) = line.rsplit_once(')')?;
    let mut fields = after_name.split_ascii_whitespace();
    Some(Stat { state: fields.next()?.chars().next()?, parent: fields.next()?.parse().ok()? })
}

pub(crate) fn is_stopped(pid: Pid) -> bool {
    stat(pid.as_raw()).is_some_and(|stat| matches!(stat.state, 'T' | 't'))
}

/// Gone, or dead and only waiting to be reaped.
pub(crate) fn is_dead(pid: Pid) -> bool {
    stat(pid.as_raw()).is_none_or(|stat| matches!(stat.state, 'Z' | 'X'))
}

pub(crate) fn children_of(parent: Pid) -> Vec<Pid> {
    let Ok(entries) = fs::read_dir("/proc") else {
        return Vec::new();
    };
    entries
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<i32>().ok())
        .filter(|pid| stat(*pid).is_some_and(|stat| stat.parent == parent.as_raw()))
        .map(Pid::from_raw)
        .collect()
}
