//! The real binary.

use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};

use hapax_testkit::wait_for;
use rustix::process::{Pid, Signal, kill_process};

use super::PATIENCE;

/// A running `hapax proxy`, killed when dropped.
pub(crate) struct Proxy {
    child: Child,
    /// `127.0.0.1:PORT`.
    pub(crate) address: String,
    /// Of `--admin`, where that was given.
    pub(crate) admin: Option<String>,
    log: Arc<Mutex<String>>,
}

fn before<'a>(upstream: &'a str, store: &'a str, flags: &[&'a str]) -> Vec<&'a str> {
    [&["--upstream", upstream, "--store", store, "--listen", "127.0.0.1:0"], flags].concat()
}

impl Proxy {
    /// In front of `upstream`, on a free port, with further flags.
    pub(crate) fn start(upstream: &str, store: &str, flags: &[&str]) -> Self {
        Self::spawn(command(&before(upstream, store, flags)))
    }

    /// One that ends itself at a place in the code: `granted:2`, the second time it passes there.
    pub(crate) fn doomed(upstream: &str, store: &str, flags: &[&str], failpoint: &str) -> Self {
        let mut command = command(&before(upstream, store, flags));
        command.env("HAPAX_FAILPOINT", failpoint);
        Self::spawn(command)
    }

    /// With these flags alone.
    pub(crate) fn run(flags: &[&str]) -> Self {
        Self::spawn(command(flags))
    }

    fn spawn(mut command: Command) -> Self {
        let mut child = command.spawn().expect("the proxy starts");
        let log = Arc::new(Mutex::new(String::new()));
        let mut errors = child.stderr.take().expect("piped");
        std::thread::spawn({
            let log = log.clone();
            move || {
                let mut chunk = [0; 4096];
                while let Ok(count @ 1..) = errors.read(&mut chunk) {
                    let text = String::from_utf8_lossy(&chunk[..count]);
                    log.lock().unwrap_or_else(PoisonError::into_inner).push_str(&text);
                }
            }
        });
        let mut proxy = Self { child, address: String::new(), admin: None, log };
        proxy.read_banner();
        proxy
    }

    fn read_banner(&mut self) {
        let mut lines = BufReader::new(self.child.stdout.take().expect("piped"));
        loop {
            let mut line = String::new();
            let read = lines.read_line(&mut line).expect("a banner");
            assert!(read > 0, "the proxy ended at its start: {}", self.log());
            let place = |line: &str| {
                line.split("://")
                    .nth(1)
                    .map(|rest| rest.split_whitespace().next().unwrap_or_default().to_owned())
            };
            if line.contains("listens on") {
                self.address = place(&line).expect("an address");
            } else if line.contains("admin") {
                self.admin = place(&line);
            } else if line.contains("try ") {
                return;
            }
        }
    }

    pub(crate) fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    pub(crate) fn admin_url(&self, path: &str) -> String {
        format!("http://{}{path}", self.admin.as_ref().expect("--admin was given"))
    }

    pub(crate) fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    /// `SIGKILL`.
    pub(crate) fn kill(mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// `SIGTERM`.
    pub(crate) fn terminate(&self) {
        kill_process(self.pid(), Signal::TERM).expect("the proxy runs");
    }

    /// Waits for its end.
    pub(crate) fn ended(&mut self) -> ExitStatus {
        wait_for("the proxy ends", PATIENCE, || self.child.try_wait().expect("a child"))
    }

    /// What it has logged so far.
    pub(crate) fn log(&self) -> String {
        self.log.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            use std::io::Write;
            let _ = writeln!(std::io::stderr(), "-- the proxy's log --\n{}", self.log());
        }
    }
}

/// The command, without the developer's own settings.
pub(crate) fn command(flags: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_hapax"));
    for (name, _) in std::env::vars_os() {
        let ours = name.to_str().is_some_and(|name| name.starts_with("HAPAX_"));
        if ours || name == "REDIS_URL" {
            command.env_remove(name);
        }
    }
    command
        .arg("proxy")
        .args(flags)
        // What one store call may take is nobody's question but of those who say so by a flag.
        .env("HAPAX_STORE_TIMEOUT", "20s")
        // Away from any hapax.toml.
        .current_dir(Path::new("/"))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}
