//! The real binary.

use std::io::{Read, Write};
use std::process::{Child, ChildStderr, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use hapax_testkit::wait_for;
use rustix::process::{Pid, Signal, kill_process};

use super::WAIT_TIMEOUT;

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

/// A child process that is killed when dropped.
pub(crate) struct KillOnDrop(pub(crate) Child);

impl Drop for KillOnDrop {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The text that a process has written to one of its outputs.
#[derive(Default)]
pub(crate) struct Output {
    bytes: Arc<Mutex<Vec<u8>>>,
    reader: Option<JoinHandle<()>>,
}

impl Output {
    pub(crate) fn collect(mut from: impl Read + Send + 'static) -> Self {
        let bytes = Arc::<Mutex<Vec<u8>>>::default();
        let collected = bytes.clone();
        let reader = std::thread::spawn(move || {
            let mut chunk = [0; 4096];
            while let Ok(count @ 1..) = from.read(&mut chunk) {
                let mut collected = collected.lock().unwrap_or_else(PoisonError::into_inner);
                collected.extend_from_slice(&chunk[..count]);
            }
        });
        Self { bytes, reader: Some(reader) }
    }

    pub(crate) fn text(&self) -> String {
        let bytes = self.bytes.lock().unwrap_or_else(PoisonError::into_inner);
        String::from_utf8_lossy(&bytes).into_owned()
    }
}

/// A running `hapax serve`, `proxy`, `relay` or `line`; killed when dropped.
pub(crate) struct HapaxProcess {
    child: KillOnDrop,
    /// The banner: standard output up to the line `try`.
    pub(crate) banner: String,
    stdout: Output,
    stderr: Output,
    /// Standard error, as long as nobody reads it.
    unread: Option<ChildStderr>,
}

impl HapaxProcess {
    /// Starts the command and waits for its banner.
    pub(crate) fn start(command: &mut Command) -> Self {
        Self::spawn(command, true)
    }

    /// As [`HapaxProcess::start`], but nobody reads standard error until [`HapaxProcess::read_log`].
    pub(crate) fn start_unread(command: &mut Command) -> Self {
        Self::spawn(command, false)
    }

    fn spawn(command: &mut Command, read_log: bool) -> Self {
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("hapax can be run");
        let stdout = Output::collect(child.stdout.take().expect("piped"));
        let (stderr, unread) = (Output::default(), child.stderr.take());
        let child = KillOnDrop(child);
        let mut process = Self { child, banner: String::new(), stdout, stderr, unread };
        if read_log {
            process.read_log();
        }
        process.banner = wait_for("hapax prints its banner", 3 * WAIT_TIMEOUT, || {
            let ended = !process.is_running();
            let shown = process.stdout.text();
            let whole = shown.contains("  try ") && shown.ends_with('\n');
            if ended && !whole {
                process.read_log();
                panic!("hapax ended at its start: {}", process.wait().1);
            }
            whole.then_some(shown)
        });
        process
    }

    /// Begins to read standard error.
    pub(crate) fn read_log(&mut self) {
        if let Some(unread) = self.unread.take() {
            self.stderr = Output::collect(unread);
        }
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
        Pid::from_child(&self.child.0)
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(self.pid(), signal).expect("it runs");
    }

    pub(crate) fn is_running(&mut self) -> bool {
        self.status().is_none()
    }

    /// Its exit status, once it has ended.
    pub(crate) fn status(&mut self) -> Option<ExitStatus> {
        self.child.0.try_wait().expect("a child")
    }

    pub(crate) fn kill(&mut self) {
        let _ = self.child.0.kill();
        let _ = self.child.0.wait();
    }

    /// Waits for its end; its exit status and its log.
    pub(crate) fn wait(&mut self) -> (ExitStatus, String) {
        let status = wait_for("hapax ends", WAIT_TIMEOUT, || self.status());
        for output in [&mut self.stdout, &mut self.stderr] {
            output.reader.take().map(JoinHandle::join);
        }
        (status, self.log())
    }

    /// Waits for its end, which must be a success; its log.
    pub(crate) fn ended(&mut self) -> String {
        let (status, log) = self.wait();
        assert_eq!(status.code(), Some(0), "{log}");
        log
    }

    /// Ends it in order with `SIGTERM`; its log.
    pub(crate) fn stop(&mut self) -> String {
        self.signal(Signal::TERM);
        self.ended()
    }

    /// Standard error so far.
    pub(crate) fn log(&self) -> String {
        self.stderr.text()
    }

    /// Standard output and standard error so far.
    pub(crate) fn output(&self) -> String {
        self.stdout.text() + &self.log()
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
