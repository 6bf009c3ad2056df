//! `Claims` on PostgreSQL: concurrent claims and steps are batched into one statement each.

pub(crate) mod claim;
pub(crate) mod step;

use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use hapax_core::{
    ClaimRequest, ClaimView, Claimed, Claims, GiveBack, Key, Step, StoreError, Token, Watch,
    claim_rules, with_timeout,
};
use tokio_postgres::types::Type;

use crate::connect::session::{Session, Sql};
use crate::error::Failure;
use crate::tx::lock::Patience;
use crate::{PostgresStore, row};
use claim::Asked;
use step::{Act, Taken};

#[async_trait]
impl Claims for PostgresStore {
    async fn claim(&self, key: &Key, ask: &ClaimRequest) -> Result<Claimed, StoreError> {
        self.claims.submit(Asked { key: key.clone(), ask: ask.clone() }).await
    }

    async fn extend(&self, key: &Key, token: &Token, lease: Duration) -> Result<Step, StoreError> {
        self.step(key, token, Act::Extend(lease)).await
    }

    async fn settle(&self, key: &Key, token: &Token, value: Bytes) -> Result<Step, StoreError> {
        self.step(key, token, Act::Settle(value)).await
    }

    async fn give_back(&self, key: &Key, token: &Token, how: GiveBack) -> Result<Step, StoreError> {
        self.step(key, token, Act::GiveBack(how)).await
    }

    async fn look(&self, key: &Key) -> Result<Option<ClaimView>, StoreError> {
        self.link.within(async { look(&mut self.link.lease().await?, key).await }).await
    }

    fn watch(&self, key: &Key) -> Watch {
        self.wakes.watch(key)
    }
}

impl PostgresStore {
    /// A step on a key that another transaction is just writing is tried again, without holding
    /// up other steps or a connection.
    async fn step(&self, key: &Key, token: &Token, act: Act) -> Result<Step, StoreError> {
        let taken = Taken { key: key.clone(), token: token.clone(), act };
        let mut patience = Patience::new(self.link.limit);
        with_timeout(self.link.limit, async {
            loop {
                match self.steps.submit(taken.clone()).await? {
                    Some(step) => return Ok(step),
                    None => patience.wait().await?,
                }
            }
        })
        .await
    }
}

const LOOK: Sql = Sql {
    text: include_str!("../sql/look.sql"),
    types: &[Type::TEXT, Type::TEXT, Type::TEXT, Type::TEXT],
};

pub(crate) async fn look<S: Session>(
    session: &mut S,
    key: &Key,
) -> Result<Option<ClaimView>, Failure> {
    let (tenant, kind) = (key.tenant().as_str(), key.kind().as_str());
    let rows = session.rows(&LOOK, &[&tenant, &kind, &key.scope(), &key.name()]).await?;
    let Some(found) = rows.first() else { return Ok(None) };
    Ok(claim_rules::look(row::claim(found)?.as_ref(), row::timestamp(found, "now")?))
}
