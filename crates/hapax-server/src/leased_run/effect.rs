//! `hapax command run` and `hapax inbox run`: a command of the shell that has its effect once.

use std::io::Write;
use std::process::ExitCode;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use hapax::millis;
use hyper::Method;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use tokio::time::Instant;

use super::child::{ForwardedSignals, SupervisedChild, exit_code};
use super::{
    EndReason, LOST, LeaseRenewal, RenewalFailure, RunFlags, TOO_LONG, Turn, local, not_started,
    note_in_background, renewable, signal_code, supervise, take,
};
use crate::client::command::{BeginFlags, CommandName, set_body};
use crate::client::error::CONFLICT;
use crate::client::inbox::MessageArgs;
use crate::client::{Backend, CliError, ClientRequest, duration};

/// The header of a completed command whose output was too large to be kept.
const NOT_KEPT: &str = "hapax-output";

#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  hapax command run pay order-1 -- ./pay.sh order-1
  hapax command run import 2026-11-16 --wait 10m -- ./import.sh
  hapax command run pay order-1 --on-unknown rerun -- ./pay.sh order-1
  hapax command run pay order-1 --store sqlite:hapax.db -- ./pay.sh order-1    without a server

The lease is renewed while the command runs. Exit code 0 completes the command with its output (up to
1 MiB), which later runs print instead of running it again. Another exit code gives it back as failed: it
may be tried again. If a signal, --max-hold or a lost lease ended it, or hapax itself was killed, the
outcome is unknown: find out whether it ran, then `hapax command settle` or `release`.

HAPAX_FENCE and HAPAX_ATTEMPT of the command are numbers: the fence grows with every attempt, and a
system that the command writes to can refuse a lower one than it has seen.

Exit codes:
  0    it ran, now or before
  the command's own; 128 + N where signal N ended it
  4    the outcome of an earlier run is unknown, or the fingerprint is another: it did not run
  69   the server or the store cannot be reached
  75   another owner is running it: it did not run
  76   the lease was lost while it ran; it was ended
  124  it took longer than --max-hold and was ended
  126  it cannot be run; 127 there is no such command")]
pub(crate) struct CommandRunArgs {
    #[command(flatten)]
    name: CommandName,
    /// How long the command is yours without renewal; it is renewed after a third of this time
    #[arg(long, value_parser = renewable, default_value = "30s")]
    lease: Duration,
    /// How long to wait while another owner runs it
    #[arg(long, value_parser = duration, default_value = "0s")]
    wait: Duration,
    #[command(flatten)]
    begin: BeginFlags,
    #[command(flatten)]
    run: RunFlags,
}

#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  hapax inbox run billing 0198f2… -- ./send-invoice.sh
  hapax inbox run billing 0198f2… --store sqlite:hapax.db -- ./send-invoice.sh    without a server

The lease is renewed while the command runs. Exit code 0 settles the message: from then on it is a
duplicate, and nothing runs. Another exit code gives it back. If a signal, --max-hold or a lost lease
ended the command, or hapax itself was killed, the next delivery takes over when the lease has expired.

HAPAX_FENCE and HAPAX_ATTEMPT of the command are numbers: the fence grows with every attempt, and a
system that the command writes to can refuse a lower one than it has seen.

Exit codes (acknowledge the message to the broker after 0 alone):
  0    it was handled, now or before
  the command's own; 128 + N where signal N ended it
  69   the server or the store cannot be reached
  75   another consumer is handling it: the command did not run
  76   the lease was lost while the command ran; it was ended
  124  the command took longer than --max-hold and was ended
  126  the command cannot be run; 127 there is no such command")]
pub(crate) struct InboxRunArgs {
    #[command(flatten)]
    message: MessageArgs,
    /// How long the message is yours without renewal; it is renewed after a third of this time
    #[arg(long, value_parser = renewable, default_value = "30s")]
    lease: Duration,
    /// How long the message is recognised; choose it longer than any redelivery
    #[arg(long, value_parser = duration, default_value = "30d")]
    retention: Duration,
    #[command(flatten)]
    run: RunFlags,
}

