//! The real binary.

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use hapax_testkit::wait_for;
use rustix::process::{Pid, Signal, kill_process};

use super::PATIENCE;

/// `hapax`, without the developer's own settings.
pub(crate) fn hapax() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_hapax"));
    for (name, _) in std::env::vars_os() {
        let setting = name.to_str().is_some_and(|name| {
            ["HAPAX_", "LINE_", "PROCESSING_LOCK_"].iter().any(|own| name.starts_with(own))
        });
        if setting || name == "REDIS_URL" || name == "CLICOLOR_FORCE" {
            command.env_remove(name);
        }
    }
    command.stdin(Stdio::null());
    command
}

/// A running `hapax serve`, `proxy`, `relay` or `line`; killed when dropped.
pub(crate) struct HapaxProcess {
    child: Child,
    /// What it printed up to the line to try.
    pub(crate) banner: String,
    log: Arc<Mutex<String>>,
    log_reader: Option<JoinHandle<()>>,
}

impl HapaxProcess {
    /// Starts the command and waits for its banner. The log is collected.
    pub(crate) fn start(command: &mut Command) -> Self {
        let mut process = Self::spawn(command.stderr(Stdio::piped()));
        let mut errors = process.child.stderr.take().expect("piped");
        let log = process.log.clone();
        process.log_reader = Some(std::thread::spawn(move || {
            let mut chunk = [0; 4096];
            while let Ok(count @ 1..) = errors.read(&mut chunk) {
                let text = String::from_utf8_lossy(&chunk[..count]);
                log.lock().unwrap_or_else(PoisonError::into_inner).push_str(&text);
            }
        }));
        process.read_banner();
        process
    }

    /// The same with the log in a file.
    pub(crate) fn start_with_log(command: &mut Command, log: File) -> Self {
        let mut process = Self::spawn(command.stderr(log));
        process.read_banner();
        process
    }

    fn spawn(command: &mut Command) -> Self {
        let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn();
        let child = child.expect("hapax can be run");
        Self { child, banner: String::new(), log: Arc::default(), log_reader: None }
    }

    fn read_banner(&mut self) {
        let stdout = BufReader::new(self.child.stdout.take().expect("piped"));
        let mut lines = stdout.lines().map_while(Result::ok);
        while !self.banner.contains("  try ") {
            match lines.next() {
                Some(line) => self.banner.extend([line.as_str(), "\n"]),
                None => panic!("hapax ended at its start: {}", self.wait().1),
            }
        }
        // A process whose output is not read would stop.
        std::thread::spawn(move || lines.for_each(drop));
    }

    /// `127.0.0.1:PORT`.
    pub(crate) fn address(&self) -> String {
        self.banner_address("listens on").expect("the banner has an address")
    }

    /// The address of `--admin`, if that was given.
    pub(crate) fn admin_address(&self) -> Option<String> {
        self.banner_address("admin")
    }

    fn banner_address(&self, mark: &str) -> Option<String> {
        let line = self.banner.lines().find(|line| line.contains(mark))?;
        line.split("://").nth(1)?.split_whitespace().next().map(str::to_owned)
    }

    pub(crate) fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(self.pid(), signal).expect("it runs");
    }

    pub(crate) fn is_running(&mut self) -> bool {
        self.child.try_wait().expect("a child").is_none()
    }

    pub(crate) fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Waits for its end; its exit status and its log.
    pub(crate) fn wait(&mut self) -> (ExitStatus, String) {
        let status = wait_for("hapax ends", PATIENCE, || self.child.try_wait().expect("a child"));
        self.log_reader.take().map(JoinHandle::join);
        (status, self.log())
    }

    /// What it has logged so far.
    pub(crate) fn log(&self) -> String {
        self.log.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Drop for HapaxProcess {
    fn drop(&mut self) {
        self.kill();
        if std::thread::panicking() {
            let _ = writeln!(std::io::stderr(), "-- hapax's log --\n{}", self.log());
        }
    }
}
