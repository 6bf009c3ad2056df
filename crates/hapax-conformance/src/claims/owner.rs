//! Steps of the owner of a claim, and of a former owner.

use bytes::Bytes;
use hapax_core::{ClaimRequest, Claimed, GiveBack, Key, Step, Token};

use super::{ask, expect_granted, fingerprint, lapsed_claim, race, take_over};
use crate::context::{LONG, LawContext, SHORT};
use crate::suite::laws;

laws![
    key command;
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
];

async fn late_settle_is_refused_after_takeover(s: LawContext, key: Key) {
    let (late, _) = lapsed_claim(&s, &key).await;
    let owner = s.granted(&key, &take_over()).await;
    assert_eq!(s.store.settle(&key, &late, "late".into()).await.unwrap(), Step::Lost);
    s.settled(&key, &owner, "right").await;
    assert_eq!(s.store.settle(&key, &late, "late".into()).await.unwrap(), Step::Lost);
    assert_eq!(s.store.settle(&key, &late, "right".into()).await.unwrap(), Step::Lost);
    assert!(
        matches!(s.claim(&key, &ask()).await, Claimed::Settled { value, .. } if value == "right")
    );
}

async fn late_extend_is_refused_after_takeover(s: LawContext, key: Key) {
    let (late, _) = lapsed_claim(&s, &key).await;
    let owner = s.granted(&key, &take_over()).await;
    assert_eq!(s.store.extend(&key, &late, LONG).await.unwrap(), Step::Lost);
    let extended = s.store.extend(&key, &owner.token, LONG).await.unwrap();
    assert_eq!(extended, Step::Done(owner.fence));
}

async fn late_give_back_is_refused_after_takeover(s: LawContext, key: Key) {
    let (late, _) = lapsed_claim(&s, &key).await;
    s.granted(&key, &take_over()).await;
    for how in [GiveBack::Forget, GiveBack::Keep] {
        assert_eq!(s.store.give_back(&key, &late, how).await.unwrap(), Step::Lost);
    }
    assert!(matches!(s.claim(&key, &take_over()).await, Claimed::Busy { .. }));
}

async fn wrong_token_changes_nothing(s: LawContext, key: Key) {
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
    s.settled(&key, &owner, "v").await;
}

async fn late_settle_is_accepted_before_takeover(s: LawContext, key: Key) {
    let (token, fence) = lapsed_claim(&s, &key).await;
    assert!(matches!(s.claim(&key, &ask()).await, Claimed::Unknown { .. }));
    assert_eq!(s.store.settle(&key, &token, "late".into()).await.unwrap(), Step::Done(fence));
    assert!(matches!(s.claim(&key, &ask()).await, Claimed::Settled { .. }));
}

async fn late_extend_before_takeover_revives_the_claim(s: LawContext, key: Key) {
    let (token, fence) = lapsed_claim(&s, &key).await;
    assert_eq!(s.store.extend(&key, &token, LONG).await.unwrap(), Step::Done(fence));
    assert!(matches!(s.claim(&key, &take_over()).await, Claimed::Busy { .. }));
}

async fn extended_claim_outlives_its_first_lease(s: LawContext, key: Key) {
    let ticket = s.granted(&key, &ClaimRequest::new(SHORT).retention(LONG)).await;
    let extended = s.store.extend(&key, &ticket.token, LONG).await.unwrap();
    assert_eq!(extended, Step::Done(ticket.fence));
    s.outlive(SHORT).await;
    assert!(matches!(s.claim(&key, &take_over()).await, Claimed::Busy { .. }));
}

async fn extend_may_shorten_a_lease(s: LawContext, key: Key) {
    let ticket = s.granted(&key, &ask()).await;
    let _ = s.store.extend(&key, &ticket.token, SHORT).await.unwrap();
    s.outlive(SHORT).await;
    assert!(matches!(s.claim(&key, &ask()).await, Claimed::Unknown { .. }));
}

