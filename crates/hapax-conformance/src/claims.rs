//! The laws of `Claims`, one function each; its name is the sentence that it proves.

use std::collections::HashSet;
use std::time::Duration;

use bytes::Bytes;
use hapax_core::claims::ClaimState;
use hapax_core::{
    ClaimRequest, Claimed, Fence, Fingerprint, GiveBack, Key, OnUnknown, Step, Tenant, Token,
};

use crate::scene::{LONG, SHORT, Scene};
use crate::subject::laws;

laws![
    one_winner_among_64_concurrent_claims,
    one_winner_among_claims_from_two_nodes,
    different_keys_are_granted_concurrently,
    pending_claim_is_busy_for_others,
    settled_claim_returns_its_value,
    another_fingerprint_is_a_mismatch_while_pending,
    another_fingerprint_is_a_mismatch_when_settled,
    missing_fingerprint_equals_only_a_missing_one,
    lapsed_lease_is_unknown_under_refuse,
    lapsed_lease_is_taken_over_with_a_greater_fence,
    one_winner_among_concurrent_takeovers,
    claim_without_retention_is_vacant_after_its_lease,
    late_settle_is_refused_after_takeover,
    late_extend_is_refused_after_takeover,
    late_give_back_is_refused_after_takeover,
    wrong_token_changes_nothing,
    late_settle_is_accepted_before_takeover,
    late_extend_before_takeover_revives_the_claim,
    extended_claim_outlives_its_first_lease,
    extend_may_shorten_a_lease,
    claim_repeated_with_its_token_is_the_same_grant,
    claim_repeated_after_settle_gets_the_value,
    settle_repeated_with_the_same_value_is_done,
    second_settle_with_another_value_is_lost,
    settled_claim_cannot_be_changed,
    released_claim_is_vacant,
    failed_claim_keeps_fingerprint_and_attempts,
    failure_reported_again_is_done,
    failed_claim_has_no_owner,
    failed_claim_expires_after_its_retention,
    unknown_claim_expires_after_its_retention,
    settled_value_expires_after_its_retention,
    short_lease_does_not_shorten_a_long_retention,
    short_retention_does_not_shorten_a_long_lease,
    fences_grow_across_release_failure_and_expiry,
    fences_grow_across_a_restart,
    claims_survive_a_restart,
    binary_values_are_returned_unchanged,
    value_of_one_mebibyte_is_kept,
    empty_value_is_a_value,
    hostile_keys_are_kept_apart,
    keys_of_255_bytes_work,
    tenants_with_equal_keys_are_separate,
    kinds_and_scopes_with_equal_names_are_separate,
    look_shows_the_state_of_a_claim,
    waiter_is_woken_at_settle,
    waiter_is_woken_at_give_back,
    waiter_on_another_node_is_woken,
    sweep_removes_only_expired_claims,
];

fn ask() -> ClaimRequest {
    ClaimRequest::new(LONG).retention(LONG)
}

fn fingerprint(text: &str) -> Option<Fingerprint> {
    Fingerprint::new(text)
}

/// A claim whose lease has just run out, and the token of its owner.
async fn run_out(s: &Scene, key: &Key) -> (Token, Fence) {
    let ticket = s.granted(key, &ClaimRequest::new(SHORT).retention(LONG)).await;
    s.outlive(SHORT).await;
    (ticket.token, ticket.fence)
}

fn take_over() -> ClaimRequest {
    ask().on_unknown(OnUnknown::TakeOver)
}

async fn race(nodes: &[&Scene], key: &Key, ask: &ClaimRequest, claims: usize) -> usize {
    let mut tasks = Vec::new();
    for i in 0..claims {
        let (s, key, ask) = (nodes[i % nodes.len()].clone(), key.clone(), ask.with_fresh_token());
        tasks.push(tokio::spawn(async move { s.claim(&key, &ask).await }));
    }
    let mut winners = 0;
    for task in tasks {
        match task.await.unwrap() {
            Claimed::Granted { .. } => winners += 1,
            Claimed::Busy { .. } => {}
            other => panic!("a rival was told {other:?}"),
        }
    }
    winners
}

