//! `hapax lock run`: a command that never runs twice at a time.

use std::process::ExitCode;
use std::time::Duration;

use super::child::{ForwardedSignals, SupervisedChild, exit_code};
use super::{
    EndReason, Ended, LOST, LeaseRenewal, RenewalFailure, RunFlags, TOO_LONG, Turn, local,
    not_started, note_in_background, renewable, signal_code, supervise, take,
};
use crate::client::{Backend, CliError, LockRefusal, LockTicket, ServerArgs, duration};

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
    #[arg(long, value_parser = renewable, default_value = "30s")]
    ttl: Duration,
    /// How long to wait while another owner has the lock
    #[arg(long, value_parser = duration, default_value = "0s")]
    wait: Duration,
    /// Use this store directly instead of a server
    #[arg(long, value_name = "URL")]
    store: Option<String>,
    #[command(flatten)]
    run: RunFlags,
}

pub(crate) async fn run_under_lock(
    args: LockRunArgs,
    server: &ServerArgs,
) -> Result<ExitCode, CliError> {
    let backend = Backend::open_for_locks(server, args.store.as_deref()).await?;
    let LockRunArgs { key, ttl, run, .. } = &args;
    let mut signals = ForwardedSignals::install().map_err(local)?;
    let ask =
        async |slice| backend.take_lock(key, *ttl, slice).await.map_err(LockRefusal::into_error);
    let (ticket, asked_at) = match take(*ttl, args.wait, &mut signals, ask).await? {
        Turn::Granted(ticket, asked_at) => (ticket, asked_at),
        Turn::Signalled(signal, ticket) => {
            if let Some(ticket) = ticket {
                let _ = backend.release_lock(key, &ticket).await;
            }
            return Ok(signal_code(signal).into());
        }
    };
    let environment = [("HAPAX_FENCE", ticket.fence.to_string())];
    let mut child = match SupervisedChild::start(&run.command, &environment, false) {
        Ok(child) => child,
        Err(error) => {
            let _ = backend.release_lock(key, &ticket).await;
            return Ok(not_started(&run.command, &error).into());
        }
    };
    let held = HeldLock { backend: &backend, key, ttl: *ttl, ticket: &ticket };
    let ended = supervise(&mut child, &held, run, asked_at, &mut signals).await.map_err(local)?;
    let released = backend.release_lock(key, &ticket).await;
    Ok(final_code(ended, released, *ttl).into())
}

struct HeldLock<'a> {
    backend: &'a Backend,
    key: &'a str,
    ttl: Duration,
    ticket: &'a LockTicket,
}

impl LeaseRenewal for HeldLock<'_> {
    const WHAT: &'static str = "lock";

    fn lease(&self) -> Duration {
        self.ttl
    }

    async fn renew(&self, timeout: Duration) -> Result<(), RenewalFailure> {
        let renewed = self.backend.renew_lock(self.key, self.ticket, self.ttl, timeout).await;
        renewed.map_err(|refusal| match refusal {
            LockRefusal::Lost(_) => RenewalFailure::Lost,
            LockRefusal::Held(_) | LockRefusal::Failed(_) => RenewalFailure::NoAnswer,
        })
    }
}

fn final_code(ended: Ended, released: Result<(), LockRefusal>, ttl: Duration) -> u8 {
    let mut why = ended.why;
    match released {
        Err(LockRefusal::Lost(_)) if why != Some(EndReason::Lost) => {
            note_in_background("hapax: the lock was lost before the command ended");
            why = Some(EndReason::Lost);
        }
        // A lost lock needs no release, so its error is not reported.
        Err(LockRefusal::Held(error) | LockRefusal::Failed(error))
            if why != Some(EndReason::Lost) =>
        {
            let ttl = humantime::format_duration(ttl);
            let text = error.message();
            note_in_background(format_args!(
                "hapax: not released; it expires within {ttl}: {text}"
            ));
        }
        _ => {}
    }
    match why {
        Some(EndReason::Lost) => LOST,
        Some(EndReason::TooLong) => TOO_LONG,
        None => exit_code(ended.status),
    }
}
