//! LINE: an event that was answered with 200 is handled; once, or again with a greater attempt and fence that say so; and the
//! events of one source in the order of their arrival.

use std::collections::{BTreeMap, HashMap};

use super::KeyFindings;
use crate::history::{CallOutcome, HistoryEntry, Observation};

/// One event of a source.
#[derive(Default)]
struct LineEventView<'a> {
    first_sent: Option<u64>,
    answered: Option<u64>,
    /// Each time that the bot got it, in order.
    handled: Vec<LineHandling<'a>>,
}

#[derive(Clone, Copy)]
struct LineHandling<'a> {
    at: u64,
    key: &'a str,
    attempt: u64,
    fence: u64,
    ok: bool,
}

pub(super) fn check(
    entries: &[&HistoryEntry],
    is_undisturbed: bool,
    findings: &mut KeyFindings<'_>,
) {
    let mut events: BTreeMap<&str, LineEventView<'_>> = BTreeMap::new();
    for entry in entries {
        match &entry.what {
            Observation::LineWebhook { event, outcome, .. } => {
                let view = events.entry(event).or_default();
                view.first_sent =
                    Some(view.first_sent.map_or(entry.from, |from| from.min(entry.from)));
                if matches!(outcome, CallOutcome::Done(())) {
                    view.answered = Some(view.answered.map_or(entry.to, |to| to.min(entry.to)));
                }
            }
            Observation::LineHandled { event, key, attempt, fence, ok, .. } => {
                let handling =
                    LineHandling { at: entry.to, key, attempt: *attempt, fence: *fence, ok: *ok };
                events.entry(event).or_default().handled.push(handling);
            }
            _ => {}
        }
    }
    let mut keys: HashMap<&str, &str> = HashMap::new();
    for (event, view) in &events {
        check_event(event, view, is_undisturbed, findings);
        for handling in &view.handled {
            if keys.insert(handling.key, event).is_some_and(|other| other != *event) {
                findings.report(handling.at, format!("{event} has the key of another event"));
            }
        }
    }
    check_order(&events, findings);
}

fn check_event(
    event: &str,
    view: &LineEventView<'_>,
    is_undisturbed: bool,
    findings: &mut KeyFindings<'_>,
) {
    let at = view.handled.first().map(|handling| handling.at);
    if view.first_sent.is_none() {
        findings.report(at.unwrap_or(0), format!("{event} was handled, and nobody sent it"));
    }
    if let Some(answered) = view.answered
        && !view.handled.iter().any(|handling| handling.ok)
    {
        let what = format!("{event} was answered with 200 and never handled");
        findings.report_loss("LINE events", answered, what);
    }
    let mut by_attempt: BTreeMap<u64, LineHandling<'_>> = BTreeMap::new();
    for handling in &view.handled {
        if by_attempt.insert(handling.attempt, *handling).is_some() {
            let what = format!("{event} was handled twice as attempt {}", handling.attempt);
            findings.report_loss("LINE events (handled again)", handling.at, what);
        }
    }
    for ((one, before), (two, after)) in by_attempt.iter().zip(by_attempt.iter().skip(1)) {
        if after.fence <= before.fence {
            let what = format!("attempt {two} of {event} has no greater fence than attempt {one}");
            // Of an event that was lost and came again, the attempts are not in the order of time.
            findings.report_loss("LINE events (handled again)", after.at, what);
        }
        if after.key != before.key {
            findings.report(after.at, format!("{event} has two keys"));
        }
        // Only a fault can hide that the bot has handled it.
        if is_undisturbed && before.ok {
            findings.report(after.at, format!("{event} was handled again after it was done"));
        }
    }
}

/// An event whose webhook was answered before another one was sent comes first, unless an attempt of it has failed.
fn check_order(events: &BTreeMap<&str, LineEventView<'_>>, findings: &mut KeyFindings<'_>) {
    let mut seen: Vec<(&str, &LineEventView<'_>, LineHandling<'_>)> = Vec::new();
    for (event, view) in events {
        if let Some(first) = view.handled.iter().min_by_key(|handling| handling.at) {
            seen.push((event, view, *first));
        }
    }
    seen.sort_by_key(|(_, _, first)| first.at);
    // From the back: of all events that came later, and as their first attempt, the one that was answered first.
    let mut came_later: Option<(&str, u64)> = None;
    for (event, view, first) in seen.iter().rev() {
        if let (Some((other, answered)), Some(sent)) = (came_later, view.first_sent)
            && answered < sent
        {
            let what = format!("{event} was handled before {other}, which had arrived before it");
            findings.report_loss("LINE events (order)", first.at, what);
        }
        if first.attempt == 1
            && let Some(answered) = view.answered
            && came_later.is_none_or(|(_, earliest)| answered < earliest)
        {
            came_later = Some((event, answered));
        }
    }
}
