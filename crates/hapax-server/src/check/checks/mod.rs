//! The checks, each a function that asks the service something and judges its answers.

mod answers;
mod crash;
mod errors;
mod keys;
mod race;
mod replay;
mod reuse;

use std::pin::Pin;
use std::time::Duration;

use hapax_http_client::FullResponse;
use tokio::time::{Instant, sleep};

use super::profile::Profile::{self, Hapax, Ietf, Stripe};
use super::target::{Answer, Order, OrderRequest, Target, described};

/// Why a check does not hold.
pub(super) enum NotHeld {
    Fails {
        expected: String,
        seen: String,
        wrong: WrongPart,
    },
    /// The check does not apply to this service, or needs a flag.
    Skipped(String),
    /// The service's count of executions could not be read, or it could not be restarted.
    CouldNotAsk(anyhow::Error),
}

impl From<anyhow::Error> for NotHeld {
    fn from(error: anyhow::Error) -> Self {
        Self::CouldNotAsk(error)
    }
}

/// What is wrong where a check fails.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum WrongPart {
    /// Something ran that must not, or did not run that must.
    Executions,
    /// The right number of executions, and a wrong answer.
    Answer,
}

type CheckResult = Result<(), NotHeld>;
type Asked<'a> = Pin<Box<dyn Future<Output = CheckResult> + Send + 'a>>;

pub(super) struct Check {
    pub(super) name: &'static str,
    /// The rules that it is part of.
    pub(super) profiles: &'static [Profile],
    pub(super) promise: &'static str,
    pub(super) ask: fn(&Target) -> Asked<'_>,
}

const ALL: &[Profile] = &[Hapax, Ietf, Stripe];

/// `name, profiles, promise, function` of each check, in the order in which they are asked.
macro_rules! checks {
    ($($name:literal, $profiles:expr, $promise:literal, $ask:path;)*) => {
        &[$(Check {
            name: $name,
            profiles: $profiles,
            promise: $promise,
            ask: |target| Box::pin($ask(target)),
        }),*]
    };
}

pub(super) const CHECKS: &[Check] = checks![
    "replay", ALL, "a second request gets the first one's status and body and runs nothing", replay::replay;
    "replay-headers", &[Hapax, Ietf], "a replay has the first answer's headers (hapax: but no cookies)", replay::headers;
    "replay-marker", &[Hapax, Stripe], "a replay, and nothing else, says Idempotent-Replayed: true", replay::marker;
    "replay-expiry", &[Hapax], "a replay says until when it is kept (Idempotency-Expires)", replay::expires;
    "race", ALL, "of 50 requests at once one runs", race::runs_once;
    "race-answers", ALL, "of 50 requests at once each gets the one answer, or 409", race::one_answer;
    "in-flight", ALL, "a duplicate of a running request waits for its answer, or gets 409", race::in_flight;
    "client-leaves", ALL, "a client that leaves and comes back does not run it again", race::client_leaves;
    "other-body", ALL, "the key of another body is refused, and nothing runs", reuse::other_body;
    "other-body-in-flight", ALL, "it is refused also while the first one runs", reuse::other_body_in_flight;
    "other-query", &[Hapax, Stripe], "the key of another query is refused, and nothing runs", reuse::other_query;
    "other-path", ALL, "the key of another path never gets the first path's answer", reuse::other_path;
    "other-caller", &[Hapax, Stripe], "another caller's key is another key", reuse::other_caller;
    "without-key", ALL, "requests without a key all run, or are all refused", keys::without_key;
    "key-letter-case", ALL, "keys that differ in upper and lower case are two keys", keys::letter_case;
    "key-quoted", &[Hapax], "a key in quotes and without them is one key", keys::quoted;
    "key-of-255-bytes", &[Hapax, Stripe], "a key of 255 bytes works", keys::longest;
    "key-too-long", &[Hapax, Stripe], "a longer key is refused, and nothing runs", keys::too_long;
    "key-empty", &[Hapax], "an empty key is refused, and nothing runs", keys::empty;
    "key-doubled", &[Hapax], "two keys in one request are refused, and nothing runs", keys::doubled;
    "key-not-ascii", &[Hapax, Ietf], "a key that is not ASCII is no key: refused (ietf: or ignored)", keys::not_ascii;
    "empty-answer", ALL, "an empty answer is replayed", answers::empty;
    "no-content", ALL, "a 204 is replayed", answers::no_content;
    "binary-answer", ALL, "an answer that is not text is replayed byte for byte", answers::binary;
    "large-answer", ALL, "an answer of 300 kB is replayed byte for byte", answers::large;
    "huge-answer", ALL, "an answer of 5 MB is replayed or refused, and nothing runs again", answers::huge;
    "streamed-answer", ALL, "an answer without a length is replayed byte for byte", answers::streamed;
    "redirect", &[Hapax, Stripe], "a 303 is replayed", answers::redirect;
    "client-error", &[Hapax, Stripe], "a 404 is replayed", errors::client_error;
    "refusals-not-kept", &[Hapax], "401, 403, 408, 425 and 429 are not kept: a retry runs", errors::refusals;
    "server-error-not-kept", &[Hapax], "a 500 is not kept: a retry runs", errors::server_error_not_kept;
    "server-error-kept", &[Stripe], "a 500 is replayed", errors::server_error_kept;
    "bad-gateway", &[Hapax], "after a 502 the outcome is unknown: a retry gets 409", errors::bad_gateway;
    "error-format", &[Hapax, Ietf], "refusals are problem documents (RFC 9457)", errors::format;
    "crash-keeps-answers", &[Hapax, Stripe], "an answer outlives a crash", crash::keeps_answers;
    "crash-in-the-middle", ALL, "a request that a crash cut off is not run again unasked, and its key does not stay in progress", crash::in_the_middle;
    "retention", ALL, "an answer is kept for the retention, and no longer", replay::retention;
];

