//! Commands: an attempt is granted once, an answer is kept, and nothing runs again unless its owner failed, or its lease
//! ended and the caller asked for that.

use std::collections::{BTreeMap, HashMap};

use super::KeyFindings;
use crate::history::{CallOutcome, CommandAnswer, HistoryEntry, Observation};

/// Leases are measured by another process in whole milliseconds, on the same machine, whose clock may be slewed.
const CLOCK_MARGIN: u64 = 50_000;
const INVENTED: &str = "an answer that no owner stored";

/// An attempt whose grant was heard.
struct GrantedAttempt<'a> {
    grant: &'a HistoryEntry,
    fence: u64,
    rerun: bool,
    fingerprint: &'a str,
    /// When its lease ends at the earliest.
    lease_until: u64,
    /// When its owner first sent a completion or a failure.
    ended_from: u64,
    /// When its owner first reported a failure.
    failed_from: u64,
}

type Attempts<'a> = BTreeMap<u64, GrantedAttempt<'a>>;

pub(super) fn check(entries: &[&HistoryEntry], findings: &mut KeyFindings<'_>) {
    if findings.store.loses_at_failover() {
        check_with_losses(entries, findings);
    } else {
        check_without_loss(entries, findings);
    }
}

/// A failover may lose a grant or an answer, so that the command runs once more. Fences grow all the same, and an answer is
/// one that an owner has sent.
fn check_with_losses(entries: &[&HistoryEntry], findings: &mut KeyFindings<'_>) {
    let mut strict = findings.apart();
    check_without_loss(entries, &mut strict);
    let (mut grants, mut answers) = (None, None);
    for violation in strict.found {
        if violation.what.contains(INVENTED) {
            findings.found.push(violation);
        } else if violation.what.contains("answer") {
            answers.get_or_insert(violation);
        } else {
            grants.get_or_insert(violation);
        }
    }
    for (of, first) in [("commands (answer)", answers), ("commands (attempt)", grants)] {
        if let Some(first) = first {
            findings.report_loss(of, first.at, first.what);
        }
    }
    check_fences(entries, findings);
}

/// A grant that was asked for after another one was heard has a greater fence, and no two grants have the same. Every begin
/// has a token of its own, so that two which were granted are two grants, and not one whose answer was lost.
fn check_fences(entries: &[&HistoryEntry], findings: &mut KeyFindings<'_>) {
    let mut grants: Vec<(&HistoryEntry, u64)> = entries
        .iter()
        .filter_map(|entry| match &entry.what {
            Observation::CommandBegin {
                outcome: CallOutcome::Done(CommandAnswer::Granted { fence, .. }),
                ..
            } => Some((*entry, *fence)),
            _ => None,
        })
        .collect();
    // A stable sort: grants with the same fence stay in the order of their time.
    grants.sort_by_key(|(_, fence)| *fence);
    for pair in grants.windows(2) {
        let ((first, fence), (second, same)) = (pair[0], pair[1]);
        if fence == same {
            let what = format!(
                "fence {fence} was granted twice, to client {} and client {}",
                first.client, second.client
            );
            findings.report(second.to, what);
        }
    }
    // The earliest end among all grants with the same or a greater fence.
    let mut later: Option<(u64, u64)> = None;
    for (grant, fence) in grants.iter().rev() {
        if let Some((end, other)) = later
            && end < grant.from
        {
            findings.report(grant.to, format!("the fence went back from {other} to {fence}"));
        }
        if later.is_none_or(|(end, _)| grant.to < end) {
            later = Some((grant.to, *fence));
        }
    }
}

fn check_without_loss(entries: &[&HistoryEntry], findings: &mut KeyFindings<'_>) {
    let attempts = attempts(entries, findings);
    check_effects(entries, &attempts, findings);
    check_order(&attempts, findings);
    check_reruns(&attempts, findings);
    check_late_steps(entries, &attempts, findings);
    check_answers(entries, &attempts, findings);
}

