//! `hapax lock`: take, renew, release and look at locks; run a command under one.

use std::process::ExitCode;
use std::time::Duration;

use clap::Subcommand;
use hapax::millis;
use hyper::Method;
use serde_json::json;

use super::error::exit_code_of;
use super::note::NoteArgs;
use super::{
    ClientRequest, ListPage, PageArgs, ServerActionArgs, duration, shown_key, with_exit_codes,
};
use crate::api::{ListedLock, LockList};
use crate::leased_run::{self, LockRunArgs};

#[derive(Subcommand)]
#[command(after_help = with_exit_codes("\
Examples:
  hapax lock run nightly-report -- ./report.sh    never two at a time
  hapax lock take deploy --ttl 10m                prints the ticket
  hapax lock renew deploy --ttl 10m --ticket 5f2c…
  hapax lock release deploy --ticket 5f2c…
  hapax lock show deploy
  hapax lock list                                 who holds which
  hapax lock force-release deploy --note 'its machine is gone'"))]
pub(crate) enum LockAction {
    /// Take a lock and print its ticket and fence
    #[command(after_help = with_exit_codes("\
Examples:
  hapax lock take deploy --ttl 10m
  hapax lock take deploy --ttl 10m --wait 30s     waits for its turn
  ticket=$(hapax lock take deploy --json | jq -r .token)"))]
    Take {
        /// The lock's name, 1 to 255 bytes of printable ASCII
        key: String,
        /// How long it lasts without renewal, at most 1h
        #[arg(long, value_parser = duration, default_value = "5s")]
        ttl: Duration,
        /// How long to wait while another owner has it, at most 60s
        #[arg(long, value_parser = duration, default_value = "0s")]
        wait: Duration,
    },
    /// Make a lock last longer
    #[command(after_help = with_exit_codes("\
Examples:
  hapax lock renew deploy --ttl 10m --ticket 5f2c…"))]
    Renew {
        #[command(flatten)]
        taken: TakenLockArgs,
        /// How long it lasts from now on, at most 1h
        #[arg(long, value_parser = duration, default_value = "5s")]
        ttl: Duration,
    },
    /// Release a lock, if it is still this ticket's
    #[command(after_help = with_exit_codes("\
Examples:
  hapax lock release deploy --ticket 5f2c…"))]
    Release(TakenLockArgs),
    /// Show whether a lock is held, and for how long
    #[command(after_help = with_exit_codes("\
Examples:
  hapax lock show deploy
  hapax lock show deploy --json | jq .held"))]
    Show {
        /// The lock's name
        key: String,
    },
    /// List the locks that are held
    #[command(after_help = with_exit_codes("\
Examples:
  hapax lock list
  hapax lock list --all --json | jq -c '.locks[]'

Needs the scope `read` (names masked) or `admin` where the server has tokens. On Redis locks with
verbatim names are left out."))]
    List(PageArgs),
    /// Release a lock in place of its owner
    #[command(after_help = with_exit_codes("\
Examples:
  hapax lock force-release deploy --note 'its machine is gone'

Find out first that the owner is gone: until its next renewal it believes that it holds the lock. What
checks the fence refuses its writes. Needs the scope `admin`; a lock that nobody holds is 3."))]
    ForceRelease {
        /// The lock's name
        key: String,
        #[command(flatten)]
        note: NoteArgs,
    },
    /// Run a command while holding a lock
    Run(LockRunArgs),
}

#[derive(clap::Args)]
pub(crate) struct TakenLockArgs {
    /// The lock's name
    key: String,
    /// The ticket that `take` printed
    #[arg(long, env = "HAPAX_TICKET", hide_env_values = true)]
    ticket: String,
}

pub(crate) async fn run(args: ServerActionArgs<LockAction>) -> anyhow::Result<ExitCode> {
    let ServerActionArgs { server, action } = args;
    let request = match action {
        LockAction::Run(run) => {
            return exit_code_of(server.json, leased_run::run_under_lock(run, &server).await);
        }
        LockAction::List(pages) => {
            let request = || ClientRequest::new(Method::GET, &["operator", "locks"]);
            let listed =
                async { pages.print::<LockList>(&server.backend()?, request, server.json).await };
            return exit_code_of(server.json, listed.await);
        }
        LockAction::Take { key, ttl, wait } => take_request(&key, ttl, wait),
        LockAction::Renew { taken, ttl } => renew_request(&taken.key, &taken.ticket, ttl),
        LockAction::Release(taken) => release_request(&taken.key, &taken.ticket),
        LockAction::ForceRelease { key, note } => {
            note.add_to(ClientRequest::new(Method::DELETE, &["operator", "locks", &key]))
        }
        LockAction::Show { key } => ClientRequest::new(Method::GET, &["locks", &key]),
    };
    let outcome = async { server.backend()?.print(request, server.json).await };
    exit_code_of(server.json, outcome.await)
}

impl ListPage for LockList {
    const HEAD: &'static [&'static str] = &["TAKEN", "EXPIRES IN", "FENCE", "OWNER", "KEY"];

    fn into_rows(self) -> (Vec<Vec<String>>, Option<String>) {
        let time = |ms| humantime::format_duration(Duration::from_millis(ms)).to_string();
        let row = |lock: ListedLock| {
            let taken = format!("{} ago", time(lock.taken_ms_ago));
            let owner = lock.label.unwrap_or_else(|| "-".into());
            let expires = time(lock.expires_in_ms);
            vec![taken, expires, lock.fence.to_string(), owner, shown_key(lock.key)]
        };
        (self.locks.into_iter().map(row).collect(), self.next)
    }
}

pub(crate) fn take_request(key: &str, ttl: Duration, wait: Duration) -> ClientRequest {
    ClientRequest::new(Method::POST, &["locks", key])
        .json(&json!({"ttl_ms": millis(ttl), "wait_ms": millis(wait)}))
        .waiting(wait)
}

pub(crate) fn renew_request(key: &str, ticket: &str, ttl: Duration) -> ClientRequest {
    ClientRequest::new(Method::PUT, &["locks", key])
        .json(&json!({"token": ticket, "ttl_ms": millis(ttl)}))
}

pub(crate) fn release_request(key: &str, ticket: &str) -> ClientRequest {
    ClientRequest::new(Method::DELETE, &["locks", key]).header("hapax-token", Some(ticket.into()))
}
