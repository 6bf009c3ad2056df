//! A `hapax serve` of one test's own.

use std::process::{Command, ExitStatus, Stdio};

use rustix::process::Signal;
use tempfile::TempDir;

use super::http::{HttpRequest, SentRequest};
use super::{HapaxProcess, eventually};

pub(crate) struct Server {
    process: HapaxProcess,
    pub(crate) address: String,
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
        // A busy machine must not fail a store call; tests of the timeout set a flag.
        command.env("HAPAX_STORE_TIMEOUT", "20s");
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
        let process = HapaxProcess::start(&mut self.command);
        Server { address: process.address(), process, folder: self.folder }
    }

    /// Starts a server that should refuse to run; its message and exit code.
    pub(crate) fn refused(mut self) -> (String, i32) {
        let output = self.command.stdin(Stdio::null()).output().unwrap();
        let message = String::from_utf8_lossy(&output.stderr).into_owned();
        (message, output.status.code().unwrap())
    }
}

impl Server {
    /// A server without tokens on memory, as most tests want it.
    pub(crate) fn start() -> Self {
        Setup::memory().start()
    }

    pub(crate) fn banner(&self) -> &str {
        &self.process.banner
    }

    pub(crate) fn ask(&self, method: &str, path: &str) -> HttpRequest {
        HttpRequest::new(&self.address, method, path)
    }

    pub(crate) fn get(&self, path: &str) -> HttpRequest {
        self.ask("GET", path)
    }

    pub(crate) fn post(&self, path: &str) -> HttpRequest {
        self.ask("POST", path)
    }

    pub(crate) fn put(&self, path: &str) -> HttpRequest {
        self.ask("PUT", path)
    }

    pub(crate) fn delete(&self, path: &str) -> HttpRequest {
        self.ask("DELETE", path)
    }

    /// Takes a lock; its token.
    pub(crate) fn lock(&self, key: &str) -> String {
        let taken = self.post(&format!("/v1/locks/{key}")).json(r#"{"ttl_ms":60000}"#).send();
        assert_eq!(taken.status, 201, "{}", taken.text());
        taken.json()["token"].as_str().unwrap().to_owned()
    }

    /// Uses up the limit of concurrent requests, by waiting for a lock. The probe below needs a
    /// permit too, so a request that was refused because of it is sent again.
    pub(crate) fn fill(&self, limit: usize) -> Vec<SentRequest> {
        self.lock("k");
        let mut waiting = Vec::new();
        eventually("the limit is used up", || {
            waiting.retain(SentRequest::alive);
            waiting.resize_with(limit, || {
                self.post("/v1/locks/k").json(r#"{"wait_ms":60000}"#).begin()
            });
            self.get("/v1/records/k").status() == 429
        });
        waiting
    }

    pub(crate) fn signal(&self, signal: Signal) {
        self.process.signal(signal);
    }

    /// Waits until it has ended; its exit status and its log.
    pub(crate) fn ended(mut self) -> (ExitStatus, String) {
        self.process.wait()
    }

    /// `SIGKILL`; its files stay.
    pub(crate) fn kill_and_keep_folder(mut self) -> TempDir {
        self.process.kill();
        self.folder
    }

    /// Ends it in order; its log.
    pub(crate) fn stop(self) -> String {
        self.signal(Signal::TERM);
        let (status, log) = self.ended();
        assert_eq!(status.code(), Some(0), "{log}");
        log
    }
}
