use std::time::Duration;

use deadpool_postgres::Pool;
use example_common::database::postgres_pool;

/// Opens a pool on this database, and creates hapax's tables and the service's own `table`.
pub(crate) async fn open(url: &str, table: &str) -> anyhow::Result<Pool> {
    let pool = postgres_pool(url, Duration::from_secs(2))?;
    let mut client = pool.get().await?;
    hapax::postgres::migrate(&mut client).await?;
    client.batch_execute(table).await?;
    Ok(pool)
}
