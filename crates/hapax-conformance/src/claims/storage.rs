//! Expiry, fences, stored values, keys, and wake-ups.

use std::time::Duration;

use bytes::Bytes;
use hapax_core::claims::ClaimState;
use hapax_core::{ClaimRequest, Claimed, Fence, GiveBack, Key, Operation, Step};

use super::{ask, expect_granted, fingerprint, lapsed_claim, take_over};
use crate::context::{LONG, LawContext, SHORT, expect_woken};
use crate::suite::laws;

laws![
    key command;
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
    look_shows_the_retention_of_a_claim,
    waiter_is_woken_at_settle,
    waiter_is_woken_at_give_back,
    waiter_on_another_node_is_woken,
    sweep_removes_only_expired_claims,
];

async fn failed_claim_expires_after_its_retention(s: LawContext, key: Key) {
    let ask = ClaimRequest::new(LONG).retention(SHORT).fingerprint(fingerprint("a"));
    let ticket = s.granted(&key, &ask).await;
    s.given_back(&key, &ticket, GiveBack::Keep).await;
    s.outlive(SHORT).await;
    assert_eq!(s.store.look(&key).await.unwrap(), None);
    expect_granted(
        &s,
        &key,
        &ask.with_fresh_token().fingerprint(fingerprint("b")),
        1,
        ticket.fence,
    )
    .await;
}

async fn unknown_claim_expires_after_its_retention(s: LawContext, key: Key) {
    let ticket = s.granted(&key, &ClaimRequest::new(SHORT).retention(SHORT)).await;
    s.outlive(SHORT * 2).await;
    assert_eq!(s.store.settle(&key, &ticket.token, "v".into()).await.unwrap(), Step::Lost);
    expect_granted(&s, &key, &ask(), 1, ticket.fence).await;
}

async fn settled_value_expires_after_its_retention(s: LawContext, key: Key) {
    let ticket = s.granted(&key, &ClaimRequest::new(LONG).retention(SHORT)).await;
    s.settled(&key, &ticket, "v").await;
    s.outlive(SHORT).await;
    expect_granted(&s, &key, &ask(), 1, ticket.fence).await;
}

async fn short_lease_does_not_shorten_a_long_retention(s: LawContext, key: Key) {
    let ticket = s.granted(&key, &ClaimRequest::new(SHORT).retention(LONG)).await;
    s.settled(&key, &ticket, "v").await;
    s.outlive(SHORT).await;
    assert!(matches!(s.claim(&key, &ask()).await, Claimed::Settled { .. }));
}

async fn short_retention_does_not_shorten_a_long_lease(s: LawContext, key: Key) {
    s.granted(&key, &ClaimRequest::new(LONG).retention(SHORT)).await;
    s.outlive(SHORT).await;
    assert!(matches!(s.claim(&key, &take_over()).await, Claimed::Busy { .. }));
}

async fn fences_grow_across_release_failure_and_expiry(s: LawContext, key: Key) {
    let mut last = Fence(0);
    let mut grown = |fence: Fence| {
        assert!(fence > last, "{fence} after {last}");
        last = fence;
    };
    for how in [GiveBack::Forget, GiveBack::Keep, GiveBack::Forget] {
        let ticket = s.granted(&key, &ask()).await;
        grown(ticket.fence);
        s.given_back(&key, &ticket, how).await;
    }
    let (_, fence) = lapsed_claim(&s, &key).await;
    grown(fence);
    grown(s.granted(&key, &take_over()).await.fence);
}

async fn fences_grow_across_a_restart(s: LawContext, key: Key) {
    let ticket = s.granted(&key, &ask()).await;
    s.given_back(&key, &ticket, GiveBack::Forget).await;
    let again = s.reopened().await;
    assert!(again.granted(&key, &ask()).await.fence > ticket.fence);
}

async fn claims_survive_a_restart(s: LawContext, _: Key) {
    let (pending, settled) = (s.command("pending"), s.command("settled"));
    let ticket = s.granted(&pending, &ask()).await;
    let done = s.granted(&settled, &ask()).await;
    s.settled(&settled, &done, "v").await;
    let again = s.reopened().await;
    assert!(matches!(again.claim(&pending, &ask()).await, Claimed::Busy { .. }));
    assert!(matches!(again.claim(&settled, &ask()).await, Claimed::Settled { .. }));
    again.settled(&pending, &ticket, "v").await;
}

async fn settled_with(s: &LawContext, name: &str, value: Bytes) -> Bytes {
    let key = s.command(name);
    let ticket = s.granted(&key, &ask()).await;
    s.settled(&key, &ticket, value).await;
    match s.claim(&key, &ask()).await {
        Claimed::Settled { value, .. } => value,
        other => panic!("{other:?}"),
    }
}

async fn binary_values_are_returned_unchanged(s: LawContext, _: Key) {
    let every_byte: Bytes = (0..=255).cycle().take(1024).collect::<Vec<u8>>().into();
    assert_eq!(settled_with(&s, "bytes", every_byte.clone()).await, every_byte);
    for (i, text) in ["\0", "\r\n", "\n\n|0 1", "{}", "ü⏳"].into_iter().enumerate() {
        assert_eq!(settled_with(&s, &format!("k{i}"), text.into()).await, text);
    }
}

