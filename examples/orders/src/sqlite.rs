use std::time::Duration;

use anyhow::bail;
use async_trait::async_trait;
use axum::body::Body;
use axum::response::{IntoResponse, Response};
use example_common::database::SqliteFile;
use hapax::Step;
use hapax::sqlite::rusqlite::{Connection, TransactionBehavior, params};
use hapax::sqlite::{HapaxTransaction, migrate};
use hapax_http::KeyedRequest;

use crate::CONFIG;
use crate::order::{NewOrder, Shop, die_at};

pub(crate) struct SqliteShop(SqliteFile);

impl SqliteShop {
    pub(crate) async fn open(file: &str) -> anyhow::Result<Self> {
        let database = SqliteFile::open(file, Duration::from_secs(2))?;
        let tables = "CREATE TABLE IF NOT EXISTS orders (
            id INTEGER PRIMARY KEY AUTOINCREMENT, item TEXT NOT NULL, cups INTEGER NOT NULL)";
        let create = |database: &mut Connection| {
            migrate(database)?;
            anyhow::Ok(database.execute_batch(tables)?)
        };
        database.with(create).await??;
        Ok(Self(database))
    }
}

/// Places the order in one transaction, which is rolled back if this function returns, or the
/// process dies, before the commit.
fn place(
    database: &mut Connection,
    keyed: &KeyedRequest,
    order: NewOrder,
) -> anyhow::Result<Response> {
    let tx = database.transaction_with_behavior(TransactionBehavior::Immediate)?;
    let claimed = tx.hapax().claim(keyed.key(), keyed.claim())?;
    let (ticket, _attempt) = match KeyedRequest::granted(claimed) {
        Ok(granted) => granted,
        Err(answer) => return Ok(answer.into_response()),
    };
    die_at("claimed");
    let sql = "INSERT INTO orders (item, cups) VALUES (?1, ?2)";
    tx.execute(sql, params![order.item, order.cups])?;
    die_at("inserted");
    let mut answer = order.made(tx.last_insert_rowid())?;
    if let Some(kept) = KeyedRequest::settled_value(&CONFIG, &mut answer) {
        match tx.hapax().settle(keyed.key(), &ticket.token, kept)? {
            Step::Done(_) => die_at("settled"),
            Step::Lost => bail!("the order took longer than its claim is remembered"),
        }
        tx.commit()?;
        die_at("committed");
    }
    Ok(answer.map(Body::from))
}

#[async_trait]
impl Shop for SqliteShop {
    async fn place(&self, keyed: KeyedRequest, order: NewOrder) -> anyhow::Result<Response> {
        self.0.with(move |database| place(database, &keyed, order)).await?
    }

    async fn count(&self) -> anyhow::Result<i64> {
        let sql = "SELECT count(*) FROM orders";
        Ok(self.0.with(|database| database.query_row(sql, [], |row| row.get(0))).await??)
    }
}
