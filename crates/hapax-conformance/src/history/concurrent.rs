//! Histories of several actors at once. The answers of a store must be those of some order of the
//! calls in which no call comes before another one that had ended when it began (linearizability).

use std::fmt::Debug;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use proptest::test_runner::TestCaseError;
use tokio::sync::Barrier;

use super::expect;
use crate::StoreUnderTest;
use crate::context::{LawContext, concurrently};

/// The most steps of a concurrent history. Three actors with four steps each have 34,650 orders.
pub(super) const MAX_STEPS: usize = 12;

/// How many actors work at once.
pub(super) const ACTORS: usize = 3;

/// A model that judges one call after the other.
pub(super) trait SequentialModel: Clone + Default {
    type Call: Debug + Send + Sync;
    type Answer: Debug + Send + Sync;

    /// Makes the call on the model. Fails if the answer is not the model's.
    fn apply(&mut self, call: &Self::Call, answer: &Self::Answer) -> Result<(), TestCaseError>;
}

/// A client that makes one call after the other. No duration of its calls ends during the history,
/// so that time plays no part in the answers.
pub(super) trait Actor: Default + Send + 'static {
    type Step: Copy + Send + 'static;
    type Model: SequentialModel;

    /// The call of a step, with what the actor holds at that moment.
    fn call(&mut self, step: Self::Step) -> Call<Self>;

    fn run(
        context: &LawContext,
        call: &Call<Self>,
    ) -> impl Future<Output = Result<Answer<Self>, TestCaseError>> + Send;

    /// Whether the answer only says that another call was in the way. A store may give it to every
    /// call that overlaps with another one, whose transaction hides what it changes.
    fn says_only_busy(answer: &Answer<Self>) -> bool;

    /// Keeps what a later call presents.
    fn heard(&mut self, answer: &Answer<Self>);
}

type Call<A> = <<A as Actor>::Model as SequentialModel>::Call;
type Answer<A> = <<A as Actor>::Model as SequentialModel>::Answer;

/// A call, its answer, and when it began and ended on a counter that all actors share.
#[derive(Debug)]
pub(super) struct ObservedCall<C, A> {
    began: u64,
    ended: u64,
    call: C,
    answer: A,
}

type Observed<M> = ObservedCall<<M as SequentialModel>::Call, <M as SequentialModel>::Answer>;

/// Fails if no order of the calls explains their answers.
pub(super) fn expect_linearizable<M: SequentialModel>(
    model: &M,
    calls: &[Observed<M>],
) -> Result<(), TestCaseError> {
    let rest: Vec<_> = calls.iter().collect();
    expect(has_order(model, &rest), || format!("no order of the calls explains {calls:#?}"))
}

fn has_order<M: SequentialModel>(model: &M, rest: &[&Observed<M>]) -> bool {
    let Some(first_end) = rest.iter().map(|call| call.ended).min() else { return true };
    let may_be_next = rest.iter().enumerate().filter(|(_, call)| call.began < first_end);
    may_be_next.into_iter().any(|(index, next)| {
        let mut model = model.clone();
        let is_explained = model.apply(&next.call, &next.answer).is_ok();
        let mut rest = rest.to_vec();
        rest.remove(index);
        is_explained && has_order(&model, &rest)
    })
}

/// Runs the steps of each actor in a task of its own, on two nodes of the store. A step comes with
/// the number of its actor.
pub(super) async fn compare<A: Actor>(
    subject: &Arc<dyn StoreUnderTest>,
    steps: &[(usize, A::Step)],
) -> Result<(), TestCaseError> {
    let context = LawContext::new(subject.clone()).await;
    let nodes = [context.clone(), context.reopened().await];
    let counter = Arc::new(AtomicU64::new(0));
    let start = Arc::new(Barrier::new(ACTORS));
    let actors = (0..ACTORS).map(|number| {
        let mine = steps.iter().filter(|(actor, _)| *actor == number);
        let mine: Vec<_> = mine.map(|(_, step)| *step).collect();
        let (context, counter) = (nodes[number % nodes.len()].clone(), counter.clone());
        let start = start.clone();
        async move {
            let (mut actor, mut observed) = (A::default(), Vec::new());
            start.wait().await;
            for step in mine {
                let call = actor.call(step);
                let began = counter.fetch_add(1, Ordering::SeqCst);
                // Lets calls overlap on stores that answer without waiting.
                tokio::task::yield_now().await;
                let answer = A::run(&context, &call).await?;
                let ended = counter.fetch_add(1, Ordering::SeqCst);
                actor.heard(&answer);
                observed.push(ObservedCall { began, ended, call, answer });
            }
            Ok::<_, TestCaseError>(observed)
        }
    });
    let mut calls = Vec::new();
    for observed in concurrently(actors).await {
        calls.extend(observed?);
    }
    let times: Vec<_> = calls.iter().map(|call| (call.began, call.ended)).collect();
    calls.retain(|call| {
        let overlaps = |(began, ended): &(u64, u64)| *began < call.ended && call.began < *ended;
        // Every call overlaps with itself.
        !A::says_only_busy(&call.answer) || times.iter().filter(|time| overlaps(time)).count() < 2
    });
    expect_linearizable(&A::Model::default(), &calls)
}

#[cfg(test)]
mod tests {
    use super::*;
    use RegisterCall::{Read, Write};

    /// A number that is read and written.
    #[derive(Clone, Default)]
    struct Register(u8);

    #[derive(Debug)]
    enum RegisterCall {
        Read,
        Write(u8),
    }

    impl SequentialModel for Register {
        type Call = RegisterCall;
        type Answer = u8;

        fn apply(&mut self, call: &RegisterCall, answer: &u8) -> Result<(), TestCaseError> {
            if let RegisterCall::Write(value) = call {
                self.0 = *value;
            }
            expect(self.0 == *answer, || "another number".into())
        }
    }

    fn call(began: u64, ended: u64, call: RegisterCall, answer: u8) -> Observed<Register> {
        ObservedCall { began, ended, call, answer }
    }

    fn has_order(calls: &[Observed<Register>]) -> bool {
        expect_linearizable(&Register::default(), calls).is_ok()
    }

    #[test]
    fn overlapping_calls_may_take_effect_in_either_order() {
        for read in [0, 7] {
            assert!(has_order(&[call(0, 3, Write(7), 7), call(1, 2, Read, read)]));
        }
    }

    #[test]
    fn read_after_a_write_must_see_it() {
        assert!(has_order(&[call(0, 1, Write(7), 7), call(2, 3, Read, 7)]));
        assert!(!has_order(&[call(0, 1, Write(7), 7), call(2, 3, Read, 0)]));
    }

    #[test]
    fn value_that_was_seen_does_not_vanish() {
        let write = || call(0, 9, Write(7), 7);
        assert!(has_order(&[write(), call(1, 2, Read, 0), call(3, 4, Read, 7)]));
        assert!(!has_order(&[write(), call(1, 2, Read, 7), call(3, 4, Read, 0)]));
    }
}
