//! A command of the shell that runs under a lease: `hapax lock run`, `hapax command run` and
//! `hapax inbox run`.
//!
//! ```text
//!   take ──► start the command ──► it ends ──────────────► release or complete ──► its exit code
//!              │ renew every third of the lease    ▲
//!              ├─ a signal: passed on to it        │
//!              └─ lost, in doubt, or too long: SIGTERM, later SIGKILL
//! ```
//!
//! The command is ended *before* another owner can take over, as far as that can be known: renewals
//! that get no answer end it while the last confirmed lease still runs.

pub(crate) mod child;
mod effect;
mod lock;

use std::ffi::OsString;
use std::fmt::Display;
use std::process::ExitStatus;
use std::time::Duration;

use tokio::time::Instant;

use crate::background_writer::{LineImportance, write_to_stderr};
use crate::client::error::HELD;
use crate::client::{CliError, duration};
use child::{ForwardedSignals, SupervisedChild};

pub(crate) use effect::{CommandRunArgs, InboxRunArgs};
pub(crate) use lock::{LockRunArgs, run_under_lock};

/// The lease was lost while the command ran.
const LOST: u8 = 76;
/// The command took longer than `--max-hold`; the same as `timeout`'s.
const TOO_LONG: u8 = 124;
/// How long one request waits for another owner; signals are handled between requests.
const WAIT_SLICE: Duration = Duration::from_secs(2);
/// The shortest lease of which a third is enough time for a renewal.
const SHORTEST: Duration = Duration::from_millis(300);

/// The flags of everything that runs a command.
#[derive(clap::Args)]
pub(crate) struct RunFlags {
    /// How long the command may take
    #[arg(long, value_parser = duration, default_value = "1h")]
    max_hold: Duration,
    /// How long the command has between SIGTERM and SIGKILL
    #[arg(long, value_parser = duration, default_value = "10s")]
    grace: Duration,
    /// The command and its arguments
    #[arg(required = true, last = true, value_name = "CMD")]
    command: Vec<OsString>,
}

/// Prints a note without waiting: the command shares standard error and may have filled it, and its lease has to be
/// renewed, or the command be ended, all the same.
fn note_in_background(text: impl Display) {
    write_to_stderr(format!("{text}\n").as_bytes(), LineImportance::Error);
}

/// A lease of which a third is enough time for a renewal.
fn renewable(text: &str) -> Result<Duration, String> {
    let lease = duration(text)?;
    if lease < SHORTEST {
        return Err("a lease that is renewed lasts at least 300ms".into());
    }
    Ok(lease)
}

/// The answer to the question for a lease.
enum Turn<T> {
    /// The lease counts from this moment, before its request, so that it never seems longer than it is.
    Granted(T, Instant),
    /// A signal came first. A lease that was granted all the same has to be given back.
    Signalled(i32, Option<T>),
}

/// Asks for a lease until it is granted, `wait` is over, or a signal arrives. No request is abandoned:
/// it could still be granted, and nobody would renew or release it.
async fn take<T>(
    lease: Duration,
    wait: Duration,
    signals: &mut ForwardedSignals,
    ask: impl AsyncFn(Duration) -> Result<T, CliError>,
) -> Result<Turn<T>, CliError> {
    let start = Instant::now();
    let slice = WAIT_SLICE.min(lease / 3);
    loop {
        let asked_at = Instant::now();
        let answer = ask(wait.saturating_sub(start.elapsed()).min(slice)).await;
        if let Some(signal) = signals.try_next() {
            return Ok(Turn::Signalled(signal, answer.ok()));
        }
        match answer {
            Ok(granted) => return Ok(Turn::Granted(granted, asked_at)),
            Err(error) if error.exit_code() == HELD && start.elapsed() < wait => {}
            Err(error) => return Err(error),
        }
    }
}

/// The exit code of a process that a signal ended.
fn signal_code(signal: i32) -> u8 {
    u8::try_from(128 + signal).unwrap_or(HELD)
}

