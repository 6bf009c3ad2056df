//! The proxy under `refuse`: a key runs at most once, and its answer never changes.

use super::KeyFindings;
use crate::history::{CallOutcome, HistoryEntry, Observation};

pub(super) fn check(
    entries: &[&HistoryEntry],
    is_undisturbed: bool,
    findings: &mut KeyFindings<'_>,
) {
    let mut effects =
        entries.iter().filter(|entry| matches!(entry.what, Observation::UpstreamEffect { .. }));
    let first_effect = effects.next();
    if let Some(second) = effects.next() {
        let what = "the upstream ran it twice".to_owned();
        findings.report_loss("proxied requests (ran again)", second.to, what);
    }
    let mut said: Option<&str> = None;
    let mut stored_by = u64::MAX;
    for entry in entries {
        let Observation::ProxyRequest { outcome: CallOutcome::Done(answer), .. } = &entry.what
        else {
            continue;
        };
        // The proxy sends an answer after it is stored, but also if the store fails at that moment, because the effect
        // has happened. No client sees the difference; without faults no store fails.
        if answer.replayed || is_undisturbed {
            stored_by = stored_by.min(entry.to);
        }
        match said {
            Some(first) if first != answer.body => {
                let what = format!("an answer is {:?}, another one is {first:?}", answer.body);
                findings.report_loss("proxied requests (other answer)", entry.to, what);
            }
            Some(_) => {}
            None => said = Some(&answer.body),
        }
        if first_effect.is_none_or(|effect| effect.from > entry.to) {
            findings
                .report(entry.to, "it was answered, and the upstream had not run it".to_owned());
        }
    }
    for entry in entries.iter().filter(|entry| stored_by < entry.from) {
        if let Observation::ProxyRequest { outcome: CallOutcome::Refused(code), .. } = &entry.what
            && ["in-progress", "outcome-unknown"].contains(&code.as_str())
        {
            let what = format!("client {} was told {code} after it was answered", entry.client);
            findings.report_loss("proxied requests (no answer)", entry.to, what);
        }
    }
}
