//! Claims and records against their model.

use std::sync::Arc;

use bytes::Bytes;
use hapax_core::{
    ClaimRequest, Claimed, Deleted, Expect, Fence, Fingerprint, GiveBack, OnUnknown, Put, Step,
    Token, Version,
};
use proptest::prelude::*;
use proptest::test_runner::TestCaseError;

use super::{BRIEF, failed, same, time};
use crate::Subject;
use crate::scene::Scene;

#[derive(Clone, Copy, Debug)]
enum Act {
    /// `again` presents the actor's last token instead of a fresh one.
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
    /// The version that this actor saw last, which may be out of date or none.
    Seen,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Move {
    key: usize,
    actor: usize,
    act: Act,
}

const KEYS: usize = 2;
const ACTORS: usize = 3;

pub(super) fn moves() -> impl Strategy<Value = Vec<Move>> {
    let expect = || prop_oneof![Just(Expected::Any), Just(Expected::Absent), Just(Expected::Seen)];
    let claim = (
        prop::option::weighted(0.15, 0..1_u8),
        any::<bool>(),
        any::<bool>(),
        any::<bool>(),
        any::<bool>(),
    );
    let act = prop_oneof![
        5 => claim.prop_map(|(fingerprint, take_over, brief, brief_retention, again)| Act::Claim {
            fingerprint, take_over, brief, brief_retention, again
        }),
        2 => any::<bool>().prop_map(|brief| Act::Extend { brief }),
        2 => (0..2_u8).prop_map(|value| Act::Settle { value }),
        2 => any::<bool>().prop_map(|keep| Act::GiveBack { keep }),
        1 => Just(Act::Look),
        1 => Just(Act::Get),
        2 => (any::<u8>(), expect(), prop::option::of(any::<bool>()))
            .prop_map(|(value, expect, ttl)| Act::Put { value, expect, ttl }),
        1 => expect().prop_map(|expect| Act::Delete { expect }),
    ];
    let one = (0..KEYS, 0..ACTORS, act).prop_map(|(key, actor, act)| Move { key, actor, act });
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

/// What the model knows of one key.
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
    /// Lets everything brief come to its end; whether there was anything.
    fn pass(&mut self) -> bool {
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

struct Play {
    scene: Scene,
    models: Vec<Model>,
    tokens: Vec<Option<Token>>,
    seen: Vec<Option<Version>>,
}

impl Play {
    async fn step(&mut self, m: Move) -> Result<(), TestCaseError> {
        let slot = m.key * ACTORS + m.actor;
        let claim_key = self.scene.command(&format!("k{}", m.key));
        let record_key = self.scene.record(&format!("k{}", m.key));
        let model = &mut self.models[m.key];
        let store = &self.scene.store;
        let token = self.tokens[slot].clone();
        let presented = token.clone().unwrap_or_else(|| Token::presented("nobody"));
        match m.act {
            Act::Claim { fingerprint, take_over, brief, brief_retention, again } => {
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
            Act::Extend { brief } => {
                let lease = time(brief);
                let step = store.extend(&claim_key, &presented, lease).await.map_err(failed)?;
                let good = model.owns(token.as_ref())
                    && matches!(model.phase, Phase::Pending { .. } | Phase::Unknown);
                if good {
                    model.phase = Phase::Pending { brief };
                }
                same!(step, if good { Step::Done(Fence(model.fence)) } else { Step::Lost });
            }
            Act::Settle { value } => {
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
                same!(step, if good { Step::Done(Fence(model.fence)) } else { Step::Lost });
            }
            Act::GiveBack { keep } => {
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
                same!(step, if good { Step::Done(Fence(model.fence)) } else { Step::Lost });
            }
            Act::Look => {
                let view = store.look(&claim_key).await.map_err(failed)?;
                same!(view.is_none(), matches!(model.phase, Phase::Vacant));
                if let Some(view) = view {
                    same!(view.attempt, model.attempt);
                    same!(view.fence, Some(Fence(model.fence)));
                }
            }
            Act::Get => {
                let record = store.get(&record_key).await.map_err(failed)?;
                let expected =
                    model.record.as_ref().map(|(v, version, _)| (value(*v), version.clone()));
                same!(record.map(|r| (r.value, r.version)), expected);
                self.seen[slot] = expected.map(|(_, version)| version);
            }
            Act::Put { value: v, expect, ttl } => {
                let (expect, good) = model.expects(expect, self.seen[slot].as_ref());
                let time = ttl.map(time);
                let put = store.put(&record_key, value(v), &expect, time).await.map_err(failed)?;
                match put {
                    Put::Conflict => same!(good, false),
                    Put::Stored { version, created } => {
                        same!((true, created), (good, model.record.is_none()));
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
            Act::Delete { expect } => {
                let (expect, good) = model.expects(expect, self.seen[slot].as_ref());
                let deleted = store.delete(&record_key, &expect).await.map_err(failed)?;
                let expected = match (model.record.is_some(), good) {
                    (false, _) => Deleted::Missing,
                    (true, true) => Deleted::Done,
                    (true, false) => Deleted::Conflict,
                };
                same!(deleted, expected);
                if deleted == Deleted::Done {
                    model.record = None;
                }
            }
        }
        let mut passed = false;
        for model in &mut self.models {
            passed |= model.pass();
        }
        if passed {
            self.scene.outlive(2 * BRIEF).await;
        }
        Ok(())
    }
}

/// Compares the answer to a claim, and follows it.
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
        same!(answer, Claimed::Mismatch);
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
            same!(answer, Claimed::Granted { ticket, attempt: model.attempt });
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
    same!((got, &ticket.token), (attempt, &ask.token));
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

pub(super) async fn play(subject: Arc<dyn Subject>, moves: Vec<Move>) -> Result<(), TestCaseError> {
    let mut play = Play {
        scene: Scene::new(subject).await,
        models: (0..KEYS).map(|_| Model::default()).collect(),
        tokens: vec![None; KEYS * ACTORS],
        seen: vec![None; KEYS * ACTORS],
    };
    for m in moves {
        play.step(m).await?;
    }
    Ok(())
}
