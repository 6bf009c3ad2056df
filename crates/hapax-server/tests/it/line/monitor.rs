//! The commands that a Redis server gets, one by one.

use std::process::{Command, Stdio};

use hapax_testkit::{Redis, find_binary};

use crate::support::{KillOnDrop, Output, eventually};

/// A running `MONITOR`, ended when dropped.
pub(crate) struct Monitor {
    commands: Output,
    _child: KillOnDrop,
}

impl Monitor {
    pub(crate) fn of(redis: &Redis) -> Self {
        let mut child = Command::new(find_binary("redis-cli").expect("redis-cli"))
            .args(["-p", &redis.port().to_string(), "MONITOR"])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .expect("redis-cli starts");
        let commands = Output::collect(child.stdout.take().expect("piped"));
        let monitor = Self { commands, _child: KillOnDrop(child) };
        eventually("the server is watched", || !monitor.with("OK").is_empty());
        monitor
    }

    /// Waits until every earlier command of the server has been read.
    pub(crate) fn catch_up(&self, redis: &Redis) {
        redis.cli(&["ECHO", "the-monitor-is-up-to-here"]);
        eventually("the monitor catches up", || !self.with("the-monitor-is-up-to-here").is_empty());
    }

    /// The commands so far that contain a text.
    pub(crate) fn with(&self, part: &str) -> Vec<String> {
        let text = self.commands.text();
        // The last line may be incomplete.
        let lines = text.split_inclusive('\n').filter(|line| line.ends_with('\n'));
        lines.filter(|line| line.contains(part)).map(str::to_owned).collect()
    }
}