async fn one_winner_among_64_concurrent_claims(s: Scene) {
    assert_eq!(race(&[&s], &s.command("k"), &ask(), 64).await, 1);
}

async fn one_winner_among_claims_from_two_nodes(s: Scene) {
    let other = s.reopened().await;
    for round in 0..8 {
        let key = s.command(&format!("k{round}"));
        assert_eq!(race(&[&s, &other], &key, &ask(), 16).await, 1);
    }
}

async fn different_keys_are_granted_concurrently(s: Scene) {
    let mut tasks = Vec::new();
    for i in 0..100 {
        let s = s.clone();
        tasks.push(tokio::spawn(
            async move { s.granted(&s.command(&format!("k{i}")), &ask()).await },
        ));
    }
    let mut fences = HashSet::new();
    for task in tasks {
        fences.insert(task.await.unwrap().token);
    }
    assert_eq!(fences.len(), 100);
}

async fn pending_claim_is_busy_for_others(s: Scene) {
    let key = s.command("k");
    s.granted(&key, &ask()).await;
    match s.claim(&key, &ask()).await {
        Claimed::Busy { lease_left } => assert!(lease_left > Duration::ZERO && lease_left <= LONG),
        other => panic!("{other:?}"),
    }
}

async fn settled_claim_returns_its_value(s: Scene) {
    let key = s.command("k");
    let ticket = s.granted(&key, &ask()).await;
    let done = s.store.settle(&key, &ticket.token, "answer".into()).await.unwrap();
    assert_eq!(done, Step::Done(ticket.fence));
    for policy in [OnUnknown::Refuse, OnUnknown::TakeOver] {
        match s.claim(&key, &ask().on_unknown(policy)).await {
            Claimed::Settled { value, expires_in } => {
                assert_eq!(value, "answer");
                assert!(expires_in > Duration::ZERO && expires_in <= LONG);
            }
            other => panic!("{other:?}"),
        }
    }
}

async fn another_fingerprint_is_a_mismatch_while_pending(s: Scene) {
    let key = s.command("k");
    s.granted(&key, &ask().fingerprint(fingerprint("a"))).await;
    assert_eq!(s.claim(&key, &ask().fingerprint(fingerprint("b"))).await, Claimed::Mismatch);
    let same = s.claim(&key, &ask().fingerprint(fingerprint("a"))).await;
    assert!(matches!(same, Claimed::Busy { .. }));
    let unknown = s.command("unknown");
    s.granted(&unknown, &ClaimRequest::new(SHORT).retention(LONG).fingerprint(fingerprint("a")))
        .await;
    s.outlive(SHORT).await;
    let other = take_over().fingerprint(fingerprint("b"));
    assert_eq!(s.claim(&unknown, &other).await, Claimed::Mismatch);
}

async fn another_fingerprint_is_a_mismatch_when_settled(s: Scene) {
    let key = s.command("k");
    let ticket = s.granted(&key, &ask().fingerprint(fingerprint("a"))).await;
    let _ = s.store.settle(&key, &ticket.token, "v".into()).await.unwrap();
    assert_eq!(s.claim(&key, &ask().fingerprint(fingerprint("b"))).await, Claimed::Mismatch);
    let same = s.claim(&key, &ask().fingerprint(fingerprint("a"))).await;
    assert!(matches!(same, Claimed::Settled { .. }));
}

async fn missing_fingerprint_equals_only_a_missing_one(s: Scene) {
    let (with, without) = (s.command("with"), s.command("without"));
    s.granted(&with, &ask().fingerprint(fingerprint(""))).await;
    assert_eq!(s.claim(&with, &ask()).await, Claimed::Mismatch);
    s.granted(&without, &ask()).await;
    let empty = ask().fingerprint(fingerprint(""));
    assert_eq!(s.claim(&without, &empty).await, Claimed::Mismatch);
    assert!(matches!(s.claim(&without, &ask()).await, Claimed::Busy { .. }));
}

