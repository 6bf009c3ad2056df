//! A process that is killed at any moment.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::ExitStatusExt;
use std::process::Stdio;

use super::{Place, start_process, this_binary};

const POINTS: [&str; 3] = ["before-commit", "after-commit-before-answer", "mid-batch"];

/// Runs the ignored test `name` until it said some lines, or until a failpoint ends it; every round
/// at another moment. What it said.
pub(crate) fn kill_one(name: &str, place: &Place, round: usize) -> Vec<String> {
    // An odd step through all lengths: early, late and in between.
    let when = 1 + round * 37 % 101;
    let failpoint = (round % 2 == 1).then(|| format!("{}:{when}", POINTS[round / 2 % 3]));
    run_until(name, place, when, failpoint)
}

/// Runs the ignored test `name` until it said this many lines. What it said.
pub(crate) fn kill_after(name: &str, place: &Place, lines: usize) -> Vec<String> {
    run_until(name, place, lines, None)
}

fn run_until(name: &str, place: &Place, when: usize, failpoint: Option<String>) -> Vec<String> {
    let mut command = this_binary();
    command.env("HAPAX_FAILPOINT", failpoint.clone().unwrap_or_default()).stderr(Stdio::null());
    let mut victim = start_process(command, name, place);
    let mut said = Vec::new();
    let out = BufReader::new(victim.stdout.take().unwrap());
    for (n, line) in out.split(b'\n').enumerate() {
        said.push(String::from_utf8_lossy(&line.unwrap()).into_owned());
        if n == when && failpoint.is_none() {
            // Lines that are still in the pipe were printed before, and count.
            victim.kill().unwrap();
        }
    }
    let end = victim.wait().unwrap();
    assert!(end.signal().is_some(), "a victim works until it is killed: {end}");
    said
}

/// Prints a line by one write, so that lines of two tasks do not mix.
pub(crate) fn say(line: std::fmt::Arguments<'_>) {
    let _ = std::io::stdout().write_all(format!("{line}\n").as_bytes());
}
