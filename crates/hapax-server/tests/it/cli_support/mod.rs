//! The real binary as a client, and a real server for it to talk to.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Write};
use std::process::{ChildStdout, Command, ExitStatus, Output, Stdio};

use hapax_testkit::wait_for;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::support::KillOnDrop;

pub(crate) use crate::support::server::{Server, Setup};
pub(crate) use crate::support::{WAIT_TIMEOUT, hapax};

/// Runs it to its end.
pub(crate) fn run(command: &mut Command) -> Ran {
    let output = command.stdout(Stdio::piped()).stderr(Stdio::piped()).output();
    Ran(output.expect("hapax can be run"))
}

/// Runs it to its end, with something to read.
pub(crate) fn run_with_input(command: &mut Command, input: &[u8]) -> Ran {
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("hapax can be run");
    child.stdin.take().expect("piped").write_all(input).expect("it reads");
    Ran(child.wait_with_output().expect("its output"))
}

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

    /// Standard error of a run that failed with this code.
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

impl Server {
    /// `hapax` as a client of this server.
    pub(crate) fn command<I: AsRef<OsStr>>(
        &self,
        arguments: impl IntoIterator<Item = I>,
    ) -> Command {
        let mut command = hapax();
        command.args(arguments).env("HAPAX_SERVER", self.url());
        command
    }

    pub(crate) fn run<I: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = I>) -> Ran {
        run(&mut self.command(arguments))
    }

    pub(crate) fn run_with_input(&self, arguments: &[&str], input: &[u8]) -> Ran {
        run_with_input(&mut self.command(arguments), input)
    }
}

/// A `hapax` that runs, and has printed its first line.
pub(crate) struct Running {
    child: KillOnDrop,
    pub(crate) first_line: String,
    stdout: BufReader<ChildStdout>,
}

impl Running {
    pub(crate) fn start(command: &mut Command) -> Self {
        let mut running = Self::begin(command);
        running.first_line = running.line().trim_end().to_owned();
        running
    }

    /// The same without waiting for a line.
    pub(crate) fn begin(command: &mut Command) -> Self {
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("hapax can be run");
        let stdout = BufReader::new(child.stdout.take().expect("piped"));
        Self { child: KillOnDrop(child), first_line: String::new(), stdout }
    }

    pub(crate) fn line(&mut self) -> String {
        let mut line = String::new();
        self.stdout.read_line(&mut line).expect("text");
        assert!(line.ends_with('\n'), "it ended before it printed a line");
        line
    }

    pub(crate) fn rest(&mut self) -> String {
        std::io::read_to_string(&mut self.stdout).expect("text")
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child.0), signal).expect("it runs");
    }

    pub(crate) fn send_line(&mut self, line: &str) {
        let stdin = self.child.0.stdin.as_mut().expect("piped");
        writeln!(stdin, "{line}").expect("it reads");
    }

    /// Ends its standard input, which the command of `lock run` waits for.
    pub(crate) fn let_go(&mut self) {
        drop(self.child.0.stdin.take());
    }

    pub(crate) fn wait(&mut self) -> ExitStatus {
        wait_for("hapax ends", WAIT_TIMEOUT, || self.child.0.try_wait().expect("its state"))
    }

    #[track_caller]
    pub(crate) fn ends_with(&mut self, code: i32) {
        let status = self.wait();
        assert_eq!(status.code(), Some(code), "{status}");
    }
}
