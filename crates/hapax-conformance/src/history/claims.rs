//! Compares claims and records with their model.

use bytes::Bytes;
use hapax_core::{
    ClaimRequest, Claimed, Deleted, Expect, Fence, Fingerprint, GiveBack, OnUnknown, Put, Step,
    Ticket, Token, Version,
};
use proptest::prelude::*;
use proptest::test_runner::TestCaseError;

use super::{HistoryTimes, Model, expect, expect_equal, failed};
use crate::context::LawContext;

#[derive(Clone, Copy, Debug)]
enum Action {
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
struct ClaimSpec {
    fingerprint: Option<u8>,
    take_over: bool,
    brief: bool,
    brief_retention: bool,
    /// Presents the actor's last token instead of a new one.
    again: bool,
}

#[derive(Clone, Copy, Debug)]
enum Expected {
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
const ACTORS: usize = 3;

pub(super) fn steps() -> impl Strategy<Value = Vec<ClaimHistoryStep>> {
    let expect = || prop_oneof![Just(Expected::Any), Just(Expected::Absent), Just(Expected::Seen)];
    let claim = (
        prop::option::weighted(0.15, 0..1_u8),
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
    prop::collection::vec(one, 1..24)
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

/// The model of one key.
#[derive(Default)]
struct ModelKey {
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
        token: Option<&Token>,
        next: Option<Phase>,
        answer: Step,
    ) -> Result<(), TestCaseError> {
        let owned = token.is_some() && self.owner.as_ref() == token;
        match next.filter(|_| owned) {
            Some(next) => {
                self.phase = next;
                expect_equal!(answer, Step::Done(Fence(self.fence)));
            }
            None => expect_equal!(answer, Step::Lost),
        }
        Ok(())
    }

    fn expects(&self, expected: Expected, seen: Option<&Version>) -> (Expect, bool) {
        let current = self.record.as_ref().map(|(_, version, _)| version);
        match (expected, seen) {
            (Expected::Any, _) => (Expect::Any, true),
            (Expected::Absent, _) => (Expect::Absent, current.is_none()),
            (Expected::Seen, Some(seen)) => (Expect::Version(seen.clone()), current == Some(seen)),
            (Expected::Seen, None) => (Expect::Version(Version::new("never-seen")), false),
        }
    }
}

pub(super) struct ClaimsModel {
    times: HistoryTimes,
    context: LawContext,
    keys: [ModelKey; KEYS],
    tokens: [Option<Token>; KEYS * ACTORS],
    seen: [Option<Version>; KEYS * ACTORS],
}

impl Model for ClaimsModel {
    type Step = ClaimHistoryStep;

    async fn new(context: LawContext, times: HistoryTimes) -> Result<Self, TestCaseError> {
        let (keys, tokens, seen) = Default::default();
        Ok(Self { times, context, keys, tokens, seen })
    }

    async fn step(&mut self, step: ClaimHistoryStep) -> Result<(), TestCaseError> {
        let slot = step.key * ACTORS + step.actor;
        let claim_key = self.context.command(&format!("k{}", step.key));
        let record_key = self.context.record(&format!("k{}", step.key));
        let (store, model) = (&self.context.store, &mut self.keys[step.key]);
        let (token, seen) = (&mut self.tokens[slot], &mut self.seen[slot]);
        let presented = token.clone().unwrap_or_else(|| Token::presented("unknown"));
        match step.action {
            Action::Claim(spec) => {
                let fresh = ClaimRequest::new(self.times.time(spec.brief));
                let fingerprint = spec.fingerprint.and_then(|f| Fingerprint::new(&f.to_string()));
                let ask = ClaimRequest {
                    token: token.take().filter(|_| spec.again).unwrap_or(fresh.token),
                    retention: self.times.time(spec.brief_retention),
                    fingerprint,
                    on_unknown: match spec.take_over {
                        true => OnUnknown::TakeOver,
                        false => OnUnknown::Refuse,
                    },
                    lease: fresh.lease,
                };
                let answer = store.claim(&claim_key, &ask).await.map_err(failed)?;
                *token = Some(ask.token.clone());
                model.claimed(&ask, spec, answer)?;
            }
            Action::Extend { brief } => {
                let lease = self.times.time(brief);
                let answer = store.extend(&claim_key, &presented, lease).await.map_err(failed)?;
                let next = match model.phase {
                    Phase::Pending { .. } | Phase::Unknown => Some(Phase::Pending { brief }),
                    _ => None,
                };
                model.stepped(token.as_ref(), next, answer)?;
            }
            Action::Settle { value: v } => {
                let settle = store.settle(&claim_key, &presented, value(v));
                let answer = settle.await.map_err(failed)?;
                let next = match model.phase {
                    Phase::Pending { .. } | Phase::Unknown => Some(Phase::Settled(v)),
                    Phase::Settled(before) if before == v => Some(Phase::Settled(v)),
                    _ => None,
                };
                model.stepped(token.as_ref(), next, answer)?;
            }
            Action::GiveBack { keep } => {
                let how = if keep { GiveBack::Keep } else { GiveBack::Forget };
                let answer = store.give_back(&claim_key, &presented, how).await.map_err(failed)?;
                let next = match (model.phase, keep) {
                    (Phase::Pending { .. } | Phase::Unknown, false) => Some(Phase::Vacant),
                    (Phase::Pending { .. } | Phase::Unknown | Phase::Failed, true) => {
                        Some(Phase::Failed)
                    }
                    _ => None,
                };
                model.stepped(token.as_ref(), next, answer)?;
            }
            Action::Look => {
                let view = store.look(&claim_key).await.map_err(failed)?;
                expect_equal!(view.is_none(), matches!(model.phase, Phase::Vacant));
                if let Some(view) = view {
                    expect_equal!(view.attempt, model.attempt);
                    expect_equal!(view.fence, Some(Fence(model.fence)));
                }
            }
            Action::Get => {
                let record = store.get(&record_key).await.map_err(failed)?;
                let expected =
                    model.record.as_ref().map(|(v, version, _)| (value(*v), version.clone()));
                expect_equal!(record.map(|r| (r.value, r.version)), expected);
                *seen = expected.map(|(_, version)| version);
            }
            Action::Put { value: v, expect, ttl } => {
                let (expect, good) = model.expects(expect, seen.as_ref());
                let time = ttl.map(|brief| self.times.time(brief));
                let put = store.put(&record_key, value(v), &expect, time).await.map_err(failed)?;
                match put {
                    Put::Conflict => expect_equal!(good, false),
                    Put::Stored { version, created } => {
                        expect_equal!((true, created), (good, model.record.is_none()));
                        let kept = model.record.as_ref().map_or(Ttl::Never, |(_, _, ttl)| *ttl);
                        let ttl = match ttl {
                            Some(true) => Ttl::Brief,
                            Some(false) => Ttl::Long,
                            None => kept,
                        };
                        *seen = Some(version.clone());
                        model.record = Some((v, version, ttl));
                    }
                }
            }
            Action::Delete { expect } => {
                let (expect, good) = model.expects(expect, seen.as_ref());
                let deleted = store.delete(&record_key, &expect).await.map_err(failed)?;
                let expected = match (model.record.is_some(), good) {
                    (false, _) => Deleted::Missing,
                    (true, true) => Deleted::Done,
                    (true, false) => Deleted::Conflict,
                };
                expect_equal!(deleted, expected);
                if deleted == Deleted::Done {
                    model.record = None;
                }
            }
        }
        Ok(())
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
        answer: Claimed,
    ) -> Result<(), TestCaseError> {
        let own = self.owner.as_ref() == Some(&ask.token);
        let vacant = matches!(self.phase, Phase::Vacant);
        if !vacant && self.fingerprint != spec.fingerprint {
            expect_equal!(answer, Claimed::Mismatch);
            return Ok(());
        }
        let not = |phase: &str| format!("{phase}, but {answer:?}");
        let attempt = match self.phase {
            Phase::Vacant => 1,
            Phase::Settled(v) => {
                let same =
                    matches!(&answer, Claimed::Settled { value: got, .. } if *got == value(v));
                return expect(same, || not("settled"));
            }
            Phase::Pending { .. } | Phase::Unknown if own => {
                let ticket = Ticket { token: ask.token.clone(), fence: Fence(self.fence) };
                expect_equal!(answer, Claimed::Granted { ticket, attempt: self.attempt });
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
        let Claimed::Granted { ticket, attempt: got } = &answer else {
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
}

fn value(v: u8) -> Bytes {
    Bytes::from(v.to_string())
}