async fn lapsed_lease_is_unknown_under_refuse(s: Scene) {
    let key = s.command("k");
    run_out(&s, &key).await;
    for _ in 0..2 {
        assert!(matches!(s.claim(&key, &ask()).await, Claimed::Unknown { .. }));
    }
}

async fn lapsed_lease_is_taken_over_with_a_greater_fence(s: Scene) {
    let key = s.command("k");
    let (token, fence) = run_out(&s, &key).await;
    match s.claim(&key, &take_over()).await {
        Claimed::Granted { ticket, attempt } => {
            assert!(ticket.fence > fence);
            assert_ne!(ticket.token, token);
            assert_eq!(attempt, 2);
        }
        other => panic!("{other:?}"),
    }
}

async fn one_winner_among_concurrent_takeovers(s: Scene) {
    let key = s.command("k");
    run_out(&s, &key).await;
    assert_eq!(race(&[&s], &key, &take_over(), 64).await, 1);
}

async fn claim_without_retention_is_vacant_after_its_lease(s: Scene) {
    let key = s.command("k");
    let ticket = s.granted(&key, &ClaimRequest::new(SHORT)).await;
    s.outlive(SHORT).await;
    assert_eq!(s.store.look(&key).await.unwrap(), None);
    assert_eq!(s.store.extend(&key, &ticket.token, LONG).await.unwrap(), Step::Lost);
    match s.claim(&key, &ClaimRequest::new(LONG)).await {
        Claimed::Granted { ticket: next, attempt: 1 } => assert!(next.fence > ticket.fence),
        other => panic!("{other:?}"),
    }
}

async fn late_settle_is_refused_after_takeover(s: Scene) {
    let key = s.command("k");
    let (late, _) = run_out(&s, &key).await;
    let owner = s.granted(&key, &take_over()).await;
    assert_eq!(s.store.settle(&key, &late, "late".into()).await.unwrap(), Step::Lost);
    let _ = s.store.settle(&key, &owner.token, "right".into()).await.unwrap();
    assert_eq!(s.store.settle(&key, &late, "late".into()).await.unwrap(), Step::Lost);
    assert_eq!(s.store.settle(&key, &late, "right".into()).await.unwrap(), Step::Lost);
    assert!(
        matches!(s.claim(&key, &ask()).await, Claimed::Settled { value, .. } if value == "right")
    );
}

async fn late_extend_is_refused_after_takeover(s: Scene) {
    let key = s.command("k");
    let (late, _) = run_out(&s, &key).await;
    let owner = s.granted(&key, &take_over()).await;
    assert_eq!(s.store.extend(&key, &late, LONG).await.unwrap(), Step::Lost);
    let extended = s.store.extend(&key, &owner.token, LONG).await.unwrap();
    assert_eq!(extended, Step::Done(owner.fence));
}

async fn late_give_back_is_refused_after_takeover(s: Scene) {
    let key = s.command("k");
    let (late, _) = run_out(&s, &key).await;
    s.granted(&key, &take_over()).await;
    for how in [GiveBack::Forget, GiveBack::Keep] {
        assert_eq!(s.store.give_back(&key, &late, how).await.unwrap(), Step::Lost);
    }
    assert!(matches!(s.claim(&key, &take_over()).await, Claimed::Busy { .. }));
}

async fn wrong_token_changes_nothing(s: Scene) {
    let key = s.command("k");
    let vacant = s.command("vacant");
    let owner = s.granted(&key, &ask()).await;
    let long_token = "x".repeat(255);
    for wrong in ["", "0", "*", "hapax", long_token.as_str(), "a b:c|d\n"] {
        let wrong = Token::presented(wrong);
        for key in [&key, &vacant] {
            assert_eq!(s.store.extend(key, &wrong, LONG).await.unwrap(), Step::Lost);
            assert_eq!(s.store.settle(key, &wrong, "x".into()).await.unwrap(), Step::Lost);
            for how in [GiveBack::Forget, GiveBack::Keep] {
                assert_eq!(s.store.give_back(key, &wrong, how).await.unwrap(), Step::Lost);
            }
        }
    }
    assert_eq!(s.store.look(&vacant).await.unwrap(), None);
    let done = s.store.settle(&key, &owner.token, "v".into()).await.unwrap();
    assert_eq!(done, Step::Done(owner.fence));
}

