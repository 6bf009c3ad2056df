//! When a record changed: the order of its changes is known, their moments are looked for.
//!
//! A change lies within its own call, not before a call began that knew what it replaced, and not after a call ended that
//! knew what it made. Beyond that, an answer may say that a state did not last for the whole call: if the state began
//! before the call, it ended within it or before. Two solutions of such conditions have a third one, the later moment of
//! each change. So it is enough to look at the latest moments that the conditions leave: if one is too early for its
//! change, there is no solution.

use std::collections::HashSet;

use crate::history::{HistoryEntry, Observation};

/// Why a change is not later than a moment.
#[derive(Clone, Copy)]
enum Evidence<'a> {
    /// The call saw or changed this version.
    Version(&'a str),
    /// The call got this answer, which would be wrong otherwise.
    Answer(&'static str),
}

/// The earliest or the latest moment of a change.
#[derive(Clone, Copy)]
struct TimeLimit<'a, E> {
    at: u64,
    call: &'a HistoryEntry,
    evidence: E,
}

/// A change of the record. Without a latest moment it may also not have happened.
struct RecordChange<'a> {
    /// With the version that the call saw or changed.
    earliest: TimeLimit<'a, &'a str>,
    latest: Option<TimeLimit<'a, Evidence<'a>>>,
}

impl RecordChange<'_> {
    fn latest_at(&self) -> u64 {
        self.latest.map_or(u64::MAX, |limit| limit.at)
    }
}

/// The answer of a call which says that the record was not in these states for the whole call.
struct StateDenial<'a> {
    call: &'a HistoryEntry,
    first: usize,
    last: usize,
    answer: &'static str,
}

/// All changes of a record in their order. State 0 is before the first of them, and each begins the next state.
#[derive(Default)]
pub(super) struct ChangeTimes<'a> {
    changes: Vec<RecordChange<'a>>,
    denials: Vec<StateDenial<'a>>,
}

impl<'a> ChangeTimes<'a> {
    /// Adds a change that the call made, or may have made, to this version or by making it; the state that it begins.
    pub(super) fn add(&mut self, call: &'a HistoryEntry, version: &'a str) -> usize {
        let earliest = TimeLimit { at: call.from, call, evidence: version };
        let evidence = Evidence::Version(version);
        let is_known = !call.what.is_unknown();
        let latest = is_known.then_some(TimeLimit { at: call.to, call, evidence });
        self.changes.push(RecordChange { earliest, latest });
        self.changes.len()
    }

    /// The state that the last change begins.
    pub(super) fn last_state(&self) -> usize {
        self.changes.len()
    }

    /// The call saw this version, which was stored in this state.
    pub(super) fn see(&mut self, call: &'a HistoryEntry, state: usize, version: &'a str) {
        let begin = &mut self.changes[state - 1];
        if call.to < begin.latest_at() {
            let evidence = Evidence::Version(version);
            begin.latest = Some(TimeLimit { at: call.to, call, evidence });
        }
        if let Some(end) = self.changes.get_mut(state)
            && end.earliest.at < call.from
        {
            end.earliest = TimeLimit { at: call.from, call, evidence: version };
        }
    }

    /// Brings the limits into the order of the changes, before answers are added.
    pub(super) fn order_limits(&mut self) {
        for place in 1..self.changes.len() {
            let before = self.changes[place - 1].earliest;
            if self.changes[place].earliest.at < before.at {
                self.changes[place].earliest = before;
            }
        }
        self.order_latest();
    }

    fn order_latest(&mut self) {
        for place in (1..self.changes.len()).rev() {
            let after = self.changes[place].latest;
            if self.changes[place].latest_at() < self.changes[place - 1].latest_at() {
                self.changes[place - 1].latest = after;
            }
        }
    }

    /// The call's answer says that the record was not in these states all the time from its beginning to its end.
    pub(super) fn deny(
        &mut self,
        call: &'a HistoryEntry,
        (first, last): (usize, usize),
        answer: &'static str,
    ) {
        let begins_later = first > 0 && self.changes[first - 1].earliest.at >= call.from;
        let ends_before =
            self.changes.get(last).is_some_and(|change| change.latest_at() <= call.to);
        if !begins_later && !ends_before {
            self.denials.push(StateDenial { call, first, last, answer });
        }
    }

    /// The changes that contradict each other, each with its moment; none if there is a moment for every change.
    pub(super) fn contradictions(mut self) -> Vec<(u64, String)> {
        while self.apply_denials() {
            self.order_latest();
        }
        let mut found = Vec::new();
        // One call that is out of order contradicts many others.
        let mut told = HashSet::new();
        let mut report = |call: &HistoryEntry, what: String| {
            if told.insert((call.client, call.from)) {
                found.push((call.to, format!("client {} {what}", call.client)));
            }
        };
        for change in &self.changes {
            let Some(latest) = change.latest.filter(|latest| latest.at < change.earliest.at) else {
                continue;
            };
            match latest.evidence {
                Evidence::Answer(answer) => report(latest.call, answer.to_owned()),
                Evidence::Version(newer) => {
                    let is_delete = matches!(latest.call.what, Observation::RecordDelete { .. });
                    let known = if is_delete { "deleted" } else { "known" };
                    let older = change.earliest.evidence;
                    let what =
                        format!("saw or changed version {older} after version {newer} was {known}");
                    report(change.earliest.call, what);
                }
            }
        }
        for denial in &self.denials {
            if denial.last == self.changes.len() && self.begins_before(denial) {
                report(denial.call, denial.answer.to_owned());
            }
        }
        found
    }

    /// Ends states before the calls end that deny them; whether that changed anything.
    fn apply_denials(&mut self) -> bool {
        let mut has_changed = false;
        for place in 0..self.denials.len() {
            let denial = &self.denials[place];
            let (at, call, evidence) =
                (denial.call.to, denial.call, Evidence::Answer(denial.answer));
            let begins_before = self.begins_before(denial);
            let last = denial.last;
            if let Some(change) = self.changes.get_mut(last)
                && begins_before
                && at < change.latest_at()
            {
                change.latest = Some(TimeLimit { at, call, evidence });
                has_changed = true;
            }
        }
        has_changed
    }

    /// Whether the states began before the call, even if every change comes as late as it can.
    fn begins_before(&self, denial: &StateDenial<'_>) -> bool {
        denial.first == 0 || self.changes[denial.first - 1].latest_at() < denial.call.from
    }
}
