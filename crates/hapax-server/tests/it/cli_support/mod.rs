//! The real binary, and a real server for it to talk to.
#![allow(dead_code, reason = "every test file uses its own part")]

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, ExitStatus, Output, Stdio};

use hapax_testkit::{free_port, wait_for};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::support::HapaxProcess;

pub(crate) use crate::support::{PATIENCE, hapax};

/// For a file that `hapax` opens without a server. Each store call has 2 s there, and a disk that is
/// busy with other things may take longer to sync: in memory, where the machine has such a place.
pub(crate) fn folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir());
    folder.expect("a temporary folder")
}

/// Runs it to its end.
pub(crate) fn run(command: &mut Command) -> Ran {
    let output = command.stdout(Stdio::piped()).stderr(Stdio::piped()).output();
    Ran(output.expect("hapax can be run"))
}

/// What a run said.
pub(crate) struct Ran(Output);

impl Ran {
    pub(crate) fn code(&self) -> i32 {
        self.0.status.code().expect("no signal ended it")
    }

    /// Standard output of a run that went well.
    #[track_caller]
    pub(crate) fn ok(&self) -> String {
        assert_eq!(self.code(), 0, "stderr: {}", self.err());
        self.out()
    }

    #[track_caller]
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.ok()).expect("the output is JSON")
    }

    /// What it said while it failed with this code.
    #[track_caller]
    pub(crate) fn failed(&self, code: i32) -> String {
        assert_eq!(self.code(), code, "stdout: {}\nstderr: {}", self.out(), self.err());
        self.err()
    }

    pub(crate) fn out(&self) -> String {
        String::from_utf8_lossy(&self.0.stdout).into_owned()
    }

    pub(crate) fn err(&self) -> String {
        String::from_utf8_lossy(&self.0.stderr).into_owned()
    }
}

/// A server of one's own, killed when dropped.
pub(crate) struct Server {
    process: HapaxProcess,
    port: u16,
    store: String,
    folder: tempfile::TempDir,
}

impl Server {
    /// On `memory:`.
    pub(crate) fn start() -> Self {
        Self::with_config("")
    }

    /// On `memory:`, with a configuration file.
    pub(crate) fn with_config(toml: &str) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        std::fs::write(folder.path().join("hapax.toml"), toml).expect("a file");
        Self::at(free_port(), "memory:".into(), folder)
    }

    /// On this store.
    pub(crate) fn on(store: &str) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        std::fs::write(folder.path().join("hapax.toml"), "").expect("a file");
        Self::at(free_port(), store.into(), folder)
    }

    fn at(port: u16, store: String, folder: tempfile::TempDir) -> Self {
        let mut command = hapax();
        command
            .args(["serve", "--store", &store, "--config", "hapax.toml"])
            .args(["--listen", &format!("127.0.0.1:{port}")])
            // A busy machine must not fail a store call; the timeout is not tested here.
            .env("HAPAX_STORE_TIMEOUT", "20s")
            .current_dir(folder.path());
        Self { process: HapaxProcess::start(&mut command), port, store, folder }
    }

    /// Kills it: whoever asks is refused.
    pub(crate) fn kill(&mut self) {
        self.process.kill();
    }

    /// Kills it and starts another one in its place: on `memory:`, an empty one.
    pub(crate) fn replace(mut self) -> Self {
        self.kill();
        let folder = std::mem::replace(&mut self.folder, tempfile::tempdir().expect("a folder"));
        Self::at(self.port, std::mem::take(&mut self.store), folder)
    }

    pub(crate) fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// `hapax` as a client of this server.
    pub(crate) fn command<I: AsRef<OsStr>>(
        &self,
        arguments: impl IntoIterator<Item = I>,
    ) -> Command {
        let mut command = hapax();
        command.args(arguments).env("HAPAX_SERVER", self.url());
        command
    }

    /// A client's run to its end.
    pub(crate) fn run<I: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = I>) -> Ran {
        run(&mut self.command(arguments))
    }

    /// A client's run with something to read.
    pub(crate) fn run_with_input(&self, arguments: &[&str], input: &[u8]) -> Ran {
        let mut command = self.command(arguments);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("hapax can be run");
        child.stdin.take().expect("piped").write_all(input).expect("it reads");
        Ran(child.wait_with_output().expect("its output"))
    }
}

/// A `hapax lock run` whose command has begun, and said so by its first line.
pub(crate) struct Running {
    child: Child,
    /// That line.
    pub(crate) said: String,
    stdout: BufReader<std::process::ChildStdout>,
}

impl Running {
    pub(crate) fn start(command: &mut Command) -> Self {
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("hapax can be run");
        let mut stdout = BufReader::new(child.stdout.take().expect("piped"));
        let mut said = String::new();
        stdout.read_line(&mut said).expect("the command says a line");
        assert!(said.ends_with('\n'), "it ended before it said a line");
        Self { child, said: said.trim_end().to_owned(), stdout }
    }

    /// The rest of what the command says, up to its end.
    pub(crate) fn rest(&mut self) -> String {
        std::io::read_to_string(&mut self.stdout).expect("text")
    }

    pub(crate) fn signal(&self, signal: Signal) {
        let pid = Pid::from_child(&self.child);
        kill_process(pid, signal).expect("it runs");
    }

    /// Ends the command's standard input, which is what it waits for.
    pub(crate) fn let_go(&mut self) {
        drop(self.child.stdin.take());
    }

    pub(crate) fn wait(&mut self) -> ExitStatus {
        wait_for("hapax lock run ends", PATIENCE, || self.child.try_wait().expect("its state"))
    }

    #[track_caller]
    pub(crate) fn ends_with(&mut self, code: i32) {
        let status = self.wait();
        assert_eq!(status.code(), Some(code), "{status}");
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
