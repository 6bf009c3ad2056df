//! The laws of `Claims`.

mod grant;
mod owner;
mod storage;

use bytes::Bytes;
use hapax_core::{
    ClaimRequest, Claimed, Fence, Fingerprint, GiveBack, Key, OnUnknown, Step, Ticket, Token,
};

use crate::context::{LONG, LawContext, SHORT, concurrently};
use crate::suite::Law;

pub(crate) fn laws() -> Vec<Law> {
    [grant::LAWS, owner::LAWS, storage::LAWS].concat()
}

fn ask() -> ClaimRequest {
    ClaimRequest::new(LONG).retention(LONG)
}

fn fingerprint(text: &str) -> Option<Fingerprint> {
    Fingerprint::new(text)
}

/// A claim whose lease has just lapsed: the owner's token, and the fence.
async fn lapsed_claim(s: &LawContext, key: &Key) -> (Token, Fence) {
    let ticket = s.granted(key, &ClaimRequest::new(SHORT).retention(LONG)).await;
    s.outlive(SHORT).await;
    (ticket.token, ticket.fence)
}

fn take_over() -> ClaimRequest {
    ask().on_unknown(OnUnknown::TakeOver)
}

impl LawContext {
    /// Settles a claim that the ticket must own.
    pub(crate) async fn settled(&self, key: &Key, ticket: &Ticket, value: impl Into<Bytes>) {
        let step = self.store.settle(key, &ticket.token, value.into()).await;
        assert_eq!(step.unwrap(), Step::Done(ticket.fence));
    }

    /// Gives back a claim that the ticket must own.
    pub(crate) async fn given_back(&self, key: &Key, ticket: &Ticket, how: GiveBack) {
        let step = self.store.give_back(key, &ticket.token, how).await;
        assert_eq!(step.unwrap(), Step::Done(ticket.fence));
    }
}

/// Claims a key that must be granted as this attempt, with a greater fence than before.
async fn expect_granted(
    s: &LawContext,
    key: &Key,
    request: &ClaimRequest,
    attempt: u32,
    before: Fence,
) {
    match s.claim(key, request).await {
        Claimed::Granted { ticket, attempt: granted } => {
            assert!(granted == attempt && ticket.fence > before, "attempt {granted}, {ticket:?}");
        }
        other => panic!("{other:?}"),
    }
}

/// The number of grants among concurrent claims.
async fn race(nodes: &[&LawContext], key: &Key, ask: &ClaimRequest, claims: usize) -> usize {
    let claim = |i: usize| {
        let (s, key, ask) = (nodes[i % nodes.len()].clone(), key.clone(), ask.with_fresh_token());
        async move { s.claim(&key, &ask).await }
    };
    let is_grant = |answer: &Claimed| match answer {
        Claimed::Granted { .. } => true,
        Claimed::Busy { .. } => false,
        other => panic!("a concurrent claim got {other:?}"),
    };
    concurrently((0..claims).map(claim)).await.iter().filter(|answer| is_grant(answer)).count()
}
