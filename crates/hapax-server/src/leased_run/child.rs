//! The command that runs under a lease, and the signals that are passed on to it.

use std::ffi::OsString;
use std::fs;
use std::io::{self, IsTerminal};
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitCode, ExitStatus, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::process::ChildStdout;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use super::not_started;

/// The largest output that is kept: the server's default limit of a stored response.
const MAX_OUTPUT: usize = 1 << 20;

pub(super) struct SupervisedChild {
    process: tokio::process::Child,
    pid: Option<Pid>,
    /// Whether the command leads its own process group. At a terminal it must not: it could not read
    /// from the terminal, and signals of the keyboard reach it anyway.
    leads_group: bool,
    output: Option<JoinHandle<Option<Vec<u8>>>>,
}

impl SupervisedChild {
    /// Starts the command. Its output is passed on; with `keeps_output` also kept.
    pub(super) fn start(
        command: &[OsString],
        environment: &[(&str, String)],
        keeps_output: bool,
    ) -> io::Result<Self> {
        let leads_group = !io::stdin().is_terminal();
        let mut start = tokio::process::Command::from(bound_command(command));
        start.envs(environment.iter().map(|(name, value)| (name, value))).kill_on_drop(true);
        if leads_group {
            start.process_group(0);
        }
        if keeps_output {
            start.stdout(Stdio::piped());
        }
        let mut process = start.spawn()?;
        let pid = process.id().and_then(|id| Pid::from_raw(id.cast_signed()));
        let output = process.stdout.take().map(|stdout| tokio::spawn(pass_output_on(stdout)));
        Ok(Self { process, pid, leads_group, output })
    }

    /// The output of a command that has ended. `None` where it is too large, or where a process that
    /// the command left behind still has it open after `timeout`.
    pub(super) async fn output(&mut self, timeout: Duration) -> Option<Vec<u8>> {
        let output = self.output.take()?;
        tokio::time::timeout(timeout, output).await.ok()?.ok()?
    }

    pub(super) async fn wait(&mut self) -> io::Result<ExitStatus> {
        self.process.wait().await
    }

    /// Passes a signal of this process on to the command.
    pub(super) fn pass_on(&self, signal: i32) {
        let from_keyboard = [Signal::INT, Signal::QUIT].map(Signal::as_raw).contains(&signal);
        if let Some(signal) = Signal::from_named_raw(signal)
            && (self.leads_group || !from_keyboard)
        {
            self.send_signal(signal);
        }
    }

    pub(super) fn terminate(&self) {
        self.send_signal(Signal::TERM);
    }

    pub(super) fn kill(&self) {
        self.send_signal(Signal::KILL);
    }

    /// Kills processes of the group that outlived the command.
    pub(super) fn kill_rest(&self) {
        if let (true, Some(pid)) = (self.leads_group, self.pid) {
            let _ = kill_process_group(pid, Signal::KILL);
        }
    }

    /// Signals the command unless it was waited for: its process id may belong to another process then.
    fn send_signal(&self, signal: Signal) {
        let Some(pid) = self.pid.filter(|_| self.process.id().is_some()) else { return };
        // Ignore a failure: the command may have just ended.
        let _ = match self.leads_group {
            true => kill_process_group(pid, signal),
            false => kill_process(pid, signal),
        };
    }
}

/// Passes output on to this process's, and returns it unless it is larger than [`MAX_OUTPUT`].
async fn pass_output_on(mut from: ChildStdout) -> Option<Vec<u8>> {
    let mut kept = Some(Vec::new());
    let mut out = tokio::io::stdout();
    let mut buffer = vec![0; 16 << 10];
    while let Ok(length @ 1..) = from.read(&mut buffer).await {
        let read = &buffer[..length];
        // Ignore a closed pipe: its reader wants no more.
        let _ = out.write_all(read).await;
        let _ = out.flush().await;
        if let Some(mut before) = kept.take().filter(|kept| kept.len() + length <= MAX_OUTPUT) {
            before.extend_from_slice(read);
            kept = Some(before);
        }
    }
    kept
}