/// The answer to a begin.
#[derive(Deserialize)]
#[serde(untagged)]
enum BeginAnswer {
    Granted {
        token: String,
        fence: u64,
        attempt: u32,
    },
    /// The message had its effect before.
    Duplicate {
        duplicate: bool,
    },
    /// The command ran before.
    Completed {
        headers: Map<String, Value>,
        #[serde(default)]
        body: String,
        body_base64: Option<String>,
    },
}

impl CommandRunArgs {
    pub(crate) async fn run(self, backend: &Backend) -> Result<ExitCode, CliError> {
        let Self { name, lease, wait, begin, run } = self;
        let effect = LeasedEffect { backend, lease, request: |method| name.request(method) };
        let ask = async |slice| effect.begin(begin.request(&name, lease, slice)).await;
        effect.run_once(ask, wait, &run, true).await
    }
}

impl InboxRunArgs {
    pub(crate) async fn run(self, backend: &Backend) -> Result<ExitCode, CliError> {
        let Self { message, lease, retention, run } = self;
        let effect = LeasedEffect { backend, lease, request: |method| message.request(method) };
        let ask = async |_| effect.begin(message.begin(lease, retention)).await;
        effect.run_once(ask, Duration::ZERO, &run, false).await
    }
}

/// A command or a message, and its place in the API.
struct LeasedEffect<'a, R> {
    backend: &'a Backend,
    lease: Duration,
    request: R,
}

