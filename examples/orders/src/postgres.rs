use std::time::Duration;

use anyhow::bail;
use async_trait::async_trait;
use axum::body::Body;
use axum::response::{IntoResponse, Response};
use deadpool_postgres::Pool;
use example_common::database::postgres_pool;
use hapax::Step;
use hapax::postgres::{HapaxTransaction, migrate};
use hapax_http::KeyedRequest;

use crate::CONFIG;
use crate::order::{NewOrder, Shop, die_at};

pub(crate) struct PostgresShop(Pool);

impl PostgresShop {
    pub(crate) async fn open(url: &str) -> anyhow::Result<Self> {
        let pool = postgres_pool(url, Duration::from_secs(2))?;
        let mut database = pool.get().await?;
        migrate(&mut database).await?;
        database
            .batch_execute(
                "CREATE TABLE IF NOT EXISTS orders (
                     id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
                     item text NOT NULL, cups integer NOT NULL)",
            )
            .await?;
        Ok(Self(pool))
    }
}

#[async_trait]
impl Shop for PostgresShop {
    /// Places the order in one transaction, which is rolled back if this method returns, or the
    /// process dies, before the commit.
    async fn place(&self, keyed: KeyedRequest, order: NewOrder) -> anyhow::Result<Response> {
        let mut database = self.0.get().await?;
        let mut tx = database.transaction().await?;
        let claimed = tx.hapax().claim(keyed.key(), keyed.claim()).await?;
        let (ticket, _attempt) = match KeyedRequest::granted(claimed) {
            Ok(granted) => granted,
            Err(answer) => return Ok(answer.into_response()),
        };
        die_at("claimed");
        let sql = "INSERT INTO orders (item, cups) VALUES ($1, $2) RETURNING id";
        let row = tx.query_one(sql, &[&order.item, &order.cups]).await?;
        die_at("inserted");
        let mut answer = order.made(row.try_get(0)?)?;
        if let Some(kept) = KeyedRequest::settled_value(&CONFIG, &mut answer) {
            match tx.hapax().settle(keyed.key(), &ticket.token, kept).await? {
                Step::Done(_) => die_at("settled"),
                Step::Lost => bail!("the order took longer than its claim is remembered"),
            }
            tx.commit().await?;
            die_at("committed");
        }
        Ok(answer.map(Body::from))
    }

    async fn count(&self) -> anyhow::Result<i64> {
        let row = self.0.get().await?.query_one("SELECT count(*) FROM orders", &[]).await?;
        Ok(row.try_get(0)?)
    }
}