/// The exit code as a shell reports it.
pub(super) fn exit_code(status: ExitStatus) -> u8 {
    let code = status.code().or_else(|| Some(128 + status.signal()?)).unwrap_or(1);
    u8::try_from(code & 0xff).unwrap_or(1)
}

/// The first argument of the process between hapax and the command. No part of the command line's
/// grammar: errors and completions list what people may type.
const BOUND: &str = "__hapax-bound-command";

/// Becomes the command, if this process was started as the one between hapax and a command: with the
/// arguments [`BOUND`], the process id of hapax, and the command. Returns only where that fails.
///
/// If hapax is killed with SIGKILL, nothing renews the lease, and a command that went on would soon run
/// beside its successor. Linux can kill a process when its parent dies, but only the process itself can
/// ask for that. So hapax starts itself, asks, and becomes the command.
pub(crate) fn become_bound_command(
    mut arguments: impl Iterator<Item = OsString>,
) -> Option<ExitCode> {
    arguments.next();
    if arguments.next()? != BOUND {
        return None;
    }
    let parent = arguments.next().and_then(|text| text.to_str()?.parse().ok());
    let command: Vec<_> = arguments.collect();
    Some(match parent {
        Some(parent) if !command.is_empty() => become_command(parent, &command),
        _ => ExitCode::FAILURE,
    })
}

/// The command, which dies with this process.
#[cfg(target_os = "linux")]
pub(crate) fn bound_command(command: &[OsString]) -> Command {
    let mut bound = Command::new("/proc/self/exe");
    bound.arg(BOUND).arg(std::process::id().to_string()).args(command);
    bound
}

/// The command; only Linux can bind it to this process.
#[cfg(not(target_os = "linux"))]
pub(crate) fn bound_command(command: &[OsString]) -> Command {
    let mut plain = Command::new(&command[0]);
    plain.args(&command[1..]);
    plain
}

/// Becomes the command; returns only where that fails.
fn become_command(parent: i32, command: &[OsString]) -> ExitCode {
    use std::os::unix::process::CommandExt;
    #[cfg(target_os = "linux")]
    die_with_parent();
    // The parent may have died before it was bound.
    if std::os::unix::process::parent_id().cast_signed() != parent {
        return ExitCode::FAILURE;
    }
    let error = Command::new(&command[0]).args(&command[1..]).exec();
    not_started(command, &error).into()
}

#[cfg(target_os = "linux")]
fn die_with_parent() {
    // Where this is forbidden the command runs all the same, with its lease.
    let _ = rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL));
}

/// The signals that ask a process to end.
pub(super) struct ForwardedSignals(mpsc::UnboundedReceiver<i32>);

impl ForwardedSignals {
    /// Catches the signals from now on. A signal that this process was started to ignore stays ignored,
    /// as `nohup` and background jobs of a shell expect.
    pub(super) fn install() -> io::Result<Self> {
        let (sender, receiver) = mpsc::unbounded_channel();
        let ignored = ignored();
        let all = [
            SignalKind::terminate(),
            SignalKind::interrupt(),
            SignalKind::quit(),
            SignalKind::hangup(),
        ];
        for kind in all {
            let number = kind.as_raw_value();
            if ignored & (1 << (number - 1)) != 0 {
                continue;
            }
            let mut stream = signal(kind)?;
            let sender = sender.clone();
            tokio::spawn(async move {
                while stream.recv().await.is_some() && sender.send(number).is_ok() {}
            });
        }
        Ok(Self(receiver))
    }

    pub(super) async fn next(&mut self) -> i32 {
        match self.0.recv().await {
            Some(signal) => signal,
            // All signals are ignored.
            None => std::future::pending().await,
        }
    }

    pub(super) fn try_next(&mut self) -> Option<i32> {
        self.0.try_recv().ok()
    }
}

/// The mask of ignored signals; zero outside Linux.
fn ignored() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}