impl<R: Fn(Method) -> ClientRequest> LeasedEffect<'_, R> {
    async fn begin(&self, request: ClientRequest) -> Result<BeginAnswer, CliError> {
        self.backend.send(request).await?.read()
    }

    /// Runs the command, if it is to run, and writes how it ended. `keeps_output` stores the output as
    /// the response.
    async fn run_once(
        &self,
        ask: impl AsyncFn(Duration) -> Result<BeginAnswer, CliError>,
        wait: Duration,
        run: &RunFlags,
        keeps_output: bool,
    ) -> Result<ExitCode, CliError> {
        let mut signals = ForwardedSignals::install().map_err(local)?;
        let (answer, asked_at) = match take(self.lease, wait, &mut signals, ask).await? {
            Turn::Granted(answer, asked_at) => (answer, asked_at),
            Turn::Signalled(signal, answer) => {
                if let Some(BeginAnswer::Granted { token, .. }) = answer {
                    self.give_back(&token).await;
                }
                return Ok(signal_code(signal).into());
            }
        };
        let (token, fence, attempt) = match answer {
            BeginAnswer::Granted { token, fence, attempt } => (token, fence, attempt),
            BeginAnswer::Completed { headers, body, body_base64 } => {
                let body = match body_base64 {
                    Some(text) => STANDARD.decode(text).map_err(|_| CliError::not_hapax())?,
                    None => body.into_bytes(),
                };
                return Ok(print_earlier(&headers, &body));
            }
            BeginAnswer::Duplicate { duplicate: false } => return Err(CliError::not_hapax()),
            BeginAnswer::Duplicate { duplicate: true } => {
                note_in_background("hapax: a duplicate: the message had its effect before");
                return Ok(ExitCode::SUCCESS);
            }
        };
        let environment =
            [("HAPAX_FENCE", fence.to_string()), ("HAPAX_ATTEMPT", attempt.to_string())];
        let mut child = match SupervisedChild::start(&run.command, &environment, keeps_output) {
            Ok(child) => child,
            Err(error) => {
                self.give_back(&token).await;
                return Ok(not_started(&run.command, &error).into());
            }
        };
        let claimed = ClaimedEffect { effect: self, token: &token };
        let ended = supervise(&mut child, &claimed, run, asked_at, &mut signals).await;
        let ended = ended.map_err(local)?;
        match (ended.why, ended.status.code()) {
            (Some(EndReason::Lost), _) => Ok(LOST.into()),
            (Some(EndReason::TooLong), _) => Ok(TOO_LONG.into()),
            (None, Some(0)) if keeps_output => {
                self.complete(&token, child.output(run.grace).await).await
            }
            (None, Some(0)) => self.settle(|| json!({"token": token})).await,
            (None, Some(_)) => {
                self.give_back(&token).await;
                Ok(exit_code(ended.status).into())
            }
            // The command may have acted before the signal ended it.
            (None, None) => Ok(exit_code(ended.status).into()),
        }
    }

    /// Completes a command with its output; without it where it is too large.
    async fn complete(&self, token: &str, output: Option<Vec<u8>>) -> Result<ExitCode, CliError> {
        if let Some(output) = output {
            let mut body = json!({"token": token, "status": 200});
            set_body(&mut body, output);
            match self.settle(|| body.clone()).await {
                // The server takes smaller ones.
                Err(error) if error.is_bad_request() => {}
                done => return done,
            }
        }
        note_in_background(
            "hapax: the output is too large, or still open: it is not kept for later runs",
        );
        let headers = json!({NOT_KEPT: "not-kept"});
        self.settle(|| json!({"token": token, "status": 200, "headers": headers})).await
    }

    /// Writes that the effect happened. Repeats that without an answer for as long as the lease lasts:
    /// otherwise the outcome becomes unknown.
    async fn settle(&self, body: impl Fn() -> Value) -> Result<ExitCode, CliError> {
        let start = Instant::now();
        loop {
            let error = match self.backend.send((self.request)(Method::PUT).json(&body())).await {
                Ok(_) => return Ok(ExitCode::SUCCESS),
                Err(error) => error,
            };
            if error.has_code("claim-lost") {
                note_in_background("hapax: another owner took over before the command ended");
                return Ok(LOST.into());
            }
            if !error.is_transient() || start.elapsed() >= self.lease {
                if !error.is_bad_request() {
                    note_in_background("hapax: the command ran, but that could not be written");
                }
                return Err(error);
            }
            tokio::time::sleep(self.lease / 24).await;
        }
    }

    /// Writes that nothing happened. A failure is only reported: the lease expires.
    async fn give_back(&self, token: &str) {
        let request = (self.request)(Method::DELETE).header("hapax-token", Some(token.to_owned()));
        if let Err(error) = self.backend.send(request).await {
            note_in_background(format_args!("hapax: not given back: {}", error.message()));
        }
    }
}

/// A command or a message that is ours.
struct ClaimedEffect<'a, R> {
    effect: &'a LeasedEffect<'a, R>,
    token: &'a str,
}

impl<R: Fn(Method) -> ClientRequest> LeaseRenewal for ClaimedEffect<'_, R> {
    const WHAT: &'static str = "lease";

    fn lease(&self) -> Duration {
        self.effect.lease
    }

    async fn renew(&self, timeout: Duration) -> Result<(), RenewalFailure> {
        let LeasedEffect { backend, lease, request } = self.effect;
        let body = json!({"token": self.token, "lease_ms": millis(*lease)});
        let request = request(Method::PATCH).json(&body).timeout_at_most(timeout);
        match backend.send(request).await {
            Ok(_) => Ok(()),
            Err(error) if error.exit_code() == CONFLICT => Err(RenewalFailure::Lost),
            Err(_) => Err(RenewalFailure::NoAnswer),
        }
    }
}

/// Prints the stored output of an earlier run.
fn print_earlier(headers: &Map<String, Value>, body: &[u8]) -> ExitCode {
    if headers.contains_key(NOT_KEPT) {
        note_in_background("hapax: it ran before; its output was not kept");
    }
    // Ignore a closed pipe: its reader wants no more.
    let _ = std::io::stdout().write_all(body);
    ExitCode::SUCCESS
}
