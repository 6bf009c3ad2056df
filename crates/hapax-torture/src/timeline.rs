//! A picture of what happened around a violation.

use std::fmt::Write;

use crate::check::Violation;
use crate::history::{CallOutcome, HistoryEntry, Observation, SeenFrame};

/// How much before and after the violation is shown.
const AROUND: u64 = 3_000_000;
const WIDTH: u64 = 48;
const MOST_LINES: usize = 60;

/// Who did what when to the key of a violation, with the faults: a line for each call, with a bar for its interval.
pub fn draw_timeline(history: &[HistoryEntry], violation: &Violation) -> String {
    let window = violation.at.saturating_sub(AROUND)..violation.at.saturating_add(AROUND);
    let shown = |entry: &&HistoryEntry| {
        let near = entry.from < window.end && entry.to > window.start;
        let mine = entry
            .what
            .subject()
            .is_none_or(|subject| subject == (violation.workload, violation.key.as_str()));
        let is_about_run =
            matches!(entry.what, Observation::RunOn { .. } | Observation::AskedAgain { .. });
        near && mine && !is_about_run
    };
    let mut entries: Vec<&HistoryEntry> = history.iter().filter(shown).collect();
    entries.sort_by_key(|entry| entry.from);
    // The entries nearest to the violation.
    let after = entries.partition_point(|entry| entry.from <= violation.at);
    let first = after.saturating_sub(MOST_LINES * 3 / 4);
    let entries: Vec<&HistoryEntry> = entries.into_iter().skip(first).take(MOST_LINES).collect();
    let begin = entries.iter().map(|entry| entry.from).min().unwrap_or(0).max(window.start);
    let end = entries.iter().map(|entry| entry.to).max().unwrap_or(1).min(window.end);
    let scale = (end.saturating_sub(begin)).max(1);
    let column = |time: u64| (time.clamp(begin, end) - begin) * (WIDTH - 1) / scale;

    let mut text = format!(
        "{} {}: {}\n  at {}\n",
        violation.workload,
        violation.key,
        violation.what,
        seconds(violation.at)
    );
    let mark = column(violation.at);
    for entry in entries {
        let (from, to) = (column(entry.from), column(entry.to));
        let is_fault = matches!(entry.what, Observation::Fault { .. });
        let bar: String = (0..WIDTH)
            .map(|place| match (from..=to).contains(&place) {
                true if is_fault => '#',
                true => '=',
                false if place == mark => ':',
                false => ' ',
            })
            .collect();
        let who = if is_fault { "FAULT".to_owned() } else { format!("client {}", entry.client) };
        let _ = writeln!(
            text,
            "  {:>11} {who:<11}|{bar}| {}",
            seconds(entry.from),
            describe(&entry.what)
        );
    }
    text
}

fn seconds(micros: u64) -> String {
    format!("{}.{:06} s", micros / 1_000_000, micros % 1_000_000)
}

fn ended<T>(outcome: &CallOutcome<T>, done: impl FnOnce(&T) -> String) -> String {
    match outcome {
        CallOutcome::Done(result) => done(result),
        CallOutcome::Refused(code) => format!("refused: {code}"),
        CallOutcome::Unknown(code) => format!("unknown: {code}"),
    }
}

fn describe(what: &Observation) -> String {
    let ok = |(): &()| "done".to_owned();
    match what {
        Observation::LockTake { ttl_ms, outcome, .. } => {
            format!("take for {ttl_ms} ms -> {}", ended(outcome, |fence| format!("fence {fence}")))
        }
        Observation::LockRenew { fence, outcome, .. } => {
            format!("renew fence {fence} -> {}", ended(outcome, ok))
        }
        Observation::LockRelease { fence, outcome, .. } => {
            format!("release fence {fence} -> {}", ended(outcome, ok))
        }
        Observation::FencedWrite { fence, accepted, .. } => {
            format!("write with fence {fence} -> {}", if *accepted { "taken" } else { "refused" })
        }
        Observation::RecordGet { outcome, .. } => {
            let seen = |seen: &Option<crate::history::SeenRecord>| match seen {
                Some(seen) => format!("{} at {}", seen.value, seen.version),
                None => "nothing".to_owned(),
            };
            format!("get -> {}", ended(outcome, seen))
        }
        Observation::RecordPut { expected, value, outcome, .. } => format!(
            "put {value} over {} -> {}",
            expected.as_deref().unwrap_or("nothing"),
            ended(outcome, Clone::clone)
        ),
        Observation::RecordDelete { expected, outcome, .. } => {
            format!("delete {expected} -> {}", ended(outcome, ok))
        }
        Observation::CommandBegin { rerun, outcome, .. } => {
            let policy = if *rerun { "rerun" } else { "refuse" };
            format!("begin ({policy}) -> {}", ended(outcome, |answer| format!("{answer:?}")))
        }
        Observation::CommandRenew { attempt, outcome, .. } => {
            format!("renew attempt {attempt} -> {}", ended(outcome, ok))
        }
        Observation::CommandEffect { attempt, .. } => format!("effect of attempt {attempt}"),
        Observation::CommandComplete { attempt, body, outcome, .. } => {
            format!("complete attempt {attempt} with {body:?} -> {}", ended(outcome, ok))
        }
        Observation::CommandFail { attempt, outcome, .. } => {
            format!("fail attempt {attempt} -> {}", ended(outcome, ok))
        }
        Observation::Publish { stage, seq, outcome, .. } => {
            format!("publish {stage} {seq} -> {}", ended(outcome, |at| format!("{at:?}")))
        }
        Observation::Followed { frame, .. } => match frame {
            SeenFrame::Event(stage, seq, at) => format!("got {stage} {seq} at {at:?}"),
            other => format!("got {other:?}"),
        },
        Observation::ProxyRequest { outcome, .. } => {
            format!("request -> {}", ended(outcome, |answer| format!("{answer:?}")))
        }
        Observation::UpstreamEffect { .. } => "effect in the upstream".to_owned(),
        Observation::OutboxCommit { key, outcome, .. }
        | Observation::BrokerCommit { key, outcome, .. } => {
            format!("commit for key {key} -> {}", ended(outcome, ok))
        }
        Observation::Delivery { .. } => "sent to the webhook".to_owned(),
        Observation::BrokerDelivery { .. } => "received from the broker".to_owned(),
        Observation::InboxEffect { .. } | Observation::BrokerEffect { .. } => {
            "has had its effect".to_owned()
        }
        Observation::Transaction { effect, outcome, .. } => {
            let tried = effect.map_or_else(String::new, |effect| format!(" with effect {effect}"));
            format!("transaction{tried} -> {}", ended(outcome, Clone::clone))
        }
        Observation::TransactionEffect { effect, .. } => format!("effect {effect} is there"),
        Observation::LineWebhook { event, outcome, .. } => {
            format!("webhook of {event} -> {}", ended(outcome, ok))
        }
        Observation::LineHandled { event, attempt, fence, ok, .. } => {
            let answer = if *ok { "200" } else { "500" };
            format!("the bot got {event}, attempt {attempt}, fence {fence} -> {answer}")
        }
        Observation::RunOn { store, .. } => format!("a run on {store}"),
        Observation::AskedAgain { workload, keys } => format!("{keys} keys of {workload} again"),
        Observation::Fault { kind, target } => format!("{kind} {target}"),
    }
}
