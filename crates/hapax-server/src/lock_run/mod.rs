//! `hapax lock run`: a command that never runs twice at a time.
//!
//! ```text
//!   take ──► start the command ──► it ends ──────────────► release ──► its exit code
//!              │ renew every ttl/3                 ▲
//!              ├─ a signal: passed on to it        │
//!              └─ lost, in doubt, or too long: SIGTERM, later SIGKILL
//! ```
//!
//! The command is ended *before* another owner can take the lock, as far as that can be known: renewals
//! that get no answer end it while the last confirmed lease still runs.

pub(crate) mod child;

use std::process::ExitCode;
use std::time::Duration;

use tokio::time::Instant;

use crate::client::error::HELD;
use crate::client::{Backend, CliError, LockRefusal, LockTicket, ServerArgs, duration, print_note};
use child::{ForwardedSignals, LockedChild};

/// The lock was lost while the command ran.
const LOST: u8 = 76;
/// The command took longer than `--max-hold`; the same as `timeout`'s.
const TOO_LONG: u8 = 124;
/// How long one request waits for the lock; signals are handled between requests.
const WAIT_SLICE: Duration = Duration::from_secs(2);

#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  hapax lock run nightly-report -- ./report.sh
  hapax lock run deploy --wait 10m -- ./deploy.sh production
  hapax lock run backup --max-hold 6h -- sh -c 'pg_dump shop | gzip > shop.gz'
  hapax lock run import --store sqlite:/var/lib/hapax.db -- ./import.sh    without a server

The environment variable HAPAX_FENCE of the command is a number that grows with every owner. A
system that the command writes to can refuse a lower number than it has seen.

SIGTERM, SIGINT, SIGQUIT and SIGHUP are passed on to the command; the lock is released when it has
ended. Without a terminal the command has its own process group, and signals go to the whole group.
If hapax itself is killed, the command is killed with it (on Linux), and the lock expires.

Exit codes:
  the command's own; 128 + N where signal N ended it
  69   the server or the store cannot be reached: the command did not run
  75   another owner has the lock: the command did not run
  76   the lock was lost while the command ran; the command was ended
  124  the command took longer than --max-hold and was ended
  126  the command cannot be run; 127 there is no such command")]
pub(crate) struct LockRunArgs {
    /// The lock's name, 1 to 255 bytes of printable ASCII
    key: String,
    /// How long the lock lasts without renewal; it is renewed after a third of this time
    #[arg(long, value_parser = renewable_ttl, default_value = "30s")]
    ttl: Duration,
    /// How long to wait while another owner has the lock
    #[arg(long, value_parser = duration, default_value = "0s")]
    wait: Duration,
    /// How long the command may take
    #[arg(long, value_parser = duration, default_value = "1h")]
    max_hold: Duration,
    /// How long the command has between SIGTERM and SIGKILL
    #[arg(long, value_parser = duration, default_value = "10s")]
    grace: Duration,
    /// Use this store directly instead of a server
    #[arg(long, value_name = "URL")]
    store: Option<String>,
    /// The command and its arguments
    #[arg(required = true, last = true, value_name = "CMD")]
    command: Vec<std::ffi::OsString>,
}

/// A TTL of which a third is enough time for a renewal.
fn renewable_ttl(text: &str) -> Result<Duration, String> {
    let ttl = duration(text)?;
    if ttl < Duration::from_millis(300) {
        return Err("a lock that is renewed lasts at least 300ms".into());
    }
    Ok(ttl)
}

pub(crate) async fn run(args: LockRunArgs, server: &ServerArgs) -> Result<ExitCode, CliError> {
    let backend = Backend::open_for_locks(server, args.store.as_deref()).await?;
    let mut signals = ForwardedSignals::install().map_err(local)?;
    let (ticket, asked_at) = match take(&backend, &args, &mut signals).await? {
        Ok(taken) => taken,
        Err(signal) => return Ok(u8::try_from(128 + signal).unwrap_or(HELD).into()),
    };
    let child = match LockedChild::start(&args.command, ticket.fence) {
        Ok(child) => child,
        Err(error) => {
            let _ = backend.release_lock(&args.key, &ticket).await;
            let name = args.command[0].to_string_lossy();
            print_note(format_args!("hapax: {name}: {error}"));
            return Ok(if error.kind() == std::io::ErrorKind::NotFound { 127 } else { 126 }.into());
        }
    };
    let renewal = LockRenewal { backend: &backend, args: &args, ticket: &ticket };
    let ended = supervise(child, renewal, asked_at, &mut signals).await.map_err(local)?;
    let released = backend.release_lock(&args.key, &ticket).await;
    Ok(ended.exit_code(released, args.ttl))
}

