//! `hapax lock run`: a command that never runs twice at a time.
//!
//! ```text
//!   take ──► start the command ──► it ends ──────────────► release ──► its exit code
//!              │ renew every ttl/3                 ▲
//!              ├─ a signal: passed on to it        │
//!              └─ lost, in doubt, or too long: SIGTERM, later SIGKILL
//! ```
//!
//! The command is ended *before* the lock could be somebody else's wherever that can be known:
//! renewals that get no answer end it while the last confirmed lease still runs.

mod child;
mod door;
mod keep;
mod signals;
pub(crate) mod tied;

use std::process::ExitCode;
use std::time::Duration;

use tokio::time::Instant;

use crate::client::failure::HELD;
use crate::client::{Connect, Failure, duration, note};
use child::Child;
use door::{Door, Refusal, Ticket};
use keep::Keeper;
use signals::Signals;

/// The lock was lost while the command ran.
const LOST: u8 = 76;
/// The command took longer than `--max-hold`; the same as `timeout`'s.
const TOO_LONG: u8 = 124;
/// How long one request waits for the lock: a signal is seen in between.
const SLICE: Duration = Duration::from_secs(2);

const EXAMPLES: &str = "\
Examples:
  hapax lock run nightly-report -- ./report.sh
  hapax lock run deploy --wait 10m -- ./deploy.sh production
  hapax lock run backup --max-hold 6h -- sh -c 'pg_dump shop | gzip > shop.gz'
  hapax lock run import --store sqlite:/var/lib/hapax.db -- ./import.sh    without a server

The command finds HAPAX_FENCE in its environment: a number that grows with every owner. What it
writes to can refuse a lower one than it has seen.

SIGTERM, SIGINT, SIGQUIT and SIGHUP are passed on to the command; the lock is released when it has
ended. Away from a terminal the command has a process group of its own, and signals go to all of it.
Should hapax itself be killed, the command is killed with it (on Linux), and the lock runs out.

Exit codes:
  the command's own; 128 + N where signal N ended it
  69   the server or the store cannot be reached: the command did not run
  75   somebody else has the lock: the command did not run
  76   the lock was lost while the command ran; the command was ended
  124  the command took longer than --max-hold and was ended
  126  the command cannot be run; 127 there is no such command";

/// The arguments of `hapax lock run`.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// The lock's name, 1 to 255 bytes of printable ASCII
    key: String,
    /// How long the lock lasts without renewal; it is renewed three times as often
    #[arg(long, value_parser = lasting, default_value = "30s")]
    ttl: Duration,
    /// How long to wait where somebody else has the lock
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

/// A third of it must still be time enough for a renewal.
fn lasting(text: &str) -> Result<Duration, String> {
    let ttl = duration(text)?;
    if ttl < Duration::from_millis(300) {
        return Err("a lock that is renewed lasts at least 300ms".into());
    }
    Ok(ttl)
}

pub(crate) async fn run(args: Args, connect: &Connect) -> Result<ExitCode, Failure> {
    let door = Door::open(&args, connect).await?;
    let mut signals = Signals::install().map_err(local)?;
    let (ticket, asked_at) = match take(&door, &args, &mut signals).await? {
        Taken::Yes(ticket, asked_at) => (ticket, asked_at),
        Taken::Signalled(signal) => return Ok(signalled(signal)),
    };
    let child = match Child::start(&args.command, ticket.fence) {
        Ok(child) => child,
        Err(error) => {
            let _ = door.release(&ticket).await;
            let name = args.command[0].to_string_lossy();
            note(format_args!("hapax: {name}: {error}"));
            return Ok(if error.kind() == std::io::ErrorKind::NotFound { 127 } else { 126 }.into());
        }
    };
    let keeper = Keeper { door: &door, ticket: &ticket, ttl: args.ttl, grace: args.grace };
    let ended = attend(child, keeper, asked_at, &args, &mut signals).await.map_err(local)?;
    let released = door.release(&ticket).await;
    Ok(ended.exit(released, args.ttl))
}