fn wrong_executions(expected: impl Into<String>, seen: impl Into<String>) -> NotHeld {
    let wrong = WrongPart::Executions;
    NotHeld::Fails { expected: expected.into(), seen: seen.into(), wrong }
}

fn wrong_answer(expected: impl Into<String>, seen: impl Into<String>) -> NotHeld {
    NotHeld::Fails { expected: expected.into(), seen: seen.into(), wrong: WrongPart::Answer }
}

/// Fails with this expectation unless it is true; the answer is what was seen.
fn expect(holds: bool, expected: &str, answer: &Answer) -> CheckResult {
    if holds {
        return Ok(());
    }
    Err(wrong_answer(expected, seen(answer)))
}

fn seen(answer: &Answer) -> String {
    match answer {
        Ok(answer) => described(answer),
        Err(error) => format!("no answer: {error}"),
    }
}

fn status(answer: &Answer) -> Option<u16> {
    answer.as_ref().ok().map(|answer| answer.status.as_u16())
}

fn has_status(answer: &Answer, wanted: u16) -> bool {
    status(answer) == Some(wanted)
}

/// Whether it refuses the request for the request's own fault.
fn is_refusal(answer: &Answer) -> bool {
    answer.as_ref().is_ok_and(|answer| answer.status.is_client_error())
}

/// Whether both are answers of the same status and the same body, byte for byte.
fn same(first: &Answer, second: &Answer) -> bool {
    let parts = |answer: &FullResponse| (answer.status, answer.body.clone());
    match (first, second) {
        (Ok(first), Ok(second)) => parts(first) == parts(second),
        _ => false,
    }
}

/// Counts what a check's requests executed.
struct Executions<'a> {
    target: &'a Target,
    before: u64,
}

impl<'a> Executions<'a> {
    async fn from_now(target: &'a Target) -> Result<Self, NotHeld> {
        Ok(Self { target, before: target.executions().await? })
    }

    async fn count(&self) -> Result<u64, NotHeld> {
        Ok(self.target.final_executions().await?.saturating_sub(self.before))
    }

    /// Fails unless there were so many since the beginning.
    async fn expect(&self, number: u64, why: &str) -> CheckResult {
        let ran = self.count().await?;
        let times = |n: u64| if n == 1 { "1 execution".into() } else { format!("{n} executions") };
        if ran == number {
            return Ok(());
        }
        Err(wrong_executions(format!("{}: {why}", times(number)), times(ran)))
    }
}