async fn claim_repeated_with_its_token_is_the_same_grant(s: LawContext, key: Key) {
    let ask = ClaimRequest::new(SHORT).retention(LONG).fingerprint(fingerprint("f"));
    let first = s.claim(&key, &ask).await;
    assert_eq!(s.claim(&key, &ask).await, first);
    s.outlive(SHORT).await;
    // The grant is the same also after the lease has lapsed; the lease then starts again.
    let long = ClaimRequest { lease: LONG, ..ask };
    assert_eq!(s.claim(&key, &long).await, first);
    assert!(matches!(s.claim(&key, &long.with_fresh_token()).await, Claimed::Busy { .. }));
}

async fn claim_repeated_after_settle_gets_the_value(s: LawContext, key: Key) {
    let ask = ask();
    let ticket = s.granted(&key, &ask).await;
    s.settled(&key, &ticket, "v").await;
    assert!(matches!(s.claim(&key, &ask).await, Claimed::Settled { .. }));
}

async fn settle_repeated_with_the_same_value_is_done(s: LawContext, key: Key) {
    let ticket = s.granted(&key, &ask()).await;
    for _ in 0..2 {
        let done = s.store.settle(&key, &ticket.token, "v".into()).await.unwrap();
        assert_eq!(done, Step::Done(ticket.fence));
    }
}

async fn second_settle_with_another_value_is_lost(s: LawContext, key: Key) {
    let ticket = s.granted(&key, &ask()).await;
    s.settled(&key, &ticket, "v").await;
    assert_eq!(s.store.settle(&key, &ticket.token, "w".into()).await.unwrap(), Step::Lost);
    assert_eq!(s.store.settle(&key, &ticket.token, Bytes::new()).await.unwrap(), Step::Lost);
    assert!(matches!(s.claim(&key, &ask()).await, Claimed::Settled { value, .. } if value == "v"));
}

async fn settled_claim_cannot_be_changed(s: LawContext, key: Key) {
    let ticket = s.granted(&key, &ask()).await;
    s.settled(&key, &ticket, "v").await;
    assert_eq!(s.store.extend(&key, &ticket.token, LONG).await.unwrap(), Step::Lost);
    for how in [GiveBack::Forget, GiveBack::Keep] {
        assert_eq!(s.store.give_back(&key, &ticket.token, how).await.unwrap(), Step::Lost);
    }
    assert!(matches!(s.claim(&key, &take_over()).await, Claimed::Settled { .. }));
}

async fn released_claim_is_vacant(s: LawContext, key: Key) {
    let ticket = s.granted(&key, &ask().fingerprint(fingerprint("a"))).await;
    s.given_back(&key, &ticket, GiveBack::Forget).await;
    assert_eq!(s.store.look(&key).await.unwrap(), None);
    assert_eq!(s.store.settle(&key, &ticket.token, "v".into()).await.unwrap(), Step::Lost);
    expect_granted(&s, &key, &ask().fingerprint(fingerprint("b")), 1, ticket.fence).await;
}

async fn failed_claim_keeps_fingerprint_and_attempts(s: LawContext, key: Key) {
    let ask = ask().fingerprint(fingerprint("a"));
    let ticket = s.granted(&key, &ask).await;
    s.given_back(&key, &ticket, GiveBack::Keep).await;
    assert_eq!(
        s.claim(&key, &ask.with_fresh_token().fingerprint(fingerprint("b"))).await,
        Claimed::Mismatch
    );
    expect_granted(&s, &key, &ask.with_fresh_token(), 2, ticket.fence).await;
}

async fn failure_reported_again_is_done(s: LawContext, key: Key) {
    let ticket = s.granted(&key, &ask()).await;
    for _ in 0..2 {
        s.given_back(&key, &ticket, GiveBack::Keep).await;
    }
}

async fn failed_claim_has_no_owner(s: LawContext, key: Key) {
    let ticket = s.granted(&key, &ask()).await;
    s.given_back(&key, &ticket, GiveBack::Keep).await;
    assert_eq!(s.store.settle(&key, &ticket.token, "v".into()).await.unwrap(), Step::Lost);
    assert_eq!(s.store.extend(&key, &ticket.token, LONG).await.unwrap(), Step::Lost);
    let forget = s.store.give_back(&key, &ticket.token, GiveBack::Forget).await.unwrap();
    assert_eq!(forget, Step::Lost);
    assert_eq!(race(&[&s], &key, &ask(), 16).await, 1);
}
