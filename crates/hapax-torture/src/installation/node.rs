//! A `hapax` process under test.

use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::bail;
use hapax_testkit::{Program, TcpProxy, free_port};

/// The longest that a process may take to listen, on a busy machine.
const START_TIMEOUT: Duration = Duration::from_secs(120);

/// A wall clock that can be set for one process, by libfaketime.
pub(super) struct FakeClock {
    /// The library to preload.
    pub(super) library: PathBuf,
    /// The file that says by how much the clock is wrong.
    pub(super) file: PathBuf,
}

/// A running `hapax`.
pub(crate) struct HapaxNode {
    pub(crate) name: String,
    pub(crate) program: Program,
    /// Where it listens; a relay for its administrator.
    port: u16,
    /// The connection by which clients reach it; a relay has none.
    pub(crate) link: Option<TcpProxy>,
    /// It was killed and is not known to listen again.
    pub(crate) was_killed: AtomicBool,
    /// Held by the fault that hits it.
    pub(crate) fault: Mutex<()>,
    /// Whether it runs the older binary.
    is_older: AtomicBool,
    arguments: Vec<String>,
    clock: Option<FakeClock>,
}

impl HapaxNode {
    pub(super) fn start(
        name: &str,
        hapax: &Path,
        arguments: &[&str],
        clock: Option<FakeClock>,
    ) -> Self {
        let mut arguments: Vec<String> = arguments.iter().map(ToString::to_string).collect();
        let common = ["--store-timeout", "1s", "--log-level", "warn", "--gauge-interval", "0s"];
        arguments.extend(common.map(str::to_owned));
        let (port, is_relay) = (free_port(), arguments[0] == "relay");
        arguments.push(if is_relay { "--admin" } else { "--listen" }.to_owned());
        arguments.push(format!("127.0.0.1:{port}"));
        let program = Program::start(name, command(hapax, &arguments, clock.as_ref()));
        Self {
            name: name.to_owned(),
            program,
            port,
            link: (!is_relay).then(|| TcpProxy::to(port)),
            was_killed: AtomicBool::new(false),
            fault: Mutex::new(()),
            is_older: AtomicBool::new(false),
            arguments,
            clock,
        }
    }

    /// Kills it (SIGKILL).
    pub(crate) fn kill(&self) {
        self.was_killed.store(true, Ordering::SeqCst);
        self.program.kill();
    }

    /// Starts it with the other of two binaries, which a kill has made possible; whether that is the older one.
    pub(crate) fn change_binary(&self, newer: &Path, older: &Path) -> bool {
        let is_older = !self.is_older.fetch_xor(true, Ordering::SeqCst);
        let hapax = if is_older { older } else { newer };
        self.program.restart_as(command(hapax, &self.arguments, self.clock.as_ref()));
        is_older
    }

    /// Sets its wall clock to the right time plus these seconds, from where it runs at this rate; whether it has such a
    /// clock.
    pub(crate) fn set_clock(&self, seconds: i64, rate: &str) -> anyhow::Result<bool> {
        let Some(clock) = &self.clock else { return Ok(false) };
        write_clock(&clock.file, seconds, rate)?;
        Ok(true)
    }

    /// Waits until it listens.
    pub(crate) fn wait_until_ready(&self) -> anyhow::Result<()> {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, self.port));
        let deadline = Instant::now() + START_TIMEOUT;
        while TcpStream::connect_timeout(&address, Duration::from_secs(1)).is_err() {
            if self.program.has_ended() || Instant::now() > deadline {
                bail!("{} does not listen\n{}", self.name, self.program.log_tail());
            }
            thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    }

    /// The address for clients.
    pub(crate) fn address(&self) -> Option<String> {
        self.link.as_ref().map(|link| format!("127.0.0.1:{}", link.port()))
    }

    /// Whether it ended by itself, which no fault explains.
    pub(super) fn has_crashed(&self) -> bool {
        self.program.has_ended() && !self.was_killed.load(Ordering::SeqCst)
    }
}

pub(super) fn write_clock(file: &Path, seconds: i64, rate: &str) -> anyhow::Result<()> {
    // A reader must never see half of it.
    let next = file.with_extension("next");
    std::fs::write(&next, format!("{seconds:+} x{rate}\n"))?;
    std::fs::rename(&next, file)?;
    Ok(())
}

fn command(hapax: &Path, arguments: &[String], clock: Option<&FakeClock>) -> Command {
    let mut command = Command::new(hapax);
    // Without the developer's own settings.
    command.env_clear().current_dir("/").args(arguments);
    if let Some(clock) = clock {
        command
            .env("LD_PRELOAD", &clock.library)
            .env("FAKETIME_TIMESTAMP_FILE", &clock.file)
            .env("FAKETIME_CACHE_DURATION", "1")
            // Only the wall clock can be set on a real machine.
            .env("FAKETIME_DONT_FAKE_MONOTONIC", "1");
    }
    command
}
