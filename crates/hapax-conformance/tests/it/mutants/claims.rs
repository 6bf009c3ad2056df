//! Planted bugs of claims, records and lists.

use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use hapax_core::claims::ClaimState;
use hapax_core::{
    ClaimPage, ClaimQuery, ClaimRequest, ClaimView, Claimed, Claims, Deleted, Expect, Fence,
    GiveBack, Key, KeyKind, Operation, Oversight, Put, Record, Records, Step, StoreError, Tenant,
    Ticket, Token, Watch,
};

use crate::mutants::{Bug, Mutant};

impl Mutant {
    fn key(&self, key: &Key) -> Key {
        if self.bug == Bug::OneTenant && key.tenant().as_str().len() == 34 {
            let tenant = Tenant::new(&key.tenant().as_str()[..33]).unwrap();
            return match key.kind() {
                KeyKind::Record => Key::record(&tenant, key.name()).unwrap(),
                _ => Key::command(&tenant, Operation(key.scope()), key.name()).unwrap(),
            };
        }
        key.clone()
    }
}

#[async_trait]
impl Claims for Mutant {
    async fn claim(&self, key: &Key, ask: &ClaimRequest) -> Result<Claimed, StoreError> {
        let key = &self.key(key);
        let view = self.store.look(key).await?;
        match (self.bug, &view) {
            (Bug::CheckThenAct, None) => {
                tokio::task::yield_now().await;
                if let Some(ClaimView { state: ClaimState::Pending { .. }, fence, .. }) =
                    self.store.look(key).await?
                {
                    let ticket = Ticket { token: ask.token.clone(), fence: fence.unwrap() };
                    return Ok(Claimed::Granted { ticket, attempt: 1 });
                }
            }
            (
                Bug::PendingFingerprintIgnored,
                Some(ClaimView { state: ClaimState::Pending { lease_left }, .. }),
            ) => {
                return Ok(Claimed::Busy { lease_left: *lease_left });
            }
            (
                Bug::OwnTokenIsBusy,
                Some(ClaimView { state: ClaimState::Pending { lease_left }, .. }),
            ) => {
                return Ok(Claimed::Busy { lease_left: *lease_left });
            }
            _ => {}
        }
        let mut ask = ask.clone();
        if self.bug == Bug::AlwaysTakesOver {
            ask.on_unknown = hapax_core::OnUnknown::TakeOver;
        }
        Ok(match self.store.claim(key, &ask).await? {
            Claimed::Granted { ticket, attempt } if self.bug == Bug::ConstantFence => {
                Claimed::Granted { ticket: Ticket { fence: Fence(1), ..ticket }, attempt }
            }
            answer => answer,
        })
    }

    async fn extend(&self, key: &Key, token: &Token, lease: Duration) -> Result<Step, StoreError> {
        self.store.extend(&self.key(key), token, lease).await
    }

    async fn settle(&self, key: &Key, token: &Token, value: Bytes) -> Result<Step, StoreError> {
        let step = self.store.settle(&self.key(key), token, value).await?;
        Ok(match step {
            Step::Lost if self.bug == Bug::AnyTokenSettles => Step::Done(Fence(1)),
            step => step,
        })
    }

    async fn give_back(&self, key: &Key, token: &Token, how: GiveBack) -> Result<Step, StoreError> {
        self.store.give_back(&self.key(key), token, how).await
    }

    async fn look(&self, key: &Key) -> Result<Option<ClaimView>, StoreError> {
        self.store.look(&self.key(key)).await
    }

    fn watch(&self, key: &Key) -> Watch {
        if self.bug == Bug::WakesNobody { Watch::never() } else { self.store.watch(key) }
    }
}

#[async_trait]
impl Records for Mutant {
    async fn get(&self, key: &Key) -> Result<Option<Record>, StoreError> {
        self.store.get(&self.key(key)).await
    }

    async fn put(
        &self,
        key: &Key,
        value: Bytes,
        expect: &Expect,
        ttl: Option<Duration>,
    ) -> Result<Put, StoreError> {
        let key = &self.key(key);
        if self.bug == Bug::TtlNotKept && ttl.is_none() && *expect == Expect::Any {
            let _ = self.store.delete(key, &Expect::Any).await?;
        }
        if self.bug == Bug::PutsWithoutComparing {
            let current = self.store.get(key).await?.map(|record| record.version);
            if !expect.holds(current.as_ref()) {
                return Ok(Put::Conflict);
            }
            tokio::task::yield_now().await;
            return self.store.put(key, value, &Expect::Any, ttl).await;
        }
        self.store.put(key, value, expect, ttl).await
    }

    async fn delete(&self, key: &Key, expect: &Expect) -> Result<Deleted, StoreError> {
        self.store.delete(&self.key(key), expect).await
    }
}

#[async_trait]
impl Oversight for Mutant {
    async fn list(&self, list: &ClaimQuery) -> Result<ClaimPage, StoreError> {
        let mut page = self.store.list(list).await?;
        if self.bug == Bug::ListsOnePage {
            page.next = None;
        }
        Ok(page)
    }
}
