use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::bail;
use async_trait::async_trait;
use axum::body::Body;
use axum::response::{IntoResponse, Response};
use hapax::Step;
use hapax::sqlite::rusqlite::{Connection, TransactionBehavior, params};
use hapax::sqlite::{HapaxTransaction, migrate};
use hapax_http::KeyedRequest;
use tokio::task::spawn_blocking;

use crate::CONFIG;
use crate::order::{NewOrder, Shop, die_at};

pub(crate) struct SqliteShop(Arc<Mutex<Connection>>);

impl SqliteShop {
    pub(crate) fn open(file: &str) -> anyhow::Result<Self> {
        let database = Connection::open(file)?;
        // Other connections write to the same file: a backup, the sweep, a second instance.
        database.busy_timeout(Duration::from_secs(2))?;
        // An order must be on disk before its response is sent.
        database.pragma_update(None, "synchronous", "FULL")?;
        database.pragma_update_and_check(None, "journal_mode", "WAL", |_| Ok(()))?;
        migrate(&database)?;
        database.execute_batch(
            "CREATE TABLE IF NOT EXISTS orders (
                 id INTEGER PRIMARY KEY AUTOINCREMENT, item TEXT NOT NULL, cups INTEGER NOT NULL)",
        )?;
        Ok(Self(Arc::new(Mutex::new(database))))
    }

    /// Runs `work` on the connection in a blocking thread, so that async threads are never blocked.
    async fn with<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Connection) -> anyhow::Result<T> + Send + 'static,
    ) -> anyhow::Result<T> {
        let database = self.0.clone();
        // A panic rolls back its transaction, so the connection of a poisoned mutex is still
        // usable.
        spawn_blocking(move || work(&mut database.lock().unwrap_or_else(PoisonError::into_inner)))
            .await?
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
        self.with(move |database| place(database, &keyed, order)).await
    }

    async fn count(&self) -> anyhow::Result<i64> {
        let sql = "SELECT count(*) FROM orders";
        self.with(|database| Ok(database.query_row(sql, [], |row| row.get(0))?)).await
    }
}