fn attempts<'a>(entries: &[&'a HistoryEntry], findings: &mut KeyFindings<'_>) -> Attempts<'a> {
    let mut attempts = Attempts::new();
    for entry in entries {
        if let Observation::CommandBegin { fingerprint, rerun, lease_ms, outcome, .. } = &entry.what
            && let Some(CommandAnswer::Granted { attempt, fence }) = outcome.done()
        {
            let granted = GrantedAttempt {
                grant: entry,
                fence: *fence,
                rerun: *rerun,
                fingerprint,
                lease_until: lease_end(entry, *lease_ms),
                ended_from: u64::MAX,
                failed_from: u64::MAX,
            };
            if let Some(before) = attempts.insert(*attempt, granted) {
                let what = format!(
                    "attempt {attempt} was granted to client {} and to client {}",
                    before.grant.client, entry.client
                );
                findings.report(entry.to, what);
            }
        }
    }
    for entry in entries {
        match &entry.what {
            Observation::CommandRenew { attempt, lease_ms, outcome, .. } => {
                if let Some(granted) = attempts.get_mut(attempt)
                    && outcome.done().is_some()
                    && entry.to <= granted.lease_until
                {
                    granted.lease_until = granted.lease_until.max(lease_end(entry, *lease_ms));
                }
            }
            Observation::CommandComplete { attempt, .. } => {
                if let Some(granted) = attempts.get_mut(attempt) {
                    granted.ended_from = granted.ended_from.min(entry.from);
                }
            }
            Observation::CommandFail { attempt, .. } => {
                if let Some(granted) = attempts.get_mut(attempt) {
                    granted.ended_from = granted.ended_from.min(entry.from);
                    granted.failed_from = granted.failed_from.min(entry.from);
                }
            }
            _ => {}
        }
    }
    attempts
}

fn lease_end(entry: &HistoryEntry, lease_ms: u64) -> u64 {
    (entry.from + lease_ms * 1000).saturating_sub(CLOCK_MARGIN)
}

/// An effect belongs to a granted attempt, and an attempt has one.
fn check_effects(
    entries: &[&HistoryEntry],
    attempts: &Attempts<'_>,
    findings: &mut KeyFindings<'_>,
) {
    let mut effects: HashMap<u64, u32> = HashMap::new();
    for entry in entries {
        if let Observation::CommandEffect { attempt, .. } = entry.what {
            if let Some(first) = effects.insert(attempt, entry.client) {
                let what = format!(
                    "attempt {attempt} had a second effect, by client {} after client {first}",
                    entry.client
                );
                findings.report(entry.to, what);
            }
            if !attempts.contains_key(&attempt) {
                findings
                    .report(entry.to, format!("an effect of attempt {attempt} without a grant"));
            }
        }
    }
}

/// Later attempts have greater fences, and are not granted before earlier ones were asked for.
fn check_order(attempts: &Attempts<'_>, findings: &mut KeyFindings<'_>) {
    let neighbours = attempts.iter().zip(attempts.iter().skip(1));
    for ((number, one), (next_number, next)) in neighbours {
        if next.fence <= one.fence {
            let what = format!(
                "attempt {next_number} has fence {}, not a greater one than attempt {number} with {}",
                next.fence, one.fence
            );
            findings.report(next.grant.to, what);
        }
        if next.grant.to < one.grant.from {
            let what = format!("attempt {next_number} was granted before attempt {number}");
            findings.report(one.grant.to, what);
        }
    }
}

/// A command runs again if its owner failed, or if the caller wants that and the lease may have ended.
fn check_reruns(attempts: &Attempts<'_>, findings: &mut KeyFindings<'_>) {
    let neighbours = attempts.iter().zip(attempts.iter().skip(1));
    for ((number, one), (next_number, next)) in neighbours {
        let grant = next.grant;
        if !next.rerun && one.failed_from > grant.to {
            let what = format!(
                "attempt {next_number} was granted under `refuse`, but attempt {number} had not failed"
            );
            findings.report(grant.to, what);
        }
        if one.grant.to < grant.from && grant.to < one.lease_until.min(one.ended_from) {
            let what =
                format!("attempt {next_number} was granted within the lease of attempt {number}");
            findings.report(grant.to, what);
        }
    }
}