/// Takes the lock, unless a signal arrives first. An abandoned request could still be granted, and hold the lock for its whole
/// TTL.
async fn take(
    backend: &Backend,
    args: &LockRunArgs,
    signals: &mut ForwardedSignals,
) -> Result<Result<(LockTicket, Instant), i32>, CliError> {
    let deadline = Instant::now() + args.wait;
    let slice = WAIT_SLICE.min(args.ttl / 3);
    loop {
        let asked_at = Instant::now();
        let left = deadline.saturating_duration_since(asked_at);
        let response = backend.take_lock(&args.key, args.ttl, left.min(slice)).await;
        if let Some(signal) = signals.try_next() {
            if let Ok(ticket) = response {
                let _ = backend.release_lock(&args.key, &ticket).await;
            }
            return Ok(Err(signal));
        }
        match response {
            Ok(ticket) => return Ok(Ok((ticket, asked_at))),
            Err(LockRefusal::Held(_)) if Instant::now() < deadline => {}
            Err(refusal) => return Err(refusal.into_error()),
        }
    }
}

/// How the command ended, and why hapax ended it, if it did.
struct Ended {
    status: std::process::ExitStatus,
    why: Option<EndReason>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum EndReason {
    Lost,
    TooLong,
}

/// Renews the lock and passes signals on until the command has ended.
async fn supervise(
    mut child: LockedChild,
    renewal: LockRenewal<'_>,
    asked_at: Instant,
    signals: &mut ForwardedSignals,
) -> std::io::Result<Ended> {
    let args = renewal.args;
    let mut lost = std::pin::pin!(renewal.renew_until_lost(asked_at));
    let too_long_at = Instant::now() + args.max_hold;
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
                print_note("hapax: the lock is lost, or cannot be renewed: ending the command");
                (EndReason::Lost, at)
            }
            () = tokio::time::sleep_until(too_long_at), if why.is_none() => {
                print_note("hapax: --max-hold has passed: ending the command");
                (EndReason::TooLong, Instant::now() + args.grace)
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

struct LockRenewal<'a> {
    backend: &'a Backend,
    args: &'a LockRunArgs,
    ticket: &'a LockTicket,
}

impl LockRenewal<'_> {
    /// Renews the lock every third of its TTL, and returns the time at which the command has to be over
    /// when the lock is lost or can no longer be confirmed.
    ///
    /// Where renewals get no answer, that time is the end of the last confirmed lease, and this returns
    /// early enough to end the command gently.
    async fn renew_until_lost(&self, asked_at: Instant) -> Instant {
        let LockRunArgs { key, ttl, grace, .. } = self.args;
        let third = *ttl / 3;
        // Leases count from before their request, so that they never seem longer than they are.
        let mut alive_until = asked_at + *ttl;
        let mut next = asked_at + third;
        loop {
            tokio::time::sleep_until(next).await;
            let now = Instant::now();
            let give_up_at = alive_until - third.min(*grace);
            let left = give_up_at.saturating_duration_since(now);
            if left.is_zero() {
                return alive_until;
            }
            match self.backend.renew_lock(key, self.ticket, *ttl, left).await {
                Ok(()) => {
                    alive_until = now + *ttl;
                    next = now + third;
                }
                Err(LockRefusal::Lost(_)) => return Instant::now() + *grace,
                // Retry soon, but not in a hot loop: the server may be restarting.
                Err(_) => next = (Instant::now() + third / 8).min(give_up_at),
            }
        }
    }
}

async fn sleep_until(when: Option<Instant>) {
    if let Some(when) = when {
        tokio::time::sleep_until(when).await;
    }
}

impl Ended {
    fn exit_code(self, released: Result<(), LockRefusal>, ttl: Duration) -> ExitCode {
        let mut why = self.why;
        match released {
            Err(LockRefusal::Lost(_)) if why != Some(EndReason::Lost) => {
                print_note("hapax: the lock was lost before the command ended");
                why = Some(EndReason::Lost);
            }
            // A lost lock needs no release, so its error is not reported.
            Err(LockRefusal::Held(error) | LockRefusal::Failed(error))
                if why != Some(EndReason::Lost) =>
            {
                let ttl = humantime::format_duration(ttl);
                let text = error.message();
                print_note(format_args!("hapax: not released; it expires within {ttl}: {text}"));
            }
            _ => {}
        }
        match why {
            Some(EndReason::Lost) => LOST.into(),
            Some(EndReason::TooLong) => TOO_LONG.into(),
            None => child::exit_code(self.status).into(),
        }
    }
}

fn local(error: std::io::Error) -> CliError {
    CliError::Local(error.to_string())
}
