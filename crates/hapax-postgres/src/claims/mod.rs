//! `Claims` on PostgreSQL: concurrent claims and steps are batched into one statement each.

pub(crate) mod claim;
pub(crate) mod function;
pub(crate) mod step;

use async_trait::async_trait;
use hapax_core::{
    ClaimRequest, ClaimStep, ClaimView, Claimed, Claims, Key, Step, StoreResult, Token, Watch,
    claim_rules, with_timeout,
};

use crate::PostgresStore;
use crate::connect::session::SqlSession;
use crate::error::SqlResult;
use crate::row::{self, KeyParams};
use crate::tx::lock::LockRetry;
use claim::ClaimCall;
use step::StepCall;

#[async_trait]
impl Claims for PostgresStore {
    async fn claim(&self, key: &Key, ask: &ClaimRequest) -> StoreResult<Claimed> {
        self.claims.submit(ClaimCall { key: key.clone(), ask: ask.clone() }).await
    }

    /// A step on a key that another transaction is writing is retried, without blocking other steps
    /// or a connection.
    async fn step(&self, key: &Key, token: &Token, step: ClaimStep) -> StoreResult<Step> {
        let call = StepCall { key: key.clone(), token: token.clone(), step };
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

    async fn look(&self, key: &Key) -> StoreResult<Option<ClaimView>> {
        self.pool.run(look(&mut self.pool.session(), key)).await
    }

    fn watch(&self, key: &Key) -> Watch {
        self.wakes.watch(key)
    }
}

pub(crate) async fn look<S: SqlSession>(
    session: &mut S,
    key: &Key,
) -> SqlResult<Option<ClaimView>> {
    let sql = include_str!("../sql/look.sql");
    let rows = session.rows(sql, &KeyParams::one(key).columns()).await?;
    let Some(found) = rows.first() else { return Ok(None) };
    Ok(claim_rules::look(row::claim(found)?.as_ref(), row::timestamp(found, "now")?))
}
