use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use hapax_core::{Finding, Key, OpenMode, Store, StoreError, StoreResult, Swept, Timestamp};
use tokio::sync::Mutex;

use crate::batch::Batcher;
use crate::claims::claim::ClaimBatch;
use crate::claims::step::StepBatch;
use crate::connect::ConnectionPool;
use crate::connect::session::SqlSession;
use crate::log::append::AppendBatch;
use crate::queue::enqueue::EnqueueBatch;
use crate::records::batch::{GetBatch, PutBatch};
use crate::wake::WakeNotifier;
use crate::{PostgresConfig, examine, row, sweep};

/// A store on PostgreSQL 13 or newer.
///
/// Opening it needs no server: the store connects on first use, creates or migrates its tables
/// (`hapax_…`), and reconnects after a lost connection.
///
/// Concurrent claims are sent to the server many in one statement, and so are settles, and reads and
/// writes of records. No call waits for a lock while it holds a connection, and a claim in an open
/// transaction (see [`HapaxTransaction`](crate::HapaxTransaction)) blocks no other call.
///
/// ```no_run
/// use hapax_core::{ClaimRequest, Claims, Key, Operation, Tenant};
/// use hapax_postgres::{PostgresConfig, PostgresStore};
/// use std::time::Duration;
///
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// let store = PostgresStore::open(PostgresConfig::new("postgres://app@127.0.0.1/app"))?;
/// let key = Key::command(&Tenant::default(), Operation("pay"), "order-1")?;
/// let answer = store.claim(&key, &ClaimRequest::new(Duration::from_secs(30))).await?;
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct PostgresStore {
    pub(crate) pool: Arc<ConnectionPool>,
    pub(crate) wakes: Arc<WakeNotifier>,
    pub(crate) claims: Arc<Batcher<ClaimBatch>>,
    pub(crate) steps: Arc<Batcher<StepBatch>>,
    pub(crate) gets: Arc<Batcher<GetBatch>>,
    pub(crate) puts: Arc<Batcher<PutBatch>>,
    pub(crate) appends: Arc<Batcher<AppendBatch>>,
    pub(crate) enqueues: Arc<Batcher<EnqueueBatch>>,
    /// Held by the one enqueue that waits for the open transaction of somebody else.
    pub(crate) locked_enqueues: Arc<Mutex<()>>,
    pub(crate) partitions: u16,
    max_connections: usize,
}

impl PostgresStore {
    /// Creates a handle; nothing is connected yet.
    ///
    /// # Errors
    /// [`StoreError::Incompatible`] if the URL or a certificate file in it cannot be used.
    /// The text never contains the password.
    pub fn open(config: PostgresConfig) -> StoreResult<Self> {
        let pool = Arc::new(ConnectionPool::new(&config)?);
        let wakes = Arc::new(WakeNotifier::new(pool.clone()));
        // Each kind of operation uses at most a quarter of the connections.
        let workers = (config.max_connections / 4).max(1);
        Ok(Self {
            claims: Arc::new(Batcher::new(pool.clone(), wakes.clone(), workers, config.max_batch)),
            steps: Arc::new(Batcher::new(pool.clone(), wakes.clone(), workers, config.max_batch)),
            gets: Arc::new(Batcher::new(pool.clone(), wakes.clone(), 1, config.max_batch)),
            puts: Arc::new(Batcher::new(pool.clone(), wakes.clone(), 1, config.max_batch)),
            appends: Arc::new(Batcher::new(pool.clone(), wakes.clone(), workers, config.max_batch)),
            enqueues: Arc::new(Batcher::new(pool.clone(), wakes.clone(), 1, config.max_batch)),
            locked_enqueues: Arc::default(),
            partitions: config.partitions,
            max_connections: config.max_connections,
            pool,
            wakes,
        })
    }

    /// Wakes the waiters of a claim, here and on other nodes. The store does so for its own steps; call
    /// this after the commit of a transaction of yours that settled or gave back the claim. Otherwise
    /// waiters find out at their next poll.
    pub fn wake_claim(&self, key: &Key) {
        self.wakes.wake(key);
    }
}

impl fmt::Debug for PostgresStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PostgresStore")
            .field("max_connections", &self.max_connections)
            .finish_non_exhaustive()
    }
}

#[async_trait]
impl Store for PostgresStore {
    fn name(&self) -> &'static str {
        "postgres"
    }

    async fn ping(&self) -> StoreResult<()> {
        if self.pool.mode == OpenMode::ReadOnly {
            let answer = async { self.pool.checkout().await?.rows("SELECT 1", &[]).await };
            return self.pool.run(answer).await.map(drop);
        }
        let sql = "SELECT pg_is_in_recovery() OR current_setting('transaction_read_only')::bool \
                   AS closed FROM hapax_meta WHERE name = $1";
        let rows = self.pool.run(self.pool.session().rows(sql, &[&"schema"])).await?;
        let closed = rows.first().map(|row| row.try_get::<bool>("closed")).transpose();
        match closed.map_err(|error| error.into_store_error(self.pool.timeout))? {
            Some(false) => Ok(()),
            _ => Err(StoreError::ReadOnly {
                reason: "the server is a standby or takes only reads".into(),
            }),
        }
    }

    async fn server_time(&self) -> StoreResult<Option<Timestamp>> {
        let sql = "SELECT floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint AS now";
        let rows = self.pool.run(self.pool.session().rows(sql, &[])).await?;
        let now = rows.first().map(|row| row::timestamp(row, "now")).transpose();
        now.map_err(|error| error.into_store_error(self.pool.timeout))
    }

    async fn examine(&self) -> StoreResult<Vec<Finding>> {
        self.pool.run(examine::findings(&self.pool, self.max_connections)).await
    }

    async fn sweep(&self, at_most: u32) -> StoreResult<Swept> {
        sweep::sweep(&self.pool, at_most).await
    }
}
