use std::sync::Arc;

use async_trait::async_trait;
use hapax_core::{Finding, Key, Store, StoreError, Watch};

use crate::calls::{Answer, Calls};
use crate::connect::Connector;
use crate::keys::Naming;
use crate::log::Partitions;
use crate::script::Script;
use crate::wake::Listener;
use crate::{RedisConfig, examine};

/// A store on Redis or Valkey. Cloning gives another handle on the same connection.
#[derive(Clone)]
pub struct RedisStore {
    pub(crate) calls: Arc<Calls>,
    listener: Arc<Listener>,
    pub(crate) naming: Arc<Naming>,
    pub(crate) partitions: Arc<Partitions>,
}

impl std::fmt::Debug for RedisStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RedisStore").field("naming", &self.naming).finish_non_exhaustive()
    }
}

impl RedisStore {
    /// A handle. It connects with the first call, and again for ever after the connection was
    /// lost; nothing needs to be reachable yet.
    ///
    /// # Errors
    /// [`StoreError::Incompatible`] where the settings cannot be used, such as a `ca` file that
    /// cannot be read.
    ///
    /// ```
    /// use hapax_redis::{RedisConfig, RedisStore};
    /// let store = RedisStore::open(RedisConfig::new("redis://127.0.0.1:6379/0")?)?;
    /// # Ok::<(), hapax_core::StoreError>(())
    /// ```
    pub fn open(config: RedisConfig) -> Result<Self, StoreError> {
        let RedisConfig { address, naming, limit, in_flight, partitions } = config;
        let connector = Arc::new(Connector::new(&address, limit, in_flight)?);
        Ok(Self {
            calls: Arc::new(Calls::new(connector.clone(), in_flight, limit, address.wait)),
            listener: Arc::new(Listener::new(connector, naming.channel())),
            naming: Arc::new(naming),
            partitions: Arc::new(Partitions::new(partitions)),
        })
    }

    pub(crate) async fn run(
        &self,
        script: &Script,
        key: &Key,
        args: &[&[u8]],
    ) -> Result<Answer, StoreError> {
        self.calls.run(script, &[&self.naming.of(key).name], args).await
    }

    /// Runs a script that ends a claim, and wakes who waits for that: those in other processes
    /// with the script itself, those in this one at once.
    pub(crate) async fn run_and_wake(
        &self,
        script: &Script,
        key: &Key,
        mark: &str,
        value: &[u8],
    ) -> Result<Answer, StoreError> {
        let digest = key.digest();
        let text = digest.to_string();
        let channel = self.listener.channel().as_bytes();
        let args = [mark.as_bytes(), channel, text.as_bytes(), value];
        let answer = self.run(script, key, &args).await;
        self.listener.wake(digest);
        answer
    }

    /// The channel and the text by which other nodes' waiters are woken.
    pub(crate) fn wake_up(&self, digest: u64) -> (&[u8], String) {
        (self.listener.channel().as_bytes(), digest.to_string())
    }

    /// Wakes who waits in this process.
    pub(crate) fn wake(&self, digest: u64) {
        self.listener.wake(digest);
    }

    pub(crate) fn watched(&self, key: &Key) -> Watch {
        self.listener.watch(key)
    }

    /// What scripts are told of a record that is stored as plain text.
    pub(crate) fn plainness(&self, key: &Key) -> &'static [u8] {
        if self.naming.of(key).verbatim { b"1" } else { b"0" }
    }
}

#[async_trait]
impl Store for RedisStore {
    fn name(&self) -> &'static str {
        "redis"
    }

    async fn ping(&self) -> Result<(), StoreError> {
        self.calls.ask_all(&redis::cmd("PING")).await?;
        self.check_partitions().await
    }

    async fn examine(&self) -> Result<Vec<Finding>, StoreError> {
        self.check_partitions().await?;
        examine::findings(&self.calls).await
    }

    /// Redis forgets by itself.
    async fn sweep(&self, _at_most: u32) -> Result<u64, StoreError> {
        Ok(0)
    }
}