/// An owner whose successor was known cannot renew, complete or fail any more.
fn check_late_steps(
    entries: &[&HistoryEntry],
    attempts: &Attempts<'_>,
    findings: &mut KeyFindings<'_>,
) {
    for entry in entries {
        let (step, attempt) = match &entry.what {
            Observation::CommandRenew { attempt, outcome: CallOutcome::Done(()), .. } => {
                ("renewed", *attempt)
            }
            Observation::CommandComplete { attempt, outcome: CallOutcome::Done(()), .. } => {
                ("completed", *attempt)
            }
            Observation::CommandFail { attempt, outcome: CallOutcome::Done(()), .. } => {
                ("failed", *attempt)
            }
            _ => continue,
        };
        let mut later = attempts.range(attempt + 1..);
        if let Some((next, _)) = later.find(|(_, next)| next.grant.to < entry.from) {
            let what = format!("attempt {attempt} was {step} although attempt {next} was granted");
            findings.report(entry.to, what);
        }
    }
}

/// The first completion that was acknowledged is the answer; every answer is the same, byte for byte.
fn check_answers(
    entries: &[&HistoryEntry],
    attempts: &Attempts<'_>,
    findings: &mut KeyFindings<'_>,
) {
    let mut said: Option<(&str, u64)> = None;
    // The earliest moment by which the answer was surely stored.
    let mut stored_by = u64::MAX;
    for entry in entries {
        let body = match &entry.what {
            Observation::CommandComplete { body, outcome: CallOutcome::Done(()), .. } => body,
            Observation::CommandBegin {
                fingerprint,
                outcome: CallOutcome::Done(CommandAnswer::Replayed(body)),
                ..
            } => {
                check_origin(entry, entries, attempts, fingerprint, body, findings);
                body
            }
            _ => continue,
        };
        stored_by = stored_by.min(entry.to);
        match said {
            Some((first, _)) if first != body => {
                let what = format!("an answer is {body:?}, another one is {first:?}");
                findings.report(entry.to, what);
            }
            Some(_) => {}
            None => said = Some((body, entry.to)),
        }
    }
    for entry in entries.iter().filter(|entry| stored_by < entry.from) {
        if let Observation::CommandBegin { outcome, .. } = &entry.what {
            let told = match outcome {
                CallOutcome::Done(CommandAnswer::Granted { attempt, .. }) => {
                    format!("was granted attempt {attempt}")
                }
                CallOutcome::Refused(code) if is_about_the_outcome(code) => {
                    format!("was told {code}")
                }
                _ => continue,
            };
            let what = format!("client {} {told} after the answer was stored", entry.client);
            findings.report(entry.to, what);
        }
    }
}

fn is_about_the_outcome(code: &str) -> bool {
    ["in-progress", "outcome-unknown"].contains(&code)
}

/// A replayed answer was sent by the owner of an attempt, before, for the same request.
fn check_origin(
    replay: &HistoryEntry,
    entries: &[&HistoryEntry],
    attempts: &Attempts<'_>,
    wanted: &str,
    replayed: &str,
    findings: &mut KeyFindings<'_>,
) {
    let sent = entries.iter().find_map(|entry| match &entry.what {
        Observation::CommandComplete { attempt, body, outcome, .. }
            if body == replayed && !outcome.is_refused() && entry.from <= replay.to =>
        {
            Some(*attempt)
        }
        _ => None,
    });
    let Some(attempt) = sent else {
        findings.report(replay.to, format!("{INVENTED}: {replayed:?}"));
        return;
    };
    if attempts.get(&attempt).is_some_and(|granted| granted.fingerprint != wanted) {
        let what = format!("client {} got the answer of another request", replay.client);
        findings.report(replay.to, what);
    }
}
