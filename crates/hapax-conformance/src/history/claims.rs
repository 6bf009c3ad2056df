//! Compares claims and records with their model.

use std::ops::Range;

use bytes::Bytes;
use hapax_core::{
    ClaimRequest, ClaimView, Claimed, Deleted, Expect, Fence, Fingerprint, GiveBack, OnUnknown,
    Put, Record, Step, Ticket, Token, Version,
};
use proptest::prelude::*;
use proptest::test_runner::TestCaseError;

use super::concurrent::{ACTORS, Actor, SequentialModel};
use super::{HistoryTimes, Model, expect, expect_equal, failed};
use crate::context::{LONG, LawContext};

#[derive(Clone, Copy, Debug)]
pub(super) enum Action {
    Claim(ClaimSpec),
    Extend { brief: bool },
    Settle { value: u8 },
    GiveBack { keep: bool },
    Look,
    Get,
    Put { value: u8, expect: Expected, ttl: Option<bool> },
    Delete { expect: Expected },
}

#[derive(Clone, Copy, Debug)]
pub(super) struct ClaimSpec {
    fingerprint: Option<u8>,
    take_over: bool,
    brief: bool,
    brief_retention: bool,
    /// Presents the actor's last token instead of a new one.
    again: bool,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Expected {
    Any,
    Absent,
    /// The version that this actor saw last, which may be outdated; without one, a version that was
    /// never stored.
    Seen,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct ClaimHistoryStep {
    key: usize,
    actor: usize,
    action: Action,
}

const KEYS: usize = 2;

pub(super) fn steps(count: Range<usize>) -> impl Strategy<Value = Vec<ClaimHistoryStep>> {
    let expect = || prop_oneof![Just(Expected::Any), Just(Expected::Absent), Just(Expected::Seen)];
    let claim = (
        prop::option::weighted(0.3, 0..2_u8),
        any::<bool>(),
        any::<bool>(),
        any::<bool>(),
        any::<bool>(),
    );
    let action = prop_oneof![
        5 => claim.prop_map(|(fingerprint, take_over, brief, brief_retention, again)| {
            Action::Claim(ClaimSpec { fingerprint, take_over, brief, brief_retention, again })
        }),
        2 => any::<bool>().prop_map(|brief| Action::Extend { brief }),
        2 => (0..2_u8).prop_map(|value| Action::Settle { value }),
        2 => any::<bool>().prop_map(|keep| Action::GiveBack { keep }),
        1 => Just(Action::Look),
        1 => Just(Action::Get),
        2 => (any::<u8>(), expect(), prop::option::of(any::<bool>()))
            .prop_map(|(value, expect, ttl)| Action::Put { value, expect, ttl }),
        1 => expect().prop_map(|expect| Action::Delete { expect }),
    ];
    let one = (0..KEYS, 0..ACTORS, action).prop_map(|(key, actor, action)| ClaimHistoryStep {
        key,
        actor,
        action,
    });
    prop::collection::vec(one, count)
}

#[derive(Clone, Copy, Default)]
enum Phase {
    #[default]
    Vacant,
    Pending {
        brief: bool,
    },
    Unknown,
    Settled(u8),
    Failed,
}

/// An action as the store gets it: with the token and the version that the actor holds.
#[derive(Clone, Debug)]
pub(super) enum ClaimHistoryCall {
    Claim(ClaimRequest, ClaimSpec),
    Extend { token: Token, brief: bool },
    Settle { token: Token, value: u8 },
    GiveBack { token: Token, keep: bool },
    Look,
    Get,
    Put { value: u8, expect: Expect, ttl: Option<bool> },
    Delete { expect: Expect },
}

#[derive(Clone, Debug)]
pub(super) enum ClaimHistoryAnswer {
    Claimed(Claimed),
    Step(Step),
    Look(Option<ClaimView>),
    Get(Option<Record>),
    Put(Put),
    Deleted(Deleted),
}

impl ClaimHistoryCall {
    /// Makes the call on the claim and the record of a number.
    async fn run(
        &self,
        context: &LawContext,
        key: usize,
        times: HistoryTimes,
    ) -> Result<ClaimHistoryAnswer, TestCaseError> {
        let store = &context.store;
        let (claim, record) =
            (context.command(&format!("k{key}")), context.record(&format!("k{key}")));
        let answer = match self {
            Self::Claim(ask, _) => store.claim(&claim, ask).await.map(ClaimHistoryAnswer::Claimed),
            Self::Extend { token, brief } => {
                store.extend(&claim, token, times.time(*brief)).await.map(ClaimHistoryAnswer::Step)
            }
            Self::Settle { token, value: v } => {
                store.settle(&claim, token, value(*v)).await.map(ClaimHistoryAnswer::Step)
            }
            Self::GiveBack { token, keep } => {
                let how = if *keep { GiveBack::Keep } else { GiveBack::Forget };
                store.give_back(&claim, token, how).await.map(ClaimHistoryAnswer::Step)
            }
            Self::Look => store.look(&claim).await.map(ClaimHistoryAnswer::Look),
            Self::Get => store.get(&record).await.map(ClaimHistoryAnswer::Get),
            Self::Put { value: v, expect, ttl } => {
                let ttl = ttl.map(|brief| times.time(brief));
                store.put(&record, value(*v), expect, ttl).await.map(ClaimHistoryAnswer::Put)
            }
            Self::Delete { expect } => {
                store.delete(&record, expect).await.map(ClaimHistoryAnswer::Deleted)
            }
        };
        answer.map_err(failed)
    }
}

/// The last token and the last version that a client of one key holds.
#[derive(Clone, Default)]
pub(super) struct ClaimActor {
    token: Option<Token>,
    seen: Option<Version>,
}

impl ClaimActor {
    fn call_within(&mut self, action: Action, times: HistoryTimes) -> ClaimHistoryCall {
        let token = self.token.clone().unwrap_or_else(|| Token::presented("unknown"));
        match action {
            Action::Claim(spec) => {
                let fresh = ClaimRequest::new(times.time(spec.brief));
                let ask = ClaimRequest {
                    token: self.token.take().filter(|_| spec.again).unwrap_or(fresh.token),
                    retention: times.time(spec.brief_retention),
                    fingerprint: spec.fingerprint.and_then(|f| Fingerprint::new(&f.to_string())),
                    on_unknown: match spec.take_over {
                        true => OnUnknown::TakeOver,
                        false => OnUnknown::Refuse,
                    },
                    lease: fresh.lease,
                };
                self.token = Some(ask.token.clone());
                ClaimHistoryCall::Claim(ask, spec)
            }
            Action::Extend { brief } => ClaimHistoryCall::Extend { token, brief },
            Action::Settle { value } => ClaimHistoryCall::Settle { token, value },
            Action::GiveBack { keep } => ClaimHistoryCall::GiveBack { token, keep },
            Action::Look => ClaimHistoryCall::Look,
            Action::Get => ClaimHistoryCall::Get,
            Action::Put { value, expect, ttl } => {
                ClaimHistoryCall::Put { value, expect: self.expect(expect), ttl }
            }
            Action::Delete { expect } => ClaimHistoryCall::Delete { expect: self.expect(expect) },
        }
    }

    fn expect(&self, expected: Expected) -> Expect {
        let never = || Version::new("never-seen");
        match expected {
            Expected::Any => Expect::Any,
            Expected::Absent => Expect::Absent,
            Expected::Seen => Expect::Version(self.seen.clone().unwrap_or_else(never)),
        }
    }
}

/// The steps of several actors at once, all on one key, each with the number of its actor.
pub(super) fn concurrent_steps(count: Range<usize>) -> impl Strategy<Value = Vec<(usize, Action)>> {
    steps(count).prop_map(|steps| steps.iter().map(|step| (step.actor, step.action)).collect())
}

const LONG_TIMES: HistoryTimes = HistoryTimes { brief: LONG };

impl Actor for ClaimActor {
    type Step = Action;
    type Model = ModelKey;

    fn call(&mut self, action: Action) -> ClaimHistoryCall {
        self.call_within(action, LONG_TIMES)
    }

    async fn run(
        context: &LawContext,
        call: &ClaimHistoryCall,
    ) -> Result<ClaimHistoryAnswer, TestCaseError> {
        call.run(context, 0, LONG_TIMES).await
    }

    fn says_only_busy(answer: &ClaimHistoryAnswer) -> bool {
        matches!(answer, ClaimHistoryAnswer::Claimed(Claimed::Busy { .. }))
    }

    fn heard(&mut self, answer: &ClaimHistoryAnswer) {
        match answer {
            ClaimHistoryAnswer::Get(record) => {
                self.seen = record.as_ref().map(|r| r.version.clone())
            }
            ClaimHistoryAnswer::Put(Put::Stored { version, .. }) => {
                self.seen = Some(version.clone())
            }
            _ => {}
        }
    }
}

/// The model of one key.
#[derive(Clone, Default)]
pub(super) struct ModelKey {
    phase: Phase,
    fingerprint: Option<u8>,
    attempt: u32,
    owner: Option<Token>,
    fence: u64,
    brief_retention: bool,
    record: Option<(u8, Version, Ttl)>,
}

#[derive(Clone, Copy, PartialEq)]
enum Ttl {
    Never,
    Long,
    Brief,
}

impl ModelKey {
    /// Expires the brief lease, retention or TTL. Returns whether there was one.
    fn expire_brief(&mut self) -> bool {
        let (after, lapsed) = match self.phase {
            Phase::Pending { brief: true } if !self.brief_retention => (Phase::Unknown, true),
            Phase::Pending { brief: true } => (Phase::Vacant, true),
            Phase::Settled(_) | Phase::Failed | Phase::Unknown if self.brief_retention => {
                (Phase::Vacant, true)
            }
            other => (other, false),
        };
        self.phase = after;
        let expired = self.record.take_if(|(_, _, ttl)| *ttl == Ttl::Brief).is_some();
        lapsed || expired
    }

    /// Compares the answer to a step of the token's owner; `next` is the phase after the step, if
    /// the current phase allows it.
    fn stepped(
        &mut self,
        token: &Token,
        next: Option<Phase>,
        answer: Step,
    ) -> Result<(), TestCaseError> {
        match next.filter(|_| self.owner.as_ref() == Some(token)) {
            Some(next) => {
                self.phase = next;
                expect_equal!(answer, Step::Done(Fence(self.fence)));
            }
            None => expect_equal!(answer, Step::Lost),
        }
        Ok(())
    }

    fn holds(&self, expect: &Expect) -> bool {
        expect.holds(self.record.as_ref().map(|(_, version, _)| version))
    }
}

impl SequentialModel for ModelKey {
    type Call = ClaimHistoryCall;
    type Answer = ClaimHistoryAnswer;

    fn apply(
        &mut self,
        call: &ClaimHistoryCall,
        answer: &ClaimHistoryAnswer,
    ) -> Result<(), TestCaseError> {
        let open = matches!(self.phase, Phase::Pending { .. } | Phase::Unknown);
        match (call, answer) {
            (ClaimHistoryCall::Claim(ask, spec), ClaimHistoryAnswer::Claimed(answer)) => {
                self.claimed(ask, *spec, answer)
            }
            (ClaimHistoryCall::Extend { token, brief }, ClaimHistoryAnswer::Step(answer)) => {
                let next = open.then_some(Phase::Pending { brief: *brief });
                self.stepped(token, next, *answer)
            }
            (ClaimHistoryCall::Settle { token, value }, ClaimHistoryAnswer::Step(answer)) => {
                let again = matches!(self.phase, Phase::Settled(before) if before == *value);
                let next = (open || again).then_some(Phase::Settled(*value));
                self.stepped(token, next, *answer)
            }
            (ClaimHistoryCall::GiveBack { token, keep }, ClaimHistoryAnswer::Step(answer)) => {
                let again = *keep && matches!(self.phase, Phase::Failed);
                let next = if *keep { Phase::Failed } else { Phase::Vacant };
                self.stepped(token, (open || again).then_some(next), *answer)
            }
            (ClaimHistoryCall::Look, ClaimHistoryAnswer::Look(view)) => {
                expect_equal!(view.is_none(), matches!(self.phase, Phase::Vacant));
                if let Some(view) = view {
                    expect_equal!(view.attempt, self.attempt);
                    expect_equal!(view.fence, Some(Fence(self.fence)));
                }
                Ok(())
            }
            (ClaimHistoryCall::Get, ClaimHistoryAnswer::Get(record)) => {
                let stored = record.as_ref().map(|r| (r.value.clone(), r.version.clone()));
                let known =
                    self.record.as_ref().map(|(v, version, _)| (value(*v), version.clone()));
                expect_equal!(stored, known);
                Ok(())
            }
            (ClaimHistoryCall::Put { value, expect, ttl }, ClaimHistoryAnswer::Put(answer)) => {
                self.put(*value, self.holds(expect), *ttl, answer)
            }
            (ClaimHistoryCall::Delete { expect }, ClaimHistoryAnswer::Deleted(answer)) => {
                let expected = match (self.record.is_some(), self.holds(expect)) {
                    (false, _) => Deleted::Missing,
                    (true, true) => Deleted::Done,
                    (true, false) => Deleted::Conflict,
                };
                expect_equal!(*answer, expected);
                if expected == Deleted::Done {
                    self.record = None;
                }
                Ok(())
            }
            (call, answer) => unreachable!("{call:?} is never answered with {answer:?}"),
        }
    }
}

pub(super) struct ClaimsModel {
    times: HistoryTimes,
    context: LawContext,
    keys: [ModelKey; KEYS],
    actors: [ClaimActor; KEYS * ACTORS],
}

impl Model for ClaimsModel {
    type Step = ClaimHistoryStep;

    async fn new(context: LawContext, times: HistoryTimes) -> Result<Self, TestCaseError> {
        let (keys, actors) = Default::default();
        Ok(Self { times, context, keys, actors })
    }

    async fn step(&mut self, step: ClaimHistoryStep) -> Result<(), TestCaseError> {
        let actor = &mut self.actors[step.key * ACTORS + step.actor];
        let call = actor.call_within(step.action, self.times);
        let answer = call.run(&self.context, step.key, self.times).await?;
        actor.heard(&answer);
        self.keys[step.key].apply(&call, &answer)
    }

    fn expire_brief(&mut self) -> bool {
        self.keys.iter_mut().fold(false, |expired, key| key.expire_brief() | expired)
    }

    async fn finish(&mut self) -> Result<(), TestCaseError> {
        Ok(())
    }
}

impl ModelKey {
    /// Compares the answer to a claim with the model, and updates the model.
    fn claimed(
        &mut self,
        ask: &ClaimRequest,
        spec: ClaimSpec,
        answer: &Claimed,
    ) -> Result<(), TestCaseError> {
        let own = self.owner.as_ref() == Some(&ask.token);
        let vacant = matches!(self.phase, Phase::Vacant);
        if !vacant && self.fingerprint != spec.fingerprint {
            expect_equal!(*answer, Claimed::Mismatch);
            return Ok(());
        }
        let not = |phase: &str| format!("{phase}, but {answer:?}");
        let attempt = match self.phase {
            Phase::Vacant => 1,
            Phase::Settled(v) => {
                let same =
                    matches!(answer, Claimed::Settled { value: got, .. } if *got == value(v));
                return expect(same, || not("settled"));
            }
            Phase::Pending { .. } | Phase::Unknown if own => {
                let ticket = Ticket { token: ask.token.clone(), fence: Fence(self.fence) };
                expect_equal!(*answer, Claimed::Granted { ticket, attempt: self.attempt });
                self.phase = Phase::Pending { brief: spec.brief };
                return Ok(());
            }
            Phase::Pending { .. } => {
                return expect(matches!(answer, Claimed::Busy { .. }), || not("busy"));
            }
            Phase::Unknown if !spec.take_over => {
                return expect(matches!(answer, Claimed::Unknown { .. }), || not("unknown"));
            }
            Phase::Unknown | Phase::Failed => self.attempt + 1,
        };
        let Claimed::Granted { ticket, attempt: got } = answer else {
            return Err(TestCaseError::fail(not("free")));
        };
        expect_equal!((*got, &ticket.token), (attempt, &ask.token));
        let grown = ticket.fence.0 > self.fence;
        expect(grown, || format!("fence {} after {}", ticket.fence, self.fence))?;
        self.phase = Phase::Pending { brief: spec.brief };
        self.fingerprint = spec.fingerprint;
        self.attempt = attempt;
        self.owner = Some(ticket.token.clone());
        self.fence = ticket.fence.0;
        self.brief_retention = spec.brief_retention;
        Ok(())
    }

    /// Compares the answer to a put whose expectation holds or not, and updates the model.
    fn put(
        &mut self,
        value: u8,
        holds: bool,
        ttl: Option<bool>,
        answer: &Put,
    ) -> Result<(), TestCaseError> {
        match answer {
            Put::Conflict => expect_equal!(holds, false),
            Put::Stored { version, created } => {
                expect_equal!((true, *created), (holds, self.record.is_none()));
                let kept = self.record.as_ref().map_or(Ttl::Never, |(_, _, ttl)| *ttl);
                let ttl = match ttl {
                    Some(true) => Ttl::Brief,
                    Some(false) => Ttl::Long,
                    None => kept,
                };
                self.record = Some((value, version.clone(), ttl));
            }
        }
        Ok(())
    }
}

fn value(v: u8) -> Bytes {
    Bytes::from(v.to_string())
}