async fn late_settle_is_accepted_before_takeover(s: Scene) {
    let key = s.command("k");
    let (token, fence) = run_out(&s, &key).await;
    assert!(matches!(s.claim(&key, &ask()).await, Claimed::Unknown { .. }));
    assert_eq!(s.store.settle(&key, &token, "late".into()).await.unwrap(), Step::Done(fence));
    assert!(matches!(s.claim(&key, &ask()).await, Claimed::Settled { .. }));
}

async fn late_extend_before_takeover_revives_the_claim(s: Scene) {
    let key = s.command("k");
    let (token, fence) = run_out(&s, &key).await;
    assert_eq!(s.store.extend(&key, &token, LONG).await.unwrap(), Step::Done(fence));
    assert!(matches!(s.claim(&key, &take_over()).await, Claimed::Busy { .. }));
}

async fn extended_claim_outlives_its_first_lease(s: Scene) {
    let key = s.command("k");
    let ticket = s.granted(&key, &ClaimRequest::new(SHORT).retention(LONG)).await;
    let extended = s.store.extend(&key, &ticket.token, LONG).await.unwrap();
    assert_eq!(extended, Step::Done(ticket.fence));
    s.outlive(SHORT).await;
    assert!(matches!(s.claim(&key, &take_over()).await, Claimed::Busy { .. }));
}

async fn extend_may_shorten_a_lease(s: Scene) {
    let key = s.command("k");
    let ticket = s.granted(&key, &ask()).await;
    let _ = s.store.extend(&key, &ticket.token, SHORT).await.unwrap();
    s.outlive(SHORT).await;
    assert!(matches!(s.claim(&key, &ask()).await, Claimed::Unknown { .. }));
}

async fn claim_repeated_with_its_token_is_the_same_grant(s: Scene) {
    let key = s.command("k");
    let ask = ClaimRequest::new(SHORT).retention(LONG).fingerprint(fingerprint("f"));
    let first = s.claim(&key, &ask).await;
    assert_eq!(s.claim(&key, &ask).await, first);
    s.outlive(SHORT).await;
    // Also when its lease ran out meanwhile; and then the lease is anew.
    let long = ClaimRequest { lease: LONG, ..ask };
    assert_eq!(s.claim(&key, &long).await, first);
    assert!(matches!(s.claim(&key, &long.with_fresh_token()).await, Claimed::Busy { .. }));
}

async fn claim_repeated_after_settle_gets_the_value(s: Scene) {
    let key = s.command("k");
    let ask = ask();
    let ticket = s.granted(&key, &ask).await;
    let _ = s.store.settle(&key, &ticket.token, "v".into()).await.unwrap();
    assert!(matches!(s.claim(&key, &ask).await, Claimed::Settled { .. }));
}

async fn settle_repeated_with_the_same_value_is_done(s: Scene) {
    let key = s.command("k");
    let ticket = s.granted(&key, &ask()).await;
    for _ in 0..2 {
        let done = s.store.settle(&key, &ticket.token, "v".into()).await.unwrap();
        assert_eq!(done, Step::Done(ticket.fence));
    }
}

async fn second_settle_with_another_value_is_lost(s: Scene) {
    let key = s.command("k");
    let ticket = s.granted(&key, &ask()).await;
    let _ = s.store.settle(&key, &ticket.token, "v".into()).await.unwrap();
    assert_eq!(s.store.settle(&key, &ticket.token, "w".into()).await.unwrap(), Step::Lost);
    assert_eq!(s.store.settle(&key, &ticket.token, Bytes::new()).await.unwrap(), Step::Lost);
    assert!(matches!(s.claim(&key, &ask()).await, Claimed::Settled { value, .. } if value == "v"));
}