/// Sends a request twice, which must run once, and returns both answers, which must be the same.
async fn replayed(target: &Target, order: Order) -> Result<(FullResponse, FullResponse), NotHeld> {
    let (executions, request) = (Executions::from_now(target).await?, target.fresh(order));
    let first = target.send(&request).await;
    if let Some(status) = order.status {
        expect(has_status(&first, status), &format!("status {status}, as asked"), &first)?;
    }
    let second = target.send(&request).await;
    executions.expect(1, "the second request is a duplicate").await?;
    let expected = format!("the first answer again ({})", seen(&first));
    expect(same(&first, &second), &expected, &second)?;
    match (first, second) {
        (Ok(first), Ok(second)) => Ok((first, second)),
        _ => Err(wrong_answer("two answers", "none")),
    }
}

/// Sends a request that must be refused with such a status, and must not run.
async fn refused(
    target: &Target,
    request: &OrderRequest,
    may_have: fn(Profile, u16) -> bool,
) -> CheckResult {
    let executions = Executions::from_now(target).await?;
    let answer = target.send(request).await;
    executions.expect(0, "the request is refused").await?;
    let is_right = status(&answer).is_some_and(|status| may_have(target.profile, status));
    expect(is_right, &statuses(|status| may_have(target.profile, status)), &answer)
}

/// `status 400 or 422`, or `status 4xx` where all of them may be.
fn statuses(may_be: impl Fn(u16) -> bool) -> String {
    let all: Vec<_> = (400..500).filter(|status| may_be(*status)).collect();
    match all.len() {
        100 => "status 4xx".into(),
        _ => format!("status {}", all.iter().map(u16::to_string).collect::<Vec<_>>().join(" or ")),
    }
}

/// Sends the second request while the first one runs. Returns both answers.
async fn overlapping(
    target: &Target,
    first: &OrderRequest,
    second: &OrderRequest,
) -> Result<(Answer, Answer), NotHeld> {
    let before = target.executions().await?;
    let second = async {
        target.counted_more_than(before, Duration::from_millis(500)).await?;
        Ok::<_, NotHeld>(target.send(second).await)
    };
    let (first, second) = tokio::join!(target.send(first), second);
    Ok((first, second?))
}

/// The answer once it is no longer that of a request that still runs, or the last one of those.
async fn when_settled(target: &Target, request: &OrderRequest) -> Answer {
    let deadline = Instant::now() + target.timeout;
    loop {
        let answer = target.send(request).await;
        if !says_wait(&answer) || Instant::now() > deadline {
            return answer;
        }
        sleep(Duration::from_millis(100)).await;
    }
}

/// Whether the answer, for all that its status says, may be another one later.
fn says_wait(answer: &Answer) -> bool {
    status(answer).is_some_and(|status| matches!(status, 409 | 423 | 425 | 429 | 502..=504))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn check_guide_lists_every_check() {
        let cell = |check: &Check, profile: Profile| {
            // All the other checks count executions too.
            let is_answer_alone = check.name == "error-format";
            let wrong = if is_answer_alone { WrongPart::Answer } else { WrongPart::Executions };
            match check.profiles.contains(&profile) {
                true if profile.requires(check.name, wrong) => "yes",
                true => "should",
                false => "",
            }
        };
        let mut table = "| check | what must hold | hapax | ietf | stripe |\n".to_owned();
        table.push_str("|---|---|---|---|---|\n");
        for check in CHECKS {
            let [hapax, ietf, stripe] = [Hapax, Ietf, Stripe].map(|profile| cell(check, profile));
            let Check { name, promise, .. } = check;
            table += &format!("| `{name}` | {promise} | {hapax} | {ietf} | {stripe} |\n");
        }
        let guide = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/check.md");
        let guide = std::fs::read_to_string(guide).expect("the guide");
        // The empty line is the end of the table: it has no other rows.
        let is_there = guide.contains(&format!("{table}\n"));
        assert!(is_there, "docs/check.md should have this table:\n\n{table}");
    }
}
