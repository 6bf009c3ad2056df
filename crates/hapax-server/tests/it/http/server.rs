//! A server of one test's own.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::http::client::{Ask, Sent};

/// How long anything may take that the machine, and not the test, decides.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

pub(crate) struct Server {
    child: Child,
    pub(crate) address: String,
    pub(crate) banner: Vec<String>,
    log: Option<JoinHandle<String>>,
    pub(crate) folder: TempDir,
}

/// How a server is started.
pub(crate) struct Setup {
    command: Command,
    folder: TempDir,
}

impl Setup {
    /// On a free port.
    pub(crate) fn new() -> Self {
        Self::listening("127.0.0.1:0")
    }

    /// On memory, at this address.
    pub(crate) fn at(address: &str) -> Self {
        Self::listening(address).flags(&["--store", "memory:"])
    }

    fn listening(address: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_hapax"));
        command.arg("serve").current_dir(folder.path()).env_clear();
        // What one store call may take is nobody's question but of those who say so by a flag.
        command.env("HAPAX_STORE_TIMEOUT", "20s");
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        Self { command, folder }.flags(&["--listen", address])
    }

    pub(crate) fn memory() -> Self {
        Self::new().flags(&["--store", "memory:"])
    }

    pub(crate) fn flags(mut self, flags: &[&str]) -> Self {
        self.command.args(flags);
        self
    }

    pub(crate) fn env(mut self, name: &str, value: &str) -> Self {
        self.command.env(name, value);
        self
    }

    pub(crate) fn file(self, text: &str) -> Self {
        std::fs::write(self.folder.path().join("hapax.toml"), text).unwrap();
        self
    }

    /// Starts it and waits until it listens.
    pub(crate) fn start(mut self) -> Server {
        let mut child = self.command.spawn().unwrap();
        let mut stderr = child.stderr.take().unwrap();
        let log = std::thread::spawn(move || {
            let mut text = String::new();
            let _ = stderr.read_to_string(&mut text);
            text
        });
        let lines = lines(&mut child);
        let mut banner = Vec::new();
        while banner.len() < 5 {
            match lines.recv_timeout(PATIENCE) {
                Ok(line) => banner.push(line),
                Err(_) => {
                    let _ = child.kill();
                    panic!("it did not start: {}", log.join().unwrap());
                }
            }
        }
        let address = banner[0].split("http://").nth(1).unwrap().to_owned();
        Server { child, address, banner, log: Some(log), folder: self.folder }
    }

    /// Starts it where it should refuse to; its message and exit code.
    pub(crate) fn refused(mut self) -> (String, i32) {
        let mut child = self.command.spawn().unwrap();
        let status = wait(&mut child).unwrap_or_else(|| {
            let _ = child.kill();
            panic!("it started");
        });
        let mut message = String::new();
        child.stderr.take().unwrap().read_to_string(&mut message).unwrap();
        (message, status.code().unwrap())
    }
}

fn lines(child: &mut Child) -> Receiver<String> {
    let stdout = BufReader::new(child.stdout.take().unwrap());
    let (tell, lines) = mpsc::channel();
    std::thread::spawn(move || {
        for line in stdout.lines().map_while(Result::ok) {
            if tell.send(line).is_err() {
                break;
            }
        }
    });
    lines
}

fn wait(child: &mut Child) -> Option<ExitStatus> {
    let until = Instant::now() + PATIENCE;
    while Instant::now() < until {
        if let Some(status) = child.try_wait().unwrap() {
            return Some(status);
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    None
}

impl Server {
    /// One without tokens on memory, as most tests want it.
    pub(crate) fn start() -> Self {
        Setup::memory().start()
    }

    pub(crate) fn ask(&self, method: &str, path: &str) -> Ask {
        Ask::new(&self.address, method, path)
    }

    pub(crate) fn get(&self, path: &str) -> Ask {
        self.ask("GET", path)
    }

    pub(crate) fn post(&self, path: &str) -> Ask {
        self.ask("POST", path)
    }

    pub(crate) fn put(&self, path: &str) -> Ask {
        self.ask("PUT", path)
    }

    pub(crate) fn delete(&self, path: &str) -> Ask {
        self.ask("DELETE", path)
    }

    /// Takes a lock; its token.
    pub(crate) fn lock(&self, key: &str) -> String {
        let taken = self.post(&format!("/v1/locks/{key}")).json(r#"{"ttl_ms":60000}"#).send();
        assert_eq!(taken.status, 201, "{}", taken.text());
        taken.json()["token"].as_str().unwrap().to_owned()
    }

    /// Takes all places for requests that there are, by waiting for a lock. Who asks whether they
    /// are taken needs a place too, so one that came too late for his sake tries again.
    pub(crate) fn fill(&self, places: usize) -> Vec<Sent> {
        self.lock("k");
        let mut waiting = Vec::new();
        eventually("there is no place left", || {
            waiting.retain(Sent::alive);
            waiting.resize_with(places, || {
                self.post("/v1/locks/k").json(r#"{"wait_ms":60000}"#).begin()
            });
            self.get("/v1/records/k").status() == 429
        });
        waiting
    }

    pub(crate) fn signal(&self, name: &str) {
        let pid = self.child.id().to_string();
        let killed = Command::new("kill").args([&format!("-{name}"), &pid]).status().unwrap();
        assert!(killed.success());
    }

    /// Waits until it has ended; its exit status and its log.
    pub(crate) fn ended(mut self) -> (ExitStatus, String) {
        let status = wait(&mut self.child).expect("it ends");
        (status, self.log.take().unwrap().join().unwrap())
    }

    /// Ends it the hard way; its files stay.
    pub(crate) fn kill_and_keep_folder(mut self) -> TempDir {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        std::mem::replace(&mut self.folder, tempfile::tempdir().unwrap())
    }

    /// Ends it in order; its log.
    pub(crate) fn stop(self) -> String {
        self.signal("TERM");
        let (status, log) = self.ended();
        assert_eq!(status.code(), Some(0), "{log}");
        log
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Waits until it holds.
pub(crate) fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let until = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < until, "never: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}