async fn settled_claim_cannot_be_changed(s: Scene) {
    let key = s.command("k");
    let ticket = s.granted(&key, &ask()).await;
    let _ = s.store.settle(&key, &ticket.token, "v".into()).await.unwrap();
    assert_eq!(s.store.extend(&key, &ticket.token, LONG).await.unwrap(), Step::Lost);
    for how in [GiveBack::Forget, GiveBack::Keep] {
        assert_eq!(s.store.give_back(&key, &ticket.token, how).await.unwrap(), Step::Lost);
    }
    assert!(matches!(s.claim(&key, &take_over()).await, Claimed::Settled { .. }));
}

async fn released_claim_is_vacant(s: Scene) {
    let key = s.command("k");
    let ticket = s.granted(&key, &ask().fingerprint(fingerprint("a"))).await;
    let done = s.store.give_back(&key, &ticket.token, GiveBack::Forget).await.unwrap();
    assert_eq!(done, Step::Done(ticket.fence));
    assert_eq!(s.store.look(&key).await.unwrap(), None);
    assert_eq!(s.store.settle(&key, &ticket.token, "v".into()).await.unwrap(), Step::Lost);
    match s.claim(&key, &ask().fingerprint(fingerprint("b"))).await {
        Claimed::Granted { ticket: next, attempt: 1 } => assert!(next.fence > ticket.fence),
        other => panic!("{other:?}"),
    }
}

async fn failed_claim_keeps_fingerprint_and_attempts(s: Scene) {
    let key = s.command("k");
    let ask = ask().fingerprint(fingerprint("a"));
    let ticket = s.granted(&key, &ask).await;
    let done = s.store.give_back(&key, &ticket.token, GiveBack::Keep).await.unwrap();
    assert_eq!(done, Step::Done(ticket.fence));
    assert_eq!(
        s.claim(&key, &ask.with_fresh_token().fingerprint(fingerprint("b"))).await,
        Claimed::Mismatch
    );
    match s.claim(&key, &ask.with_fresh_token()).await {
        Claimed::Granted { ticket: next, attempt: 2 } => assert!(next.fence > ticket.fence),
        other => panic!("{other:?}"),
    }
}

async fn failure_reported_again_is_done(s: Scene) {
    let key = s.command("k");
    let ticket = s.granted(&key, &ask()).await;
    for _ in 0..2 {
        let done = s.store.give_back(&key, &ticket.token, GiveBack::Keep).await.unwrap();
        assert_eq!(done, Step::Done(ticket.fence));
    }
}

async fn failed_claim_has_no_owner(s: Scene) {
    let key = s.command("k");
    let ticket = s.granted(&key, &ask()).await;
    let _ = s.store.give_back(&key, &ticket.token, GiveBack::Keep).await.unwrap();
    assert_eq!(s.store.settle(&key, &ticket.token, "v".into()).await.unwrap(), Step::Lost);
    assert_eq!(s.store.extend(&key, &ticket.token, LONG).await.unwrap(), Step::Lost);
    let forget = s.store.give_back(&key, &ticket.token, GiveBack::Forget).await.unwrap();
    assert_eq!(forget, Step::Lost);
    assert_eq!(race(&[&s], &key, &ask(), 16).await, 1);
}

async fn failed_claim_expires_after_its_retention(s: Scene) {
    let key = s.command("k");
    let ask = ClaimRequest::new(LONG).retention(SHORT).fingerprint(fingerprint("a"));
    let ticket = s.granted(&key, &ask).await;
    let _ = s.store.give_back(&key, &ticket.token, GiveBack::Keep).await.unwrap();
    s.outlive(SHORT).await;
    assert_eq!(s.store.look(&key).await.unwrap(), None);
    match s.claim(&key, &ask.with_fresh_token().fingerprint(fingerprint("b"))).await {
        Claimed::Granted { ticket: next, attempt: 1 } => assert!(next.fence > ticket.fence),
        other => panic!("{other:?}"),
    }
}

