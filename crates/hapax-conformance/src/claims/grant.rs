//! Which caller is granted a claim.

use std::collections::HashSet;
use std::time::Duration;

use hapax_core::{ClaimRequest, Claimed, Key, OnUnknown, Step};

use super::{ask, expect_granted, fingerprint, lapsed_claim, race, take_over};
use crate::context::{LONG, LawContext, SHORT, concurrently};
use crate::suite::laws;

laws![
    key command;
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
];

async fn one_winner_among_64_concurrent_claims(s: LawContext, key: Key) {
    assert_eq!(race(&[&s], &key, &ask(), 64).await, 1);
}

async fn one_winner_among_claims_from_two_nodes(s: LawContext, _: Key) {
    let other = s.reopened().await;
    for round in 0..8 {
        let key = s.command(&format!("k{round}"));
        assert_eq!(race(&[&s, &other], &key, &ask(), 16).await, 1);
    }
}

async fn different_keys_are_granted_concurrently(s: LawContext, _: Key) {
    let claim = |i| {
        let s = s.clone();
        async move { s.granted(&s.command(&format!("k{i}")), &ask()).await.token }
    };
    let tokens = concurrently((0..100).map(claim)).await;
    assert_eq!(tokens.into_iter().collect::<HashSet<_>>().len(), 100);
}

async fn pending_claim_is_busy_for_others(s: LawContext, key: Key) {
    s.granted(&key, &ask()).await;
    match s.claim(&key, &ask()).await {
        Claimed::Busy { lease_left } => assert!(lease_left > Duration::ZERO && lease_left <= LONG),
        other => panic!("{other:?}"),
    }
}

async fn settled_claim_returns_its_value(s: LawContext, key: Key) {
    let ticket = s.granted(&key, &ask()).await;
    s.settled(&key, &ticket, "answer").await;
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

async fn another_fingerprint_is_a_mismatch_while_pending(s: LawContext, key: Key) {
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

async fn another_fingerprint_is_a_mismatch_when_settled(s: LawContext, key: Key) {
    let ticket = s.granted(&key, &ask().fingerprint(fingerprint("a"))).await;
    s.settled(&key, &ticket, "v").await;
    assert_eq!(s.claim(&key, &ask().fingerprint(fingerprint("b"))).await, Claimed::Mismatch);
    let same = s.claim(&key, &ask().fingerprint(fingerprint("a"))).await;
    assert!(matches!(same, Claimed::Settled { .. }));
}

async fn missing_fingerprint_equals_only_a_missing_one(s: LawContext, _: Key) {
    let (with, without) = (s.command("with"), s.command("without"));
    s.granted(&with, &ask().fingerprint(fingerprint(""))).await;
    assert_eq!(s.claim(&with, &ask()).await, Claimed::Mismatch);
    s.granted(&without, &ask()).await;
    let empty = ask().fingerprint(fingerprint(""));
    assert_eq!(s.claim(&without, &empty).await, Claimed::Mismatch);
    assert!(matches!(s.claim(&without, &ask()).await, Claimed::Busy { .. }));
}

async fn lapsed_lease_is_unknown_under_refuse(s: LawContext, key: Key) {
    lapsed_claim(&s, &key).await;
    for _ in 0..2 {
        assert!(matches!(s.claim(&key, &ask()).await, Claimed::Unknown { .. }));
    }
}

async fn lapsed_lease_is_taken_over_with_a_greater_fence(s: LawContext, key: Key) {
    let (token, fence) = lapsed_claim(&s, &key).await;
    match s.claim(&key, &take_over()).await {
        Claimed::Granted { ticket, attempt } => {
            assert!(ticket.fence > fence);
            assert_ne!(ticket.token, token);
            assert_eq!(attempt, 2);
        }
        other => panic!("{other:?}"),
    }
}

async fn one_winner_among_concurrent_takeovers(s: LawContext, key: Key) {
    lapsed_claim(&s, &key).await;
    let other = s.reopened().await;
    assert_eq!(race(&[&s, &other], &key, &take_over(), 64).await, 1);
}

async fn claim_without_retention_is_vacant_after_its_lease(s: LawContext, key: Key) {
    let ticket = s.granted(&key, &ClaimRequest::new(SHORT)).await;
    s.outlive(SHORT).await;
    assert_eq!(s.store.look(&key).await.unwrap(), None);
    assert_eq!(s.store.extend(&key, &ticket.token, LONG).await.unwrap(), Step::Lost);
    expect_granted(&s, &key, &ClaimRequest::new(LONG), 1, ticket.fence).await;
}
