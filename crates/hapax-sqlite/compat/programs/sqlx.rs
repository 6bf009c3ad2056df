mod shared;

use hapax::sqlite::HapaxSqlxTransaction;
use hapax::{Operation, Tenant, queue::QueueItem};

/// Compiles only if the program's `sqlx` is the one that hapax uses.
#[tokio::main]
async fn main() -> shared::Result<()> {
    let file = shared::SharedFile::open()?;
    let pool = sqlx::SqlitePool::connect(&format!("sqlite://{}", file.path())).await?;
    sqlx::query(shared::CREATE).execute(&pool).await?;
    for is_retry in [false, true] {
        let mut tx = pool.begin().await?;
        let order = tx
            .hapax()
            .once(Operation("CreateOrder"), "key-1", "bento", |tx| {
                let insert = sqlx::query(shared::TRANSACTION[0]);
                Box::pin(async move {
                    Ok::<_, sqlx::Error>(insert.execute(tx).await?.last_insert_rowid())
                })
            })
            .await
            .map_err(|error| error.to_string())?;
        if !order.replayed {
            let item = QueueItem::new(&Tenant::default(), "orders", "bento").key("order-1");
            tx.hapax().enqueue(&item).await?;
        }
        tx.commit().await?;
        if (order.value, order.replayed) != (1, is_retry) {
            return Err("the order was created twice".into());
        }
    }
    file.check().await
}