enum Taken {
    Yes(Ticket, Instant),
    Signalled(i32),
}

/// Never abandons a request: a lock that was granted to a request nobody listens to would be held
/// for its whole TTL.
async fn take(door: &Door, args: &Args, signals: &mut Signals) -> Result<Taken, Failure> {
    let deadline = Instant::now() + args.wait;
    let slice = SLICE.min(args.ttl / 3);
    loop {
        let asked_at = Instant::now();
        let left = deadline.saturating_duration_since(asked_at);
        let answer = door.take(args.ttl, left.min(slice)).await;
        if let Some(signal) = signals.seen() {
            if let Ok(ticket) = answer {
                let _ = door.release(&ticket).await;
            }
            return Ok(Taken::Signalled(signal));
        }
        match answer {
            Ok(ticket) => return Ok(Taken::Yes(ticket, asked_at)),
            Err(Refusal::Held(_)) if Instant::now() < deadline => {}
            Err(Refusal::Held(failure) | Refusal::Lost(failure) | Refusal::Failed(failure)) => {
                return Err(failure);
            }
        }
    }
}

/// How the command ended, and what happened to the lock before it did.
struct Ended {
    status: std::process::ExitStatus,
    why: Option<Why>,
}

/// Why the command had to end.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Why {
    Lost,
    TooLong,
}

/// Watches over the command until it has ended.
async fn attend(
    mut child: Child,
    keeper: Keeper<'_>,
    asked_at: Instant,
    args: &Args,
    signals: &mut Signals,
) -> std::io::Result<Ended> {
    let mut lost = std::pin::pin!(keeper.until_lost(asked_at));
    let too_long_at = Instant::now() + args.max_hold;
    let mut why = None;
    let mut kill_at: Option<Instant> = None;
    let (mut kept, mut killed) = (true, false);
    let status = loop {
        let doom = tokio::select! {
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
            // It goes on being renewed while the command is being ended for another reason.
            at = &mut lost, if kept => {
                kept = false;
                note("hapax: the lock is lost, or cannot be renewed: ending the command");
                (Why::Lost, at)
            }
            () = tokio::time::sleep_until(too_long_at), if why.is_none() => {
                note("hapax: --max-hold has passed: ending the command");
                (Why::TooLong, Instant::now() + args.grace)
            }
        };
        if why.replace(doom.0).is_none() {
            child.terminate();
        }
        kill_at = Some(kill_at.map_or(doom.1, |before| before.min(doom.1)));
    };
    if why.is_some() {
        child.kill_rest();
    }
    Ok(Ended { status, why })
}

async fn sleep_until(when: Option<Instant>) {
    if let Some(when) = when {
        tokio::time::sleep_until(when).await;
    }
}

impl Ended {
    fn exit(self, released: Result<(), Refusal>, ttl: Duration) -> ExitCode {
        let mut why = self.why;
        match released {
            Err(Refusal::Lost(_)) if why != Some(Why::Lost) => {
                note("hapax: the lock was lost before the command ended");
                why = Some(Why::Lost);
            }
            // A lost lock needs no release, and more words would hide the ones that matter.
            Err(Refusal::Held(failure) | Refusal::Failed(failure)) if why != Some(Why::Lost) => {
                let ttl = humantime::format_duration(ttl);
                let text = failure.text();
                note(format_args!("hapax: not released; it runs out within {ttl}: {text}"));
            }
            _ => {}
        }
        match why {
            Some(Why::Lost) => LOST.into(),
            Some(Why::TooLong) => TOO_LONG.into(),
            None => child::exit_code(self.status).into(),
        }
    }
}

fn signalled(signal: i32) -> ExitCode {
    u8::try_from(128 + signal).unwrap_or(HELD).into()
}

fn local(error: std::io::Error) -> Failure {
    Failure::Local(error.to_string())
}
