use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use hapax_core::{
    Ask, Claimed, Claims, Deleted, Expect, Finding, GiveBack, Key, List, Oversight, Page, Put,
    Record, Records, Step, Store, StoreError, Token, View, Watch, limited,
};
use tokio_postgres::types::Type;

use crate::appending::Appending;
use crate::batch::Batcher;
use crate::claiming::{Asked, Claiming};
use crate::enqueueing::Enqueueing;
use crate::link::Link;
use crate::patience::Patience;
use crate::session::{Session, Sql};
use crate::stepping::{Act, Stepping, Taken};
use crate::wake::Wakes;
use crate::{Config, examine, listing, looking, recording, sweep};

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
/// use hapax_core::{Ask, Claims, Key, Tenant};
/// use hapax_postgres::{Config, PostgresStore};
/// use std::time::Duration;
///
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// let store = PostgresStore::open(Config::new("postgres://app@127.0.0.1/app"))?;
/// let key = Key::command(&Tenant::default(), "pay", "order-1")?;
/// let answer = store.claim(&key, &Ask::new(Duration::from_secs(30))).await?;
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct PostgresStore {
    pub(crate) link: Arc<Link>,
    pub(crate) wakes: Arc<Wakes>,
    claims: Arc<Batcher<Claiming>>,
    steps: Arc<Batcher<Stepping>>,
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

    /// A step on a key that another transaction is just writing is tried again, without holding
    /// up other steps or a connection.
    async fn step(&self, key: &Key, token: &Token, act: Act) -> Result<Step, StoreError> {
        let taken = Taken { key: key.clone(), token: token.clone(), act };
        let mut patience = Patience::new(self.link.limit);
        limited(self.link.limit, async {
            loop {
                match self.steps.submit(taken.clone()).await? {
                    Some(step) => return Ok(step),
                    None => patience.wait().await?,
                }
            }
        })
        .await
    }
}

impl fmt::Debug for PostgresStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PostgresStore").field("pool", &self.pool).finish_non_exhaustive()
    }
}

#[async_trait]
impl Claims for PostgresStore {
    async fn claim(&self, key: &Key, ask: &Ask) -> Result<Claimed, StoreError> {
        self.claims.submit(Asked { key: key.clone(), ask: ask.clone() }).await
    }

    async fn extend(&self, key: &Key, token: &Token, lease: Duration) -> Result<Step, StoreError> {
        self.step(key, token, Act::Extend(lease)).await
    }

    async fn settle(&self, key: &Key, token: &Token, value: Bytes) -> Result<Step, StoreError> {
        self.step(key, token, Act::Settle(value)).await
    }

    async fn give_back(&self, key: &Key, token: &Token, how: GiveBack) -> Result<Step, StoreError> {
        self.step(key, token, Act::GiveBack(how)).await
    }

    async fn look(&self, key: &Key) -> Result<Option<View>, StoreError> {
        self.link.within(async { looking::look(&mut self.link.lease().await?, key).await }).await
    }

    fn watch(&self, key: &Key) -> Watch {
        self.wakes.watch(key)
    }
}

#[async_trait]
impl Records for PostgresStore {
    async fn get(&self, key: &Key) -> Result<Option<Record>, StoreError> {
        self.link.within(async { recording::get(&mut self.link.lease().await?, key).await }).await
    }

    async fn put(
        &self,
        key: &Key,
        value: Bytes,
        expect: &Expect,
        ttl: Option<Duration>,
    ) -> Result<Put, StoreError> {
        let mut patience = Patience::new(self.link.limit);
        self.link
            .within(async {
                loop {
                    let mut lease = self.link.lease().await?;
                    let put = recording::put(&mut lease, key, &value, expect, ttl).await?;
                    drop(lease);
                    match put {
                        Some(put) => return Ok(put),
                        None => patience.wait().await?,
                    }
                }
            })
            .await
    }

    async fn delete(&self, key: &Key, expect: &Expect) -> Result<Deleted, StoreError> {
        let mut patience = Patience::new(self.link.limit);
        self.link
            .within(async {
                loop {
                    let mut lease = self.link.lease().await?;
                    let deleted = recording::delete(&mut lease, key, expect).await?;
                    drop(lease);
                    match deleted {
                        Some(deleted) => return Ok(deleted),
                        None => patience.wait().await?,
                    }
                }
            })
            .await
    }
}

#[async_trait]
impl Oversight for PostgresStore {
    async fn list(&self, list: &List) -> Result<Page, StoreError> {
        self.link.within(async { listing::list(&mut self.link.lease().await?, list).await }).await
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
