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

use crate::connect::session::{Sql, SqlSession};
use crate::error::StatementError;
use crate::tx::lock::LockRetry;
use crate::{PostgresStore, row};
use claim::ClaimCall;
use step::{StepCall, StepKind};

#[async_trait]
impl Claims for PostgresStore {
    async fn claim(&self, key: &Key, ask: &ClaimRequest) -> Result<Claimed, StoreError> {
        self.claims.submit(ClaimCall { key: key.clone(), ask: ask.clone() }).await
    }

    async fn extend(&self, key: &Key, token: &Token, lease: Duration) -> Result<Step, StoreError> {
        self.step(key, token, StepKind::Extend(lease)).await
    }

    async fn settle(&self, key: &Key, token: &Token, value: Bytes) -> Result<Step, StoreError> {
        self.step(key, token, StepKind::Settle(value)).await
    }

    async fn give_back(&self, key: &Key, token: &Token, how: GiveBack) -> Result<Step, StoreError> {
        self.step(key, token, StepKind::GiveBack(how)).await
    }

    async fn look(&self, key: &Key) -> Result<Option<ClaimView>, StoreError> {
        self.pool.run(async { look(&mut self.pool.connection().await?, key).await }).await
    }

    fn watch(&self, key: &Key) -> Watch {
        self.wakes.watch(key)
    }
}

impl PostgresStore {
    /// A step on a key that another transaction is writing is retried, without blocking other steps
    /// or a connection.
    async fn step(&self, key: &Key, token: &Token, kind: StepKind) -> Result<Step, StoreError> {
        let call = StepCall { key: key.clone(), token: token.clone(), kind };
        let mut retry = LockRetry::new(self.pool.timeout);
        with_timeout(self.pool.timeout, async {
            loop {
                match self.steps.submit(call.clone()).await? {
                    Some(step) => return Ok(step),
                    None => retry.wait().await?,
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

pub(crate) async fn look<S: SqlSession>(
    session: &mut S,
    key: &Key,
) -> Result<Option<ClaimView>, StatementError> {
    let (tenant, kind) = (key.tenant().as_str(), key.kind().as_str());
    let rows = session.rows(&LOOK, &[&tenant, &kind, &key.scope(), &key.name()]).await?;
    let Some(found) = rows.first() else { return Ok(None) };
    Ok(claim_rules::look(row::claim(found)?.as_ref(), row::timestamp(found, "now")?))
}
