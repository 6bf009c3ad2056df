//! Planted bugs of commands.

use std::collections::HashMap;

use hapax_torture::history::{CallOutcome, CommandAnswer, HistoryEntry, Observation};

use crate::simulation::{Model, Moment, accepts, finds, refused, simulate};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CommandBug {
    None,
    SettleWithoutToken,
    FailWithoutToken,
    AttemptGrantedTwice,
    RerunUnderRefuse,
    TakenOverWithinLease,
    ReplayWithOtherBytes,
    AnswerForgotten,
    AnswerOfAnotherRequest,
    FenceGoesBack,
    FenceOfAnotherCommand,
    InProgressAfterAnswer,
}

const LEASE_MS: u64 = 120;
/// Few steps for each key, so that a history has many keys.
const STEPS_PER_KEY: usize = 40;

#[derive(Default)]
struct CommandRow {
    attempt: u64,
    owner: Option<u64>,
    lease_until: u64,
    fingerprint: String,
    failed: bool,
    answer: Option<String>,
}

struct CommandModel {
    bug: CommandBug,
    rows: HashMap<String, CommandRow>,
    running: HashMap<u32, (String, u64, bool)>,
    steps: usize,
    bodies: u64,
    fence: u64,
}

impl CommandModel {
    fn begin(&mut self, client: u32, key: String, moment: &mut Moment) -> Observation {
        let (rerun, now) = (moment.random.one_in(2), moment.now);
        let fingerprint = if moment.random.one_in(10) { "another" } else { "same" }.to_owned();
        let row = self.rows.entry(key.clone()).or_default();
        let lapsed = row.owner.is_some() && now >= row.lease_until;
        let other = row.attempt > 0 && row.fingerprint != fingerprint;
        let bug = |planted: CommandBug, chances: u64, moment: &mut Moment| {
            self.bug == planted && moment.random.one_in(chances)
        };
        let mut grant = |row: &mut CommandRow, attempt: u64, moment: &mut Moment| {
            row.attempt = attempt;
            row.owner = Some(attempt);
            row.lease_until = now + LEASE_MS * 1000;
            row.fingerprint.clone_from(&fingerprint);
            row.failed = false;
            self.fence += 1;
            let fence = match self.bug {
                CommandBug::FenceGoesBack => u64::from(u32::MAX) - self.fence,
                CommandBug::FenceOfAnotherCommand => attempt,
                _ => self.fence,
            };
            let granted = CallOutcome::Done(CommandAnswer::Granted { attempt, fence });
            let heard = moment.heard(granted);
            if heard.done().is_some() {
                self.running.insert(client, (key.clone(), attempt, false));
            }
            heard
        };
        let outcome = if other && self.bug != CommandBug::AnswerOfAnotherRequest {
            moment.heard(refused("key-reused"))
        } else if let Some(answer) = row.answer.clone() {
            let changed = bug(CommandBug::ReplayWithOtherBytes, 4, moment);
            if bug(CommandBug::InProgressAfterAnswer, 4, moment) {
                moment.heard(refused("in-progress"))
            } else if bug(CommandBug::AnswerForgotten, 4, moment) {
                row.answer = None;
                let next = row.attempt + 1;
                grant(row, next, moment)
            } else {
                let answer = if changed { answer.to_uppercase() } else { answer };
                moment.heard(CallOutcome::Done(CommandAnswer::Replayed(answer)))
            }
        } else if !lapsed && bug(CommandBug::AttemptGrantedTwice, 3, moment) && row.attempt > 0 {
            let same = row.attempt;
            grant(row, same, moment)
        } else if row.owner.is_none()
            || row.failed
            || lapsed && (rerun || self.bug == CommandBug::RerunUnderRefuse)
            || bug(CommandBug::TakenOverWithinLease, 3, moment)
        {
            let next = row.attempt + 1;
            grant(row, next, moment)
        } else {
            moment.heard(refused(if lapsed { "outcome-unknown" } else { "in-progress" }))
        };
        Observation::CommandBegin { key, fingerprint, rerun, lease_ms: LEASE_MS, outcome }
    }

    fn complete(&mut self, key: String, attempt: u64, moment: &mut Moment) -> Observation {
        self.bodies += 1;
        let body = format!("answer {}", self.bodies);
        let row = self.rows.entry(key.clone()).or_default();
        let free = self.bug == CommandBug::SettleWithoutToken && row.answer.is_none();
        let mine = row.owner == Some(attempt) && !row.failed && row.answer.is_none() || free;
        if mine {
            row.answer = Some(body.clone());
        }
        let outcome = if mine { CallOutcome::Done(()) } else { refused("claim-lost") };
        Observation::CommandComplete { key, attempt, body, outcome: moment.heard(outcome) }
    }

    fn fail(&mut self, key: String, attempt: u64, moment: &mut Moment) -> Observation {
        let row = self.rows.entry(key.clone()).or_default();
        let free = self.bug == CommandBug::FailWithoutToken && row.answer.is_none();
        let mine = row.owner == Some(attempt) && !row.failed && row.answer.is_none() || free;
        row.failed |= mine;
        let outcome = if mine { CallOutcome::Done(()) } else { refused("claim-lost") };
        Observation::CommandFail { key, attempt, outcome: moment.heard(outcome) }
    }
}

impl Model for CommandModel {
    fn step(&mut self, client: u32, moment: &mut Moment) -> Option<Observation> {
        self.steps += 1;
        let Some((key, attempt, acted)) = self.running.get(&client).cloned() else {
            let key = format!("k{}", self.steps / STEPS_PER_KEY);
            return Some(self.begin(client, key, moment));
        };
        if !acted {
            self.running.insert(client, (key.clone(), attempt, true));
            return Some(Observation::CommandEffect { key, attempt });
        }
        match moment.random.below(10) {
            0..4 => None,
            4..6 => {
                self.running.remove(&client);
                Some(self.fail(key, attempt, moment))
            }
            6 => {
                self.running.remove(&client);
                None
            }
            _ => {
                self.running.remove(&client);
                Some(self.complete(key, attempt, moment))
            }
        }
    }
}

fn history(bug: CommandBug, seed: u64) -> Vec<HistoryEntry> {
    let (rows, running) = (HashMap::new(), HashMap::new());
    let mut model = CommandModel { bug, rows, running, steps: 0, bodies: 0, fence: 0 };
    simulate(&mut model, 5, 4000, seed)
}

#[test]
fn torture_checker_accepts_right_commands() {
    accepts(|seed| history(CommandBug::None, seed));
}

#[test]
fn torture_checker_finds_planted_command_bugs() {
    for (bug, complaint) in [
        (CommandBug::SettleWithoutToken, "was completed although"),
        (CommandBug::FailWithoutToken, "was failed although"),
        (CommandBug::AttemptGrantedTwice, "second effect"),
        (CommandBug::RerunUnderRefuse, "under `refuse`"),
        (CommandBug::TakenOverWithinLease, "within the lease"),
        (CommandBug::ReplayWithOtherBytes, "another one is"),
        (CommandBug::AnswerForgotten, "after the answer was stored"),
        (CommandBug::AnswerOfAnotherRequest, "the answer of another request"),
        (CommandBug::FenceGoesBack, "not a greater one"),
        (CommandBug::FenceOfAnotherCommand, "was granted to commands"),
        (CommandBug::InProgressAfterAnswer, "was told in-progress"),
    ] {
        finds(&format!("{bug:?}"), complaint, |seed| history(bug, seed));
    }
}
