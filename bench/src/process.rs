//! A server under test: started, found, ended.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context;
use hapax_bench::Processes;
use rustix::process::{Pid, Signal, kill_process};

/// How long it may take to end by itself.
const PATIENCE: Duration = Duration::from_secs(3);

pub(crate) struct Server {
    child: Child,
    address: SocketAddr,
    /// Open as long as it lives: it may want to say more.
    _said: Option<BufReader<ChildStdout>>,
}

impl Server {
    /// Starts what says `http://ADDRESS` when it listens.
    pub(crate) fn that_says_where(command: &mut Command) -> anyhow::Result<Self> {
        Self::that_says_where_with(command, &[])
    }

    /// The same, with these variables.
    pub(crate) fn that_says_where_with(
        command: &mut Command,
        variables: &[(&str, &str)],
    ) -> anyhow::Result<Self> {
        command.env_clear().envs(variables.iter().copied());
        let mut child = spawn(command.stdout(Stdio::piped()))?;
        let mut said = BufReader::new(child.stdout.take().context("no standard output")?);
        let address = listening_address(&mut said);
        let unknown: SocketAddr = ([127, 0, 0, 1], 0).into();
        // First a server, which is ended whatever comes now.
        let mut server = Self { child, address: unknown, _said: Some(said) };
        server.address = address.with_context(|| format!("{command:?} does not listen"))?;
        Ok(server)
    }

    /// Starts what listens at `address` sooner or later.
    pub(crate) fn that_listens_at(
        address: SocketAddr,
        command: &mut Command,
    ) -> anyhow::Result<Self> {
        let mut server = Self { child: spawn(command.env_clear())?, address, _said: None };
        let end = Instant::now() + PATIENCE * 3;
        while std::net::TcpStream::connect(address).is_err() {
            let ended = server.child.try_wait()?;
            anyhow::ensure!(ended.is_none() && Instant::now() < end, "{command:?} does not listen");
            thread::sleep(Duration::from_millis(10));
        }
        Ok(server)
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Its workers included.
    pub(crate) fn processes(&self) -> Processes {
        Processes::new([self.child.id()])
    }
}

/// The callers clear the environment: no settings of whoever runs this reach what is measured.
fn spawn(command: &mut Command) -> anyhow::Result<Child> {
    let command = command.stdin(Stdio::null());
    command.spawn().with_context(|| format!("cannot start {command:?}"))
}

fn listening_address(said: &mut impl BufRead) -> anyhow::Result<SocketAddr> {
    let mut line = String::new();
    said.read_line(&mut line)?;
    let (_, address) = line.split_once("http://").context("it does not say where")?;
    Ok(address.trim().parse()?)
}

impl Drop for Server {
    /// Asks first: nginx has a worker that only it can end.
    fn drop(&mut self) {
        let _ = kill_process(Pid::from_child(&self.child), Signal::TERM);
        let end = Instant::now() + PATIENCE;
        while matches!(self.child.try_wait(), Ok(None)) {
            if Instant::now() >= end {
                let _ = self.child.kill();
                let _ = self.child.wait();
                return;
            }
            thread::sleep(Duration::from_millis(5));
        }
    }
}
