use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use hapax_conformance::{Fault, FaultyStore};
use hapax_core::command::{
    Begun, CommandConfig, CommandError, CommandState, Commands, OperatorDecision, OperatorOutcome,
    StoredResponse,
};
use hapax_core::{OnUnknown, OnceError, Operation, Ticket};
use serde_json::json;
use tokio::time::sleep;

use crate::features::{faulty, secs};

fn commands() -> (FaultyStore, Commands) {
    let store = faulty();
    (store.clone(), Commands::new(Arc::new(store)))
}

const PAY: Operation<'_> = Operation("pay");

async fn granted(commands: &Commands, key: &str, config: &CommandConfig) -> Ticket {
    match commands.begin(PAY, key, config).await.unwrap() {
        Begun::Granted { ticket, .. } => ticket,
        other => panic!("{other:?}"),
    }
}

async fn decide(commands: &Commands, key: &str, decision: &OperatorDecision) -> OperatorOutcome {
    commands.decide_as_operator(PAY, key, decision).await.unwrap()
}

fn response(body: &'static str) -> StoredResponse {
    StoredResponse { status: 201, headers: vec![("x".into(), "y".into())], body: body.into() }
}

#[tokio::test(start_paused = true)]
async fn command_of_fifty_callers_runs_once() {
    let (_, commands) = commands();
    let commands = commands.config(CommandConfig::default().wait(secs(60)));
    let runs = Arc::new(AtomicU32::new(0));
    let mut callers = Vec::new();
    for _ in 0..50 {
        let (commands, runs) = (commands.clone(), runs.clone());
        callers.push(tokio::spawn(async move {
            let effect = || async move {
                sleep(secs(20)).await;
                Ok::<_, Infallible>(runs.fetch_add(1, Ordering::SeqCst))
            };
            commands.once(PAY, "k", &json!({"a": 1}), effect).await.unwrap()
        }));
    }
    let mut first_runs = 0;
    for caller in callers {
        let once = caller.await.unwrap();
        assert_eq!(once.value, 0);
        first_runs += u32::from(!once.replayed);
    }
    assert_eq!((first_runs, runs.load(Ordering::SeqCst)), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn command_lease_is_renewed_while_the_effect_runs() {
    let (_, commands) = commands();
    let effect = {
        let commands = commands.clone();
        move || async move {
            sleep(secs(300)).await;
            let begun = commands.begin(PAY, "k", &CommandConfig::default()).await.unwrap();
            // Without a fingerprint this is another request, which is enough to see that the key is pending.
            assert_eq!(begun, Begun::KeyReused);
            let view = commands.look(PAY, "k").await.unwrap().unwrap();
            assert!(matches!(view.state, CommandState::Pending { .. }));
            Ok::<_, Infallible>(7)
        }
    };
    assert_eq!(commands.once(PAY, "k", &1, effect).await.unwrap().value, 7);
}

#[tokio::test(start_paused = true)]
async fn command_error_releases_the_key_for_the_same_input() {
    let (_, commands) = commands();
    let failed = commands.once(PAY, "k", &1, || async { Err::<(), _>("no") }).await;
    assert!(matches!(failed, Err(OnceError::Failed("no"))));
    let other = commands.once(PAY, "k", &2, || async { Ok::<_, &str>(()) }).await;
    assert!(matches!(other, Err(OnceError::KeyReused)));
    let run = commands.once_with(PAY, "k", &1, |run| async move { Ok::<_, &str>(run.attempt) });
    assert_eq!(run.await.unwrap().value, 2);
}

#[tokio::test(start_paused = true)]
async fn command_of_a_cancelled_caller_becomes_unknown() {
    let (_, commands) = commands();
    let effect = || async {
        sleep(secs(3600)).await;
        Ok::<_, Infallible>(1)
    };
    let gone = tokio::time::timeout(secs(5), commands.once(PAY, "k", &1, effect)).await;
    assert!(gone.is_err());
    let again = || async { Ok::<_, Infallible>(2) };
    let early = commands.once(PAY, "k", &1, again).await;
    assert!(matches!(early, Err(OnceError::InProgress { .. })));
    sleep(secs(30)).await;
    let refused = commands.once(PAY, "k", &1, again).await;
    assert!(matches!(refused, Err(OnceError::OutcomeUnknown { .. })));
    let rerun = commands.config(CommandConfig::default().on_unknown(OnUnknown::TakeOver));
    assert_eq!(rerun.once(PAY, "k", &1, again).await.unwrap().value, 2);
}

#[tokio::test(start_paused = true)]
async fn command_repeats_a_store_call_with_a_lost_reply() {
    let (store, commands) = commands();
    store.plan([Fault::LostAnswer, Fault::None, Fault::LostAnswer]);
    let once = commands.once(PAY, "k", &1, || async { Ok::<_, Infallible>(1) }).await;
    assert_eq!(once.unwrap().value, 1);
    let again = commands.once(PAY, "k", &1, || async { Ok::<_, Infallible>(2) }).await.unwrap();
    assert_eq!((again.value, again.replayed), (1, true));
}

#[tokio::test(start_paused = true)]
async fn command_begin_with_lost_replies_is_undone() {
    let (store, commands) = commands();
    store.plan([Fault::LostAnswer, Fault::LostAnswer]);
    let begun = commands.begin(PAY, "k", &CommandConfig::default()).await;
    assert!(matches!(begun, Err(CommandError::Store(_))));
    sleep(secs(3600)).await;
    let begun = commands.begin(PAY, "k", &CommandConfig::default()).await.unwrap();
    assert!(matches!(begun, Begun::Granted { attempt: 2, .. }), "{begun:?}");
}

#[tokio::test(start_paused = true)]
async fn command_unheard_takeover_leaves_outcome_unknown() {
    let (store, commands) = commands();
    let refuse = CommandConfig::default().lease(secs(5));
    granted(&commands, "k", &refuse).await;
    sleep(secs(10)).await;
    // The owner may have acted. Another caller takes over, and never hears of it.
    store.plan([Fault::LostAnswer, Fault::LostAnswer]);
    let rerun = refuse.clone().on_unknown(OnUnknown::TakeOver);
    let begun = commands.begin(PAY, "k", &rerun).await;
    assert!(matches!(begun, Err(CommandError::Store(_))));
    sleep(secs(60)).await;
    let begun = commands.begin(PAY, "k", &refuse).await.unwrap();
    assert!(matches!(begun, Begun::OutcomeUnknown { .. }), "it would run twice: {begun:?}");
    let begun = commands.begin(PAY, "k", &rerun).await.unwrap();
    assert!(matches!(begun, Begun::Granted { attempt: 3, .. }), "{begun:?}");
}

#[tokio::test(start_paused = true)]
async fn command_completion_is_accepted_again_if_equal() {
    let (_, commands) = commands();
    let ticket = granted(&commands, "k", &CommandConfig::default()).await;
    for _ in 0..2 {
        commands.complete(PAY, "k", &ticket.token, &response("a")).await.unwrap();
    }
    let other = commands.complete(PAY, "k", &ticket.token, &response("b")).await;
    assert!(matches!(other, Err(CommandError::Lost)));
    let fail = commands.fail(PAY, "k", &ticket.token).await;
    assert!(matches!(fail, Err(CommandError::Lost)));
    match commands.begin(PAY, "k", &CommandConfig::default()).await.unwrap() {
        Begun::Completed { response: stored, .. } => assert_eq!(stored, response("a")),
        other => panic!("{other:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn command_late_completion_is_accepted_until_takeover() {
    let (_, commands) = commands();
    let rerun = CommandConfig::default().on_unknown(OnUnknown::TakeOver);
    let mut tickets = Vec::new();
    for _ in 0..2 {
        let ticket = granted(&commands, "k", &rerun).await;
        tickets.push(ticket);
        sleep(secs(31)).await;
    }
    assert!(tickets[1].fence > tickets[0].fence);
    let late = commands.complete(PAY, "k", &tickets[0].token, &response("late")).await;
    assert!(matches!(late, Err(CommandError::Lost)));
    commands.complete(PAY, "k", &tickets[1].token, &response("right")).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn command_cancelled_before_its_grant_leaves_nothing() {
    let (store, commands) = commands();
    store.plan([Fault::NoAnswer]);
    let begin = CommandConfig::default();
    let gone = tokio::time::timeout(secs(1), commands.begin(PAY, "k", &begin)).await;
    assert!(gone.is_err());
    sleep(secs(1)).await;
    let begun = commands.begin(PAY, "k", &begin).await.unwrap();
    assert!(matches!(begun, Begun::Granted { attempt: 2, .. }), "{begun:?}");
}

#[tokio::test(start_paused = true)]
async fn operator_resolves_only_unknown_or_failed_commands() {
    let (_, commands) = commands();
    let settle = OperatorDecision::Settle(response("decided"));
    let missing = decide(&commands, "none", &OperatorDecision::Release).await;
    assert_eq!(missing, OperatorOutcome::Missing);

    let fingerprint = hapax_core::Fingerprint::new("f");
    let begin = CommandConfig::default().fingerprint(fingerprint);
    for key in ["settle-unknown", "release-unknown", "settle-failed", "release-failed"] {
        let ticket = granted(&commands, key, &begin).await;
        let early = decide(&commands, key, &settle).await;
        assert_eq!(early, OperatorOutcome::Pending);
        if key.ends_with("unknown") {
            sleep(secs(31)).await;
        } else {
            commands.fail(PAY, key, &ticket.token).await.unwrap();
        }
        let decision = if key.starts_with("settle") { &settle } else { &OperatorDecision::Release };
        assert_eq!(decide(&commands, key, decision).await, OperatorOutcome::Done);
        let late = commands.complete(PAY, key, &ticket.token, &response("late")).await;
        assert!(matches!(late, Err(CommandError::Lost)));
        let begun = commands.begin(PAY, key, &begin).await.unwrap();
        if key.starts_with("settle") {
            assert!(matches!(begun, Begun::Completed { .. }), "{begun:?}");
            let again = decide(&commands, key, &OperatorDecision::Release).await;
            assert_eq!(again, OperatorOutcome::Completed);
        } else {
            assert!(matches!(begun, Begun::Granted { attempt: 1, .. }), "{begun:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn fault_14_overruling_a_failed_command_is_undone_after_an_error() {
    let settle = OperatorDecision::Settle(response("decided"));
    let lost = Fault::LostQuestion;
    for (decision, faults) in [
        (&settle, vec![Fault::None, Fault::None, lost, lost]),
        (&OperatorDecision::Release, vec![Fault::None, Fault::None, lost]),
        // The claim of the operator was granted, and its answer lost.
        (&settle, vec![Fault::None, Fault::LostAnswer, Fault::LostAnswer]),
    ] {
        let (store, commands) = commands();
        let ticket = granted(&commands, "k", &CommandConfig::default()).await;
        commands.fail(PAY, "k", &ticket.token).await.unwrap();
        store.plan(faults);
        let decided = commands.decide_as_operator(PAY, "k", decision).await;
        assert!(matches!(decided, Err(CommandError::Store(_))), "{decided:?}");
        // Longer than the lease: a claim that nobody ends would be unknown.
        sleep(secs(60)).await;
        let view = commands.look(PAY, "k").await.unwrap().unwrap();
        assert!(matches!(view.state, CommandState::Failed { .. }), "{:?}", view.state);
        assert_eq!(decide(&commands, "k", &settle).await, OperatorOutcome::Done);
    }
}

#[tokio::test(start_paused = true)]
async fn fault_14_longest_duration_of_a_command_is_no_panic() {
    let (_, commands) = commands();
    let endless = CommandConfig::default().lease(Duration::MAX).retention(Duration::MAX);
    let endless = commands.config(endless.wait(Duration::MAX));
    let effect = || async {
        sleep(secs(3600)).await;
        Ok::<_, Infallible>(1)
    };
    let first = endless.once(PAY, "k", &1, effect);
    let (first, second) = tokio::join!(first, endless.once(PAY, "k", &1, effect));
    assert_eq!((first.unwrap().replayed, second.unwrap().replayed), (false, true));
}

#[tokio::test(start_paused = true)]
async fn command_answer_too_large_is_refused() {
    let (_, commands) = commands();
    let ticket = granted(&commands, "k", &CommandConfig::default()).await;
    let headers = vec![("x".to_owned(), "y".into()); 65_536];
    let huge = StoredResponse { headers, ..response("a") };
    let refused = commands.complete(PAY, "k", &ticket.token, &huge).await;
    assert!(matches!(refused, Err(CommandError::Unstorable)));
    commands.complete(PAY, "k", &ticket.token, &response("a")).await.unwrap();
}
