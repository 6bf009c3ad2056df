use std::sync::Arc;

use async_trait::async_trait;
use hapax_core::{Finding, Key, Store, StoreResult, Swept, Timestamp, Watch};

use crate::client::{RedisClient, ScriptReply, read};
use crate::connect::RedisConnector;
use crate::keys::KeyNames;
use crate::log::PartitionCount;
use crate::queue::StoredQueueNames;
use crate::script::Script;
use crate::settled_keys::SettledKeys;
use crate::wake::WakeListener;
use crate::{RedisConfig, examine, log};

/// A store on Redis or Valkey. A clone shares the connection.
#[derive(Clone)]
pub struct RedisStore {
    pub(crate) client: Arc<RedisClient>,
    listener: Arc<WakeListener>,
    pub(crate) names: Arc<KeyNames>,
    pub(crate) partitions: Arc<PartitionCount>,
    pub(crate) queue_names: Arc<StoredQueueNames>,
    pub(crate) settled_keys: Arc<SettledKeys>,
}

impl std::fmt::Debug for RedisStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RedisStore").field("names", &self.names).finish_non_exhaustive()
    }
}

impl RedisStore {
    /// Makes a store that connects with the first call, and again whenever the connection was lost. No server
    /// needs to be reachable yet.
    ///
    /// # Errors
    /// [`StoreError::Incompatible`](hapax_core::StoreError::Incompatible) if the configuration cannot be used, such as a `ca` file that cannot be
    /// read.
    ///
    /// ```
    /// use hapax_redis::{RedisConfig, RedisStore};
    /// let store = RedisStore::open(RedisConfig::new("redis://127.0.0.1:6379/0")?)?;
    /// # Ok::<(), hapax_core::StoreError>(())
    /// ```
    pub fn open(config: RedisConfig) -> StoreResult<Self> {
        let RedisConfig { address, names, timeout, max_in_flight, partitions } = config;
        let connector = Arc::new(RedisConnector::new(&address, timeout, max_in_flight)?);
        let client = RedisClient::new(connector.clone(), max_in_flight, timeout, address.wait);
        Ok(Self {
            client: Arc::new(client),
            listener: Arc::new(WakeListener::new(connector, names.wake_channel())),
            names: Arc::new(names),
            partitions: Arc::new(PartitionCount::new(partitions)),
            queue_names: Arc::default(),
            settled_keys: Arc::new(SettledKeys::new()),
        })
    }

    pub(crate) async fn run(
        &self,
        script: &Script,
        key: &Key,
        args: &[&[u8]],
    ) -> StoreResult<ScriptReply> {
        self.client.run(script, &[&self.names.of(key).name], args).await
    }

    /// Runs a script that ends a claim and wakes its waiters: the script itself publishes to other processes,
    /// the waiters of this process are woken directly.
    pub(crate) async fn run_and_wake(
        &self,
        script: &Script,
        key: &Key,
        row_start: &str,
        value: &[u8],
    ) -> StoreResult<ScriptReply> {
        let digest = key.digest();
        let text = digest.to_string();
        let channel = self.listener.channel().as_bytes();
        let args = [row_start.as_bytes(), channel, text.as_bytes(), value];
        let reply = self.run(script, key, &args).await;
        self.listener.wake(digest);
        reply
    }

    /// The channel and the message that wake waiters in other processes.
    pub(crate) fn wake_message(&self, digest: u64) -> (&[u8], String) {
        (self.listener.channel().as_bytes(), digest.to_string())
    }

    /// Wakes the waiters of this process.
    pub(crate) fn wake_local(&self, digest: u64) {
        self.listener.wake(digest);
    }

    pub(crate) fn watch_key(&self, key: &Key) -> Watch {
        self.listener.watch(key)
    }

    /// The argument by which scripts distinguish verbatim records.
    pub(crate) fn verbatim_flag(&self, key: &Key) -> &'static [u8] {
        if self.names.of(key).verbatim { b"1" } else { b"0" }
    }
}

#[async_trait]
impl Store for RedisStore {
    fn name(&self) -> &'static str {
        "redis"
    }

    async fn ping(&self) -> StoreResult<()> {
        self.client.send_to_masters(&redis::cmd("PING")).await?;
        self.check_partitions().await
    }

    async fn server_time(&self) -> StoreResult<Option<Timestamp>> {
        let replies = self.client.send_to_masters(&redis::cmd("TIME")).await?;
        let times = replies.into_iter().map(|(_, reply)| {
            let (seconds, micros): (u64, u64) = read(reply)?;
            Ok(Timestamp(seconds * 1000 + micros / 1000))
        });
        times.collect::<StoreResult<Vec<_>>>().map(|times| times.into_iter().max())
    }

    async fn examine(&self) -> StoreResult<Vec<Finding>> {
        self.check_partitions().await?;
        examine::findings(&self.client).await
    }

    /// Removes the pointers of forgotten jobs from the tails of idle partitions. Redis itself removes
    /// expired keys.
    async fn sweep(&self, at_most: u32) -> StoreResult<Swept> {
        self.check_partitions().await?;
        log::sweep::sweep(self, at_most, self.client.timeout / 2).await
    }
}