async fn unknown_claim_expires_after_its_retention(s: Scene) {
    let key = s.command("k");
    let ticket = s.granted(&key, &ClaimRequest::new(SHORT).retention(SHORT)).await;
    s.outlive(SHORT * 2).await;
    assert_eq!(s.store.settle(&key, &ticket.token, "v".into()).await.unwrap(), Step::Lost);
    match s.claim(&key, &ask()).await {
        Claimed::Granted { ticket: next, attempt: 1 } => assert!(next.fence > ticket.fence),
        other => panic!("{other:?}"),
    }
}

async fn settled_value_expires_after_its_retention(s: Scene) {
    let key = s.command("k");
    let ticket = s.granted(&key, &ClaimRequest::new(LONG).retention(SHORT)).await;
    let _ = s.store.settle(&key, &ticket.token, "v".into()).await.unwrap();
    s.outlive(SHORT).await;
    match s.claim(&key, &ask()).await {
        Claimed::Granted { ticket: next, attempt: 1 } => assert!(next.fence > ticket.fence),
        other => panic!("{other:?}"),
    }
}

async fn short_lease_does_not_shorten_a_long_retention(s: Scene) {
    let key = s.command("k");
    let ticket = s.granted(&key, &ClaimRequest::new(SHORT).retention(LONG)).await;
    let _ = s.store.settle(&key, &ticket.token, "v".into()).await.unwrap();
    s.outlive(SHORT).await;
    assert!(matches!(s.claim(&key, &ask()).await, Claimed::Settled { .. }));
}

async fn short_retention_does_not_shorten_a_long_lease(s: Scene) {
    let key = s.command("k");
    s.granted(&key, &ClaimRequest::new(LONG).retention(SHORT)).await;
    s.outlive(SHORT).await;
    assert!(matches!(s.claim(&key, &take_over()).await, Claimed::Busy { .. }));
}

async fn fences_grow_across_release_failure_and_expiry(s: Scene) {
    let key = s.command("k");
    let mut last = Fence(0);
    let mut grown = |fence: Fence| {
        assert!(fence > last, "{fence} after {last}");
        last = fence;
    };
    for how in [GiveBack::Forget, GiveBack::Keep, GiveBack::Forget] {
        let ticket = s.granted(&key, &ask()).await;
        grown(ticket.fence);
        let _ = s.store.give_back(&key, &ticket.token, how).await.unwrap();
    }
    let (_, fence) = run_out(&s, &key).await;
    grown(fence);
    grown(s.granted(&key, &take_over()).await.fence);
}

async fn fences_grow_across_a_restart(s: Scene) {
    let key = s.command("k");
    let ticket = s.granted(&key, &ask()).await;
    let _ = s.store.give_back(&key, &ticket.token, GiveBack::Forget).await.unwrap();
    let again = s.reopened().await;
    assert!(again.granted(&key, &ask()).await.fence > ticket.fence);
}

async fn claims_survive_a_restart(s: Scene) {
    let (pending, settled) = (s.command("pending"), s.command("settled"));
    let ticket = s.granted(&pending, &ask()).await;
    let done = s.granted(&settled, &ask()).await;
    let _ = s.store.settle(&settled, &done.token, "v".into()).await.unwrap();
    let again = s.reopened().await;
    assert!(matches!(again.claim(&pending, &ask()).await, Claimed::Busy { .. }));
    assert!(matches!(again.claim(&settled, &ask()).await, Claimed::Settled { .. }));
    let settle = again.store.settle(&pending, &ticket.token, "v".into()).await.unwrap();
    assert_eq!(settle, Step::Done(ticket.fence));
}

