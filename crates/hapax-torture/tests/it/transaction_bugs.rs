//! Planted bugs of claims in a caller's transaction.

use std::collections::HashMap;

use hapax_torture::history::{CallOutcome, HistoryEntry, Observation};

use crate::simulation::{Model, Moment, accepts, finds, refused, simulate};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TransactionBug {
    None,
    EffectOutsideTransaction,
    ClaimOutsideTransaction,
    ClaimForgotten,
    OtherAnswer,
    CommitLost,
    BusyAfterAnswer,
    EffectOfNobody,
}

struct TransactionModel {
    bug: TransactionBug,
    answers: HashMap<String, u64>,
    rows: Vec<(String, u64)>,
    steps: u64,
}

impl Model for TransactionModel {
    fn step(&mut self, _client: u32, moment: &mut Moment) -> Option<Observation> {
        self.steps += 1;
        let (key, effect) = (format!("k{}", self.steps / 10), self.steps);
        let planted = self.bug;
        let bug = |wanted: TransactionBug, moment: &mut Moment| {
            planted == wanted && moment.random.one_in(4)
        };
        let said = |effect: u64| format!("effect {effect}");
        let forgotten = bug(TransactionBug::ClaimForgotten, moment);
        if let Some(stored) = self.answers.get(&key).filter(|_| !forgotten) {
            let outcome = if bug(TransactionBug::BusyAfterAnswer, moment) {
                refused("in-progress")
            } else if bug(TransactionBug::OtherAnswer, moment) {
                CallOutcome::Done(said(stored + 1000))
            } else {
                moment.heard(CallOutcome::Done(said(*stored)))
            };
            return Some(Observation::Transaction { key, effect: None, outcome });
        }
        if moment.random.one_in(3) {
            if bug(TransactionBug::EffectOutsideTransaction, moment) {
                self.rows.push((key.clone(), effect));
            }
            if bug(TransactionBug::ClaimOutsideTransaction, moment) {
                self.answers.insert(key.clone(), effect);
            }
            return Some(Observation::Transaction {
                key,
                effect: Some(effect),
                outcome: refused("on purpose"),
            });
        }
        if !bug(TransactionBug::CommitLost, moment) {
            self.rows.push((key.clone(), effect));
        }
        if bug(TransactionBug::EffectOfNobody, moment) {
            self.rows.push((key.clone(), effect + 1000));
        }
        self.answers.insert(key.clone(), effect);
        let outcome = moment.heard(CallOutcome::Done(said(effect)));
        Some(Observation::Transaction { key, effect: Some(effect), outcome })
    }

    fn finish(&mut self, _moment: &mut Moment) -> Vec<(u32, Observation)> {
        let rows = self.rows.drain(..);
        rows.map(|(key, effect)| (0, Observation::TransactionEffect { key, effect })).collect()
    }
}

fn transaction_history(bug: TransactionBug, seed: u64) -> Vec<HistoryEntry> {
    let mut model = TransactionModel { bug, answers: HashMap::new(), rows: Vec::new(), steps: 0 };
    simulate(&mut model, 4, 400, seed)
}

#[test]
fn torture_checker_accepts_right_transactions() {
    accepts(|seed| transaction_history(TransactionBug::None, seed));
}

#[test]
fn torture_checker_finds_planted_transaction_bugs() {
    for (bug, complaint) in [
        (TransactionBug::EffectOutsideTransaction, "although it was rolled back"),
        (TransactionBug::ClaimOutsideTransaction, "there is no such effect"),
        (TransactionBug::ClaimForgotten, "effects: "),
        (TransactionBug::OtherAnswer, "another one is"),
        (TransactionBug::CommitLost, "there is no such effect"),
        (TransactionBug::BusyAfterAnswer, "after the answer was stored"),
        (TransactionBug::EffectOfNobody, "is nobody's"),
    ] {
        finds(&format!("{bug:?}"), complaint, |seed| transaction_history(bug, seed));
    }
}