/// Reports a command that could not be started, and returns the exit code.
fn not_started(command: &[OsString], error: &std::io::Error) -> u8 {
    note_in_background(format_args!("hapax: {}: {error}", command[0].to_string_lossy()));
    if error.kind() == std::io::ErrorKind::NotFound { 127 } else { 126 }
}

/// A lease that is renewed while the command runs.
trait LeaseRenewal {
    /// The name of the leased thing, for the notes.
    const WHAT: &'static str;

    fn lease(&self) -> Duration;

    /// Makes the lease last its whole time from now; gives up after `timeout`.
    async fn renew(&self, timeout: Duration) -> Result<(), RenewalFailure>;
}

enum RenewalFailure {
    /// The lease is not ours any more.
    Lost,
    NoAnswer,
}

/// How the command ended, and why hapax ended it, if it did.
struct Ended {
    status: ExitStatus,
    why: Option<EndReason>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum EndReason {
    Lost,
    TooLong,
}

/// Renews the lease and passes signals on until the command has ended.
async fn supervise<R: LeaseRenewal>(
    child: &mut SupervisedChild,
    renewal: &R,
    flags: &RunFlags,
    asked_at: Instant,
    signals: &mut ForwardedSignals,
) -> std::io::Result<Ended> {
    let mut lost = std::pin::pin!(renew_until_lost(renewal, flags.grace, asked_at));
    let too_long = tokio::time::sleep(flags.max_hold);
    let mut too_long = std::pin::pin!(too_long);
    let mut why = None;
    let mut kill_at: Option<Instant> = None;
    let (mut renewing, mut killed) = (true, false);
    let status = loop {
        let (reason, deadline) = tokio::select! {
            status = child.wait() => break status?,
            signal = signals.next() => {
                child.pass_on(signal);
                continue;
            }
            () = sleep_until(kill_at), if kill_at.is_some() && !killed => {
                killed = true;
                child.kill();
                continue;
            }
            // Renewal goes on while the command is being ended for another reason.
            at = &mut lost, if renewing => {
                renewing = false;
                let what = R::WHAT;
                note_in_background(format_args!(
                    "hapax: the {what} is lost, or cannot be renewed: ending the command"
                ));
                (EndReason::Lost, at)
            }
            () = &mut too_long, if why.is_none() => {
                note_in_background("hapax: --max-hold has passed: ending the command");
                (EndReason::TooLong, Instant::now() + flags.grace)
            }
        };
        if why.replace(reason).is_none() {
            child.terminate();
        }
        kill_at = Some(kill_at.map_or(deadline, |before| before.min(deadline)));
    };
    if why.is_some() {
        child.kill_rest();
    }
    Ok(Ended { status, why })
}

/// Renews the lease after every third of it, and returns the time at which the command has to be over
/// when the lease is lost or can no longer be confirmed.
///
/// Where renewals get no answer, that time is the end of the last confirmed lease, and this returns
/// early enough to end the command gently.
async fn renew_until_lost(
    renewal: &impl LeaseRenewal,
    grace: Duration,
    asked_at: Instant,
) -> Instant {
    let lease = renewal.lease();
    let third = lease / 3;
    let mut alive_until = asked_at + lease;
    let mut next = asked_at + third;
    loop {
        tokio::time::sleep_until(next).await;
        let now = Instant::now();
        let give_up_at = alive_until - third.min(grace);
        let left = give_up_at.saturating_duration_since(now);
        if left.is_zero() {
            return alive_until;
        }
        match renewal.renew(left).await {
            Ok(()) => {
                alive_until = now + lease;
                next = now + third;
            }
            Err(RenewalFailure::Lost) => return Instant::now() + grace,
            // Retry soon, but not in a hot loop: the server may be restarting.
            Err(RenewalFailure::NoAnswer) => next = (Instant::now() + third / 8).min(give_up_at),
        }
    }
}

async fn sleep_until(when: Option<Instant>) {
    if let Some(when) = when {
        tokio::time::sleep_until(when).await;
    }
}

fn local(error: std::io::Error) -> CliError {
    CliError::Local(error.to_string())
}