async fn settled_with(s: &Scene, name: &str, value: Bytes) -> Bytes {
    let key = s.command(name);
    let ticket = s.granted(&key, &ask()).await;
    let done = s.store.settle(&key, &ticket.token, value).await.unwrap();
    assert_eq!(done, Step::Done(ticket.fence));
    match s.claim(&key, &ask()).await {
        Claimed::Settled { value, .. } => value,
        other => panic!("{other:?}"),
    }
}

async fn binary_values_are_returned_unchanged(s: Scene) {
    let every_byte: Bytes = (0..=255).cycle().take(1024).collect::<Vec<u8>>().into();
    assert_eq!(settled_with(&s, "bytes", every_byte.clone()).await, every_byte);
    for (i, text) in ["\0", "\r\n", "\n\n|0 1", "{}", "ü⏳"].into_iter().enumerate() {
        assert_eq!(settled_with(&s, &format!("k{i}"), text.into()).await, text);
    }
}

async fn value_of_one_mebibyte_is_kept(s: Scene) {
    let large: Bytes = (0..1_048_576_u32).map(|i| (i % 251) as u8).collect::<Vec<_>>().into();
    assert!(settled_with(&s, "large", large.clone()).await == large);
}

async fn empty_value_is_a_value(s: Scene) {
    assert_eq!(settled_with(&s, "empty", Bytes::new()).await, Bytes::new());
}

async fn hostile_keys_are_kept_apart(s: Scene) {
    let names = [
        "*", "?", "%", "%3A", ":", "::", "{", "}", "{}", "{a}", "a{b}c", "a}b{c", "'", "\"", "\\",
        "--", "';DROP", "$1", "../..", "a/b", "~", "0", "-1", "null", "[a-z]", "<x>", "KEYS[1]",
        "|",
    ];
    let mut tickets = Vec::new();
    for name in names {
        let key = s.command(name);
        tickets.push((key.clone(), s.granted(&key, &ask()).await));
    }
    for (key, ticket) in tickets {
        let value = Bytes::from(key.name().to_owned());
        let done = s.store.settle(&key, &ticket.token, value.clone()).await.unwrap();
        assert_eq!(done, Step::Done(ticket.fence));
        match s.claim(&key, &ask()).await {
            Claimed::Settled { value: stored, .. } => assert_eq!(stored, value),
            other => panic!("{other:?}"),
        }
    }
}

async fn keys_of_255_bytes_work(s: Scene) {
    let (long, other) = ("x".repeat(255), format!("{}y", "x".repeat(254)));
    let a = Key::command(&s.tenant, &long, &long).unwrap();
    let b = Key::command(&s.tenant, &long, &other).unwrap();
    s.granted(&a, &ask().fingerprint(fingerprint(&long))).await;
    s.granted(&b, &ask()).await;
}

async fn tenants_with_equal_keys_are_separate(s: Scene) {
    let (mine, theirs) = (s.command("k"), {
        let other = Tenant::new(&format!("{}x", s.tenant.as_str())).unwrap();
        Key::command(&other, "law", "k").unwrap()
    });
    let ticket = s.granted(&mine, &ask()).await;
    assert_eq!(s.store.settle(&theirs, &ticket.token, "v".into()).await.unwrap(), Step::Lost);
    let _ = s.store.settle(&mine, &ticket.token, "secret".into()).await.unwrap();
    assert_eq!(s.store.look(&theirs).await.unwrap(), None);
    s.granted(&theirs, &ask()).await;
}

async fn kinds_and_scopes_with_equal_names_are_separate(s: Scene) {
    for key in [
        Key::command(&s.tenant, "a", "k").unwrap(),
        Key::command(&s.tenant, "b", "k").unwrap(),
        Key::command(&s.tenant, "a:b", "c").unwrap(),
        Key::command(&s.tenant, "a", "b:c").unwrap(),
        Key::inbox(&s.tenant, "a", "k").unwrap(),
        Key::lock(&s.tenant, "k").unwrap(),
        Key::lock(&s.tenant, "a:k").unwrap(),
    ] {
        s.granted(&key, &ask()).await;
    }
}

