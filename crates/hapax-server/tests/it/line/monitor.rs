//! The commands that a Redis server gets, one by one.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};

use hapax_testkit::{Redis, find_binary, wait_for};

use crate::line::harness::PATIENCE;

/// A running `MONITOR`, ended when dropped.
pub(crate) struct Monitor {
    child: Child,
    lines: Arc<Mutex<Vec<String>>>,
}

impl Monitor {
    pub(crate) fn of(redis: &Redis) -> Self {
        let mut child = Command::new(find_binary("redis-cli").expect("redis-cli"))
            .args(["-p", &redis.port().to_string(), "MONITOR"])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .expect("redis-cli starts");
        let out = BufReader::new(child.stdout.take().expect("piped"));
        let lines = Arc::new(Mutex::new(Vec::new()));
        std::thread::spawn({
            let lines = lines.clone();
            move || {
                for line in out.lines().map_while(Result::ok) {
                    lines.lock().unwrap_or_else(PoisonError::into_inner).push(line);
                }
            }
        });
        let monitor = Self { child, lines };
        wait_for("the server is watched", PATIENCE, || monitor.with("OK").pop());
        monitor
    }

    /// Waits until every earlier command of the server has been read.
    pub(crate) fn catch_up(&self, redis: &Redis) {
        redis.cli(&["ECHO", "the-monitor-is-up-to-here"]);
        let seen = || self.with("the-monitor-is-up-to-here").pop();
        wait_for("the monitor catches up", PATIENCE, seen);
    }

    /// The commands so far that contain a text.
    pub(crate) fn with(&self, part: &str) -> Vec<String> {
        let lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        lines.iter().filter(|line| line.contains(part)).cloned().collect()
    }
}

impl Drop for Monitor {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
