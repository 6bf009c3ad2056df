//! Compares claims and records with their model.

use std::sync::Arc;

use bytes::Bytes;
use hapax_core::{
    ClaimRequest, Claimed, Deleted, Expect, Fence, Fingerprint, GiveBack, OnUnknown, Put, Step,
    Token, Version,
};
use proptest::prelude::*;
use proptest::test_runner::TestCaseError;

use super::{BRIEF, expect_equal, failed, time};
use crate::StoreUnderTest;
use crate::context::LawContext;

#[derive(Clone, Copy, Debug)]
enum Action {
    /// `again` presents the actor's last token instead of a new one.
    Claim {
        fingerprint: Option<u8>,
        take_over: bool,
        brief: bool,
        brief_retention: bool,
        again: bool,
    },
    Extend {
        brief: bool,
    },
    Settle {
        value: u8,
    },
    GiveBack {
        keep: bool,
    },
    Look,
    Get,
    Put {
        value: u8,
        expect: Expected,
        ttl: Option<bool>,
    },
    Delete {
        expect: Expected,
    },
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
        5 => claim.prop_map(|(fingerprint, take_over, brief, brief_retention, again)| Action::Claim {
            fingerprint, take_over, brief, brief_retention, again
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

#[derive(Default)]
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
struct Model {
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

impl Model {
    /// Expires the brief lease, retention or TTL. Returns whether there was one.
    fn expire_brief(&mut self) -> bool {
        let before = std::mem::take(&mut self.phase);
        let (after, passed) = match before {
            Phase::Pending { brief: true } if self.brief_retention => (Phase::Vacant, true),
            Phase::Pending { brief: true } => (Phase::Unknown, true),
            Phase::Settled(_) | Phase::Failed if self.brief_retention => (Phase::Vacant, true),
            Phase::Unknown if self.brief_retention => (Phase::Vacant, true),
            other => (other, false),
        };
        self.phase = after;
        let expired = self.record.as_ref().is_some_and(|(_, _, ttl)| *ttl == Ttl::Brief);
        if expired {
            self.record = None;
        }
        passed || expired
    }

    fn owns(&self, token: Option<&Token>) -> bool {
        token.is_some() && self.owner.as_ref() == token && !matches!(self.phase, Phase::Vacant)
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

struct ModelRun {
    context: LawContext,
    models: Vec<Model>,
    tokens: Vec<Option<Token>>,
    seen: Vec<Option<Version>>,
}

impl ModelRun {
    async fn step(&mut self, m: ClaimHistoryStep) -> Result<(), TestCaseError> {
        let slot = m.key * ACTORS + m.actor;
        let claim_key = self.context.command(&format!("k{}", m.key));
        let record_key = self.context.record(&format!("k{}", m.key));
        let model = &mut self.models[m.key];
        let store = &self.context.store;
        let token = self.tokens[slot].clone();
        let presented = token.clone().unwrap_or_else(|| Token::presented("nobody"));
        match m.action {
            Action::Claim { fingerprint, take_over, brief, brief_retention, again } => {
                let fresh = ClaimRequest::new(time(brief));
                let ask = ClaimRequest {
                    token: token.filter(|_| again).unwrap_or(fresh.token),
                    retention: time(brief_retention),
                    fingerprint: fingerprint.and_then(|f| Fingerprint::new(&f.to_string())),
                    on_unknown: if take_over { OnUnknown::TakeOver } else { OnUnknown::Refuse },
                    lease: fresh.lease,
                };
                let answer = store.claim(&claim_key, &ask).await.map_err(failed)?;
                self.tokens[slot] = Some(ask.token.clone());
                claimed(model, &ask, fingerprint, brief, brief_retention, answer)?;
            }
            Action::Extend { brief } => {
                let lease = time(brief);
                let step = store.extend(&claim_key, &presented, lease).await.map_err(failed)?;
                let good = model.owns(token.as_ref())
                    && matches!(model.phase, Phase::Pending { .. } | Phase::Unknown);
                if good {
                    model.phase = Phase::Pending { brief };
                }
                expect_equal!(step, if good { Step::Done(Fence(model.fence)) } else { Step::Lost });
            }
            Action::Settle { value } => {
                let bytes = Bytes::from(value.to_string());
                let step = store.settle(&claim_key, &presented, bytes).await.map_err(failed)?;
                let good = model.owns(token.as_ref())
                    && match model.phase {
                        Phase::Pending { .. } | Phase::Unknown => true,
                        Phase::Settled(before) => before == value,
                        Phase::Vacant | Phase::Failed => false,
                    };
                if good {
                    model.phase = Phase::Settled(value);
                }
                expect_equal!(step, if good { Step::Done(Fence(model.fence)) } else { Step::Lost });
            }
            Action::GiveBack { keep } => {
                let how = if keep { GiveBack::Keep } else { GiveBack::Forget };
                let step = store.give_back(&claim_key, &presented, how).await.map_err(failed)?;
                let good = model.owns(token.as_ref())
                    && match model.phase {
                        Phase::Pending { .. } | Phase::Unknown => true,
                        Phase::Failed => keep,
                        Phase::Vacant | Phase::Settled(_) => false,
                    };
                if good {
                    model.phase = if keep { Phase::Failed } else { Phase::Vacant };
                }
                expect_equal!(step, if good { Step::Done(Fence(model.fence)) } else { Step::Lost });
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
                self.seen[slot] = expected.map(|(_, version)| version);
            }
            Action::Put { value: v, expect, ttl } => {
                let (expect, good) = model.expects(expect, self.seen[slot].as_ref());
                let time = ttl.map(time);
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
                        self.seen[slot] = Some(version.clone());
                        model.record = Some((v, version, ttl));
                    }
                }
            }
            Action::Delete { expect } => {
                let (expect, good) = model.expects(expect, self.seen[slot].as_ref());
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
        let mut passed = false;
        for model in &mut self.models {
            passed |= model.expire_brief();
        }
        if passed {
            self.context.outlive(2 * BRIEF).await;
        }
        Ok(())
    }
}

/// Compares the reply to a claim with the model, and updates the model.
fn claimed(
    model: &mut Model,
    ask: &ClaimRequest,
    fingerprint: Option<u8>,
    brief: bool,
    brief_retention: bool,
    answer: Claimed,
) -> Result<(), TestCaseError> {
    let own = model.owner.as_ref() == Some(&ask.token);
    let vacant = matches!(model.phase, Phase::Vacant);
    if !vacant && model.fingerprint != fingerprint {
        expect_equal!(answer, Claimed::Mismatch);
        return Ok(());
    }
    let attempt = match model.phase {
        Phase::Vacant => 1,
        Phase::Settled(v) => {
            if !matches!(&answer, Claimed::Settled { value: stored, .. } if *stored == value(v)) {
                return Err(TestCaseError::fail(format!("settled with {v}, but {answer:?}")));
            }
            return Ok(());
        }
        Phase::Pending { .. } | Phase::Unknown if own => {
            let ticket = hapax_core::Ticket { token: ask.token.clone(), fence: Fence(model.fence) };
            expect_equal!(answer, Claimed::Granted { ticket, attempt: model.attempt });
            model.phase = Phase::Pending { brief };
            return Ok(());
        }
        Phase::Pending { .. } => {
            if !matches!(answer, Claimed::Busy { .. }) {
                return Err(TestCaseError::fail(format!("busy, but {answer:?}")));
            }
            return Ok(());
        }
        Phase::Unknown if ask.on_unknown == OnUnknown::Refuse => {
            if !matches!(answer, Claimed::Unknown { .. }) {
                return Err(TestCaseError::fail(format!("unknown, but {answer:?}")));
            }
            return Ok(());
        }
        Phase::Unknown | Phase::Failed => model.attempt + 1,
    };
    let Claimed::Granted { ticket, attempt: got } = answer else {
        return Err(TestCaseError::fail(format!("free, but {answer:?}")));
    };
    expect_equal!((got, &ticket.token), (attempt, &ask.token));
    if ticket.fence.0 <= model.fence {
        return Err(TestCaseError::fail(format!("fence {} after {}", ticket.fence, model.fence)));
    }
    model.phase = Phase::Pending { brief };
    model.fingerprint = fingerprint;
    model.attempt = attempt;
    model.owner = Some(ticket.token);
    model.fence = ticket.fence.0;
    model.brief_retention = brief_retention;
    Ok(())
}

fn value(v: u8) -> Bytes {
    Bytes::from(v.to_string())
}

pub(super) async fn run(
    subject: Arc<dyn StoreUnderTest>,
    steps: Vec<ClaimHistoryStep>,
) -> Result<(), TestCaseError> {
    let mut run = ModelRun {
        context: LawContext::new(subject).await,
        models: (0..KEYS).map(|_| Model::default()).collect(),
        tokens: vec![None; KEYS * ACTORS],
        seen: vec![None; KEYS * ACTORS],
    };
    for m in steps {
        run.step(m).await?;
    }
    Ok(())
}