async fn look_shows_the_state_of_a_claim(s: Scene) {
    let key = s.command("k");
    assert_eq!(s.store.look(&key).await.unwrap(), None);
    let ask_with = ClaimRequest::new(SHORT).retention(LONG).fingerprint(fingerprint("f"));
    let ticket = s.granted(&key, &ask_with).await;
    s.outlive(SHORT).await;
    let (token, fence) = (ticket.token, ticket.fence);
    let view = s.store.look(&key).await.unwrap().unwrap();
    assert!(matches!(view.state, ClaimState::Unknown { .. }));
    assert_eq!((view.fence, view.attempt), (Some(fence), 1));
    assert_eq!((view.token, view.fingerprint), (Some(token.clone()), fingerprint("f")));
    let _ = s.store.extend(&key, &token, LONG).await.unwrap();
    let view = s.store.look(&key).await.unwrap().unwrap();
    assert!(matches!(view.state, ClaimState::Pending { lease_left } if lease_left <= LONG));
    let _ = s.store.give_back(&key, &token, GiveBack::Keep).await.unwrap();
    let view = s.store.look(&key).await.unwrap().unwrap();
    assert!(matches!(view.state, ClaimState::Failed { .. }));
    let next = s.granted(&key, &ask_with.with_fresh_token()).await;
    let _ = s.store.settle(&key, &next.token, "v".into()).await.unwrap();
    let view = s.store.look(&key).await.unwrap().unwrap();
    assert!(matches!(view.state, ClaimState::Settled { value, .. } if value == "v"));
    assert_eq!((view.fence, view.attempt), (Some(next.fence), 2));
    assert!(view.granted_ago.is_some_and(|ago| ago < LONG));
}

/// Waits far longer than the test may take: only a hint ends it in time.
async fn woken(waiting: &Scene, key: &Key, acts: impl Future<Output = ()>) {
    let mut watch = waiting.store.watch(key);
    // A subscription over the network may need a moment; a hint that was sent before it stood is
    // what the features' own polling is for, so this law gives it that moment.
    tokio::time::sleep(Duration::from_millis(300)).await;
    acts.await;
    let woken = tokio::time::timeout(Duration::from_secs(60), watch.changed(LONG)).await;
    assert!(woken.is_ok(), "nobody woke the waiter");
}

async fn waiter_is_woken_at_settle(s: Scene) {
    let key = s.command("k");
    let ticket = s.granted(&key, &ask()).await;
    woken(&s, &key, async {
        let _ = s.store.settle(&key, &ticket.token, "v".into()).await.unwrap();
    })
    .await;
}

async fn waiter_is_woken_at_give_back(s: Scene) {
    for how in [GiveBack::Forget, GiveBack::Keep] {
        let key = s.command(&format!("{how:?}"));
        let ticket = s.granted(&key, &ask()).await;
        woken(&s, &key, async {
            let _ = s.store.give_back(&key, &ticket.token, how).await.unwrap();
        })
        .await;
    }
}

async fn waiter_on_another_node_is_woken(s: Scene) {
    let other = s.reopened().await;
    let key = s.command("k");
    let ticket = s.granted(&key, &ask()).await;
    woken(&other, &key, async {
        let _ = s.store.settle(&key, &ticket.token, "v".into()).await.unwrap();
    })
    .await;
}

async fn sweep_removes_only_expired_claims(s: Scene) {
    let (gone, kept) = (s.command("gone"), s.command("kept"));
    s.granted(&gone, &ClaimRequest::new(SHORT)).await;
    let ticket = s.granted(&kept, &ask()).await;
    s.outlive(SHORT).await;
    s.store.sweep(10_000).await.unwrap();
    assert_eq!(s.store.look(&gone).await.unwrap(), None);
    let done = s.store.settle(&kept, &ticket.token, "v".into()).await.unwrap();
    assert_eq!(done, Step::Done(ticket.fence));
    s.granted(&gone, &ask()).await;
}
