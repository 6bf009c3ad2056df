use std::time::Duration;

use deadpool_postgres::{Manager, ManagerConfig, Pool, RecyclingMethod, Runtime};
use tokio_postgres::NoTls;

const LIMIT: Duration = Duration::from_secs(2);

/// Opens a pool on this database, and creates hapax's tables and the service's own `table`.
pub(crate) async fn open(url: &str, table: &str) -> anyhow::Result<Pool> {
    // `Verified` checks a connection before it is reused, so that a hanging one is discarded.
    let config = ManagerConfig { recycling_method: RecyclingMethod::Verified };
    let pool = Pool::builder(Manager::from_config(url.parse()?, NoTls, config))
        .runtime(Runtime::Tokio1)
        .wait_timeout(Some(LIMIT))
        .create_timeout(Some(LIMIT))
        .recycle_timeout(Some(LIMIT))
        .build()?;
    let mut client = pool.get().await?;
    hapax::postgres::migrate(&mut client).await?;
    client.batch_execute(table).await?;
    Ok(pool)
}
