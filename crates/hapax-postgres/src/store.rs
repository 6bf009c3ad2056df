use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use hapax_core::{Finding, Key, Store, StoreError};
use tokio_postgres::types::Type;

use crate::batch::Batcher;
use crate::claims::claim::Claiming;
use crate::claims::step::Stepping;
use crate::connect::Link;
use crate::connect::session::{Session, Sql};
use crate::log::append::Appending;
use crate::queue::enqueue::Enqueueing;
use crate::wake::Wakes;
use crate::{Config, examine, sweep};

/// hapax on PostgreSQL 13 or newer.
///
/// Opening it needs no server: it connects on first use, makes or updates its tables (`hapax_…`),
/// and connects again whenever the connection was lost.
///
/// Concurrent claims go to the server many in one statement, and so do settles: what waits while
/// one statement is under way makes up the next. Nothing ever waits for a lock with a connection in
/// its hands, and a claim in somebody's open transaction (see [`InTransaction`](crate::InTransaction))
/// holds up nobody.
///
/// ```no_run
/// use hapax_core::{Operation, ClaimRequest, Claims, Key, Tenant};
/// use hapax_postgres::{Config, PostgresStore};
/// use std::time::Duration;
///
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// let store = PostgresStore::open(Config::new("postgres://app@127.0.0.1/app"))?;
/// let key = Key::command(&Tenant::default(), Operation("pay"), "order-1")?;
/// let answer = store.claim(&key, &ClaimRequest::new(Duration::from_secs(30))).await?;
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct PostgresStore {
    pub(crate) link: Arc<Link>,
    pub(crate) wakes: Arc<Wakes>,
    pub(crate) claims: Arc<Batcher<Claiming>>,
    pub(crate) steps: Arc<Batcher<Stepping>>,
    pub(crate) appends: Arc<Batcher<Appending>>,
    pub(crate) enqueues: Arc<Batcher<Enqueueing>>,
    pub(crate) partitions: u16,
    pool: usize,
}

impl PostgresStore {
    /// A handle on the store; nothing is connected yet.
    ///
    /// # Errors
    /// [`StoreError::Incompatible`] where the URL or a certificate file in it cannot be understood.
    /// The text never contains the password.
    pub fn open(config: Config) -> Result<Self, StoreError> {
        let link = Arc::new(Link::new(&config)?);
        let wakes = Arc::new(Wakes::new(link.clone()));
        // Claims, steps and appends take a quarter of the connections each.
        let workers = (config.pool / 4).max(1);
        Ok(Self {
            claims: Arc::new(Batcher::new(link.clone(), wakes.clone(), workers, config.batch)),
            steps: Arc::new(Batcher::new(link.clone(), wakes.clone(), workers, config.batch)),
            appends: Arc::new(Batcher::new(link.clone(), wakes.clone(), workers, config.batch)),
            enqueues: Arc::new(Batcher::new(link.clone(), wakes.clone(), 1, config.batch)),
            partitions: config.partitions,
            pool: config.pool,
            link,
            wakes,
        })
    }

    /// Tells waiters, here and on other nodes, that a claim was settled or given back. The store
    /// does so for its own steps; call it after the commit of a transaction with steps in it. Where
    /// it is not called, waiters find out when they next look.
    pub fn hint(&self, key: &Key) {
        self.wakes.wake(key);
    }
}

impl fmt::Debug for PostgresStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PostgresStore").field("pool", &self.pool).finish_non_exhaustive()
    }
}

#[async_trait]
impl Store for PostgresStore {
    fn name(&self) -> &'static str {
        "postgres"
    }

    async fn ping(&self) -> Result<(), StoreError> {
        const PING: Sql = Sql {
            text: "SELECT pg_is_in_recovery() OR current_setting('transaction_read_only')::bool \
                   AS closed FROM hapax_meta WHERE name = $1",
            types: &[Type::TEXT],
        };
        self.link
            .within(async {
                let rows = self.link.lease().await?.rows(&PING, &[&"schema"]).await?;
                match rows.first().map(|row| row.try_get("closed")).transpose()? {
                    Some(false) => Ok(()),
                    _ => Err(StoreError::ReadOnly {
                        reason: "the server is a standby or takes only reads".into(),
                    }
                    .into()),
                }
            })
            .await
    }

    async fn examine(&self) -> Result<Vec<Finding>, StoreError> {
        self.link.within(examine::findings(&self.link, self.pool)).await
    }

    async fn sweep(&self, at_most: u32) -> Result<u64, StoreError> {
        sweep::sweep(&self.link, at_most).await
    }
}