async fn value_of_one_mebibyte_is_kept(s: LawContext, _: Key) {
    let large: Bytes = (0..1_048_576_u32).map(|i| (i % 251) as u8).collect::<Vec<_>>().into();
    assert!(settled_with(&s, "large", large.clone()).await == large);
}

async fn empty_value_is_a_value(s: LawContext, _: Key) {
    assert_eq!(settled_with(&s, "empty", Bytes::new()).await, Bytes::new());
}

async fn hostile_keys_are_kept_apart(s: LawContext, _: Key) {
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

async fn keys_of_255_bytes_work(s: LawContext, _: Key) {
    let (long, other) = ("x".repeat(255), format!("{}y", "x".repeat(254)));
    let a = Key::command(&s.tenant, Operation(&long), &long).unwrap();
    let b = Key::command(&s.tenant, Operation(&long), &other).unwrap();
    s.granted(&a, &ask().fingerprint(fingerprint(&long))).await;
    s.granted(&b, &ask()).await;
}

async fn tenants_with_equal_keys_are_separate(s: LawContext, mine: Key) {
    let theirs = Key::command(&s.other_tenant(), Operation("law"), "k").unwrap();
    let ticket = s.granted(&mine, &ask()).await;
    assert_eq!(s.store.settle(&theirs, &ticket.token, "v".into()).await.unwrap(), Step::Lost);
    s.settled(&mine, &ticket, "secret").await;
    assert_eq!(s.store.look(&theirs).await.unwrap(), None);
    s.granted(&theirs, &ask()).await;
}

async fn kinds_and_scopes_with_equal_names_are_separate(s: LawContext, _: Key) {
    for key in [
        Key::command(&s.tenant, Operation("a"), "k").unwrap(),
        Key::command(&s.tenant, Operation("b"), "k").unwrap(),
        Key::command(&s.tenant, Operation("a:b"), "c").unwrap(),
        Key::command(&s.tenant, Operation("a"), "b:c").unwrap(),
        Key::inbox(&s.tenant, "a", "k").unwrap(),
        Key::lock(&s.tenant, "k").unwrap(),
        Key::lock(&s.tenant, "a:k").unwrap(),
    ] {
        s.granted(&key, &ask()).await;
    }
}

async fn look_shows_the_state_of_a_claim(s: LawContext, key: Key) {
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
    s.settled(&key, &next, "v").await;
    let view = s.store.look(&key).await.unwrap().unwrap();
    assert!(matches!(view.state, ClaimState::Settled { value, .. } if value == "v"));
    assert_eq!((view.fence, view.attempt), (Some(next.fence), 2));
    assert!(view.granted_ago.is_some_and(|ago| ago < LONG));
}

/// With the rest of the retention, it tells how long ago the claim was settled.
async fn look_shows_the_retention_of_a_claim(s: LawContext, key: Key) {
    let retention = async |key: &Key| {
        s.store.look(key).await.expect("the store answers").expect("a claim").retention
    };
    let ticket = s.granted(&key, &ClaimRequest::new(SHORT).retention(LONG)).await;
    assert_eq!(retention(&key).await, Some(LONG), "pending");
    s.outlive(SHORT).await;
    assert_eq!(retention(&key).await, Some(LONG), "unknown");
    s.settled(&key, &ticket, "v").await;
    assert_eq!(retention(&key).await, Some(LONG), "settled");
    let lock = Key::lock(&s.tenant, "k").unwrap();
    s.granted(&lock, &ClaimRequest::new(LONG)).await;
    assert_eq!(retention(&lock).await, Some(Duration::ZERO));
}

async fn waiter_is_woken_at_settle(s: LawContext, key: Key) {
    let ticket = s.granted(&key, &ask()).await;
    expect_woken(s.store.watch(&key), async {
        s.settled(&key, &ticket, "v").await;
    })
    .await;
}

async fn waiter_is_woken_at_give_back(s: LawContext, _: Key) {
    for how in [GiveBack::Forget, GiveBack::Keep] {
        let key = s.command(&format!("{how:?}"));
        let ticket = s.granted(&key, &ask()).await;
        expect_woken(s.store.watch(&key), async {
            s.given_back(&key, &ticket, how).await;
        })
        .await;
    }
}

async fn waiter_on_another_node_is_woken(s: LawContext, key: Key) {
    let other = s.reopened().await;
    let ticket = s.granted(&key, &ask()).await;
    expect_woken(other.store.watch(&key), async {
        s.settled(&key, &ticket, "v").await;
    })
    .await;
}

async fn sweep_removes_only_expired_claims(s: LawContext, _: Key) {
    let (gone, kept) = (s.command("gone"), s.command("kept"));
    s.granted(&gone, &ClaimRequest::new(SHORT)).await;
    let ticket = s.granted(&kept, &ask()).await;
    s.outlive(SHORT).await;
    s.sweep(1).await;
    assert_eq!(s.store.look(&gone).await.unwrap(), None);
    s.settled(&kept, &ticket, "v").await;
    s.granted(&gone, &ask()).await;
}
