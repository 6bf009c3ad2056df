//! A `hapax serve` of one test's own.

use std::ffi::OsStr;
use std::process::{Command, Stdio};

use hapax_testkit::free_port;
use rustix::process::Signal;
use tempfile::TempDir;

use super::http::{HttpRequest, SentRequest};
use super::{HapaxProcess, eventually};

pub(crate) struct Server {
    process: HapaxProcess,
    command: Command,
    pub(crate) address: String,
    pub(crate) folder: TempDir,
}

/// How a server is started.
pub(crate) struct Setup {
    command: Command,
    folder: TempDir,
}

impl Setup {
    /// On a free port, in a folder of its own.
    pub(crate) fn new() -> Self {
        Self::at(&format!("127.0.0.1:{}", free_port()))
    }

    pub(crate) fn at(address: &str) -> Self {
        Self::without_flags().flags(&["--listen", address])
    }

    /// Without even an address.
    pub(crate) fn without_flags() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_hapax"));
        command.arg("serve").current_dir(folder.path()).env_clear();
        // A busy machine must not fail a store call; tests of the timeout set a flag.
        command.env("HAPAX_STORE_TIMEOUT", "20s");
        Self { command, folder }
    }

    pub(crate) fn on(store: &str) -> Self {
        Self::new().flags(&["--store", store])
    }

    pub(crate) fn memory() -> Self {
        Self::on("memory:")
    }

    pub(crate) fn flags(mut self, flags: &[&str]) -> Self {
        self.command.args(flags);
        self
    }

    pub(crate) fn env(mut self, name: &str, value: impl AsRef<OsStr>) -> Self {
        self.command.env(name, value);
        self
    }

    pub(crate) fn file(self, text: &str) -> Self {
        std::fs::write(self.folder.path().join("hapax.toml"), text).unwrap();
        self
    }

    /// Starts it and waits until it listens.
    pub(crate) fn start(self) -> Server {
        let Self { mut command, folder } = self;
        let process = HapaxProcess::start(&mut command);
        Server { address: process.address(), process, command, folder }
    }

    /// Starts a server that should refuse to run; its message.
    pub(crate) fn refused(mut self) -> String {
        let output = self.command.stdin(Stdio::null()).output().unwrap();
        let message = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_ne!(output.status.code().unwrap(), 0, "{message}");
        message
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

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    pub(crate) fn ask(&self, method: &str, path: &str) -> HttpRequest {
        HttpRequest::new(&self.address, method, path).compared()
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

    pub(crate) fn patch(&self, path: &str) -> HttpRequest {
        self.ask("PATCH", path)
    }

    pub(crate) fn delete(&self, path: &str) -> HttpRequest {
        self.ask("DELETE", path)
    }

    pub(crate) fn metrics(&self) -> String {
        self.get("/metrics").send().text()
    }

    /// Waits until a metric has been written this way.
    pub(crate) fn counts(&self, line: &str) {
        eventually(line, || self.metrics().contains(line));
    }

    /// Waits until this many requests are being answered, the one that asks included.
    pub(crate) fn has_in_flight(&self, requests: usize) {
        self.counts(&format!("hapax_http_in_flight {requests}\n"));
    }

    /// Waits until `/readyz` answers 200 or, if it should not be ready, 503.
    pub(crate) fn is_ready(&self, ready: bool) {
        let status = if ready { 200 } else { 503 };
        eventually(&format!("/readyz is {status}"), || self.get("/readyz").status() == status);
    }

    /// Takes a lock; its token.
    pub(crate) fn lock(&self, key: &str) -> String {
        self.post(&format!("/v1/locks/{key}")).json(r#"{"ttl_ms":60000}"#).send().token()
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

    /// Waits for its end, which must be a success; its log.
    pub(crate) fn ended(mut self) -> String {
        self.process.ended()
    }

    /// `SIGKILL`; its files stay.
    pub(crate) fn kill(&mut self) {
        self.process.kill();
    }

    /// Kills it and starts another one in its place: on `memory:`, an empty one.
    pub(crate) fn restart(&mut self) {
        self.kill();
        self.process = HapaxProcess::start(&mut self.command);
    }

    /// Ends it in order; its log.
    pub(crate) fn stop(mut self) -> String {
        self.process.stop()
    }

    pub(crate) fn log(&self) -> String {
        self.process.log()
    }
}
