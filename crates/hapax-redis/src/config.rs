use std::fmt;
use std::time::Duration;

use hapax_core::StoreError;

use crate::address::Address;
use crate::calls::Wait;
use crate::keys::{Naming, Verbatim};

/// Where the servers are, and how to use them.
///
/// | URL | for |
/// |---|---|
/// | `redis://[user:password@]host[:6379][/database]` | one server |
/// | `redis+sentinel://[user:password@]a[:26379],b/master-name[/database]` | the master that the sentinels name; `?sentinel_username=` and `?sentinel_password=` for the sentinels themselves |
/// | `redis+cluster://[user:password@]a[:6379],b` | a Cluster; some of its nodes are enough |
///
/// `?wait_replicas=` and `?wait_ms=` are [`RedisConfig::wait`]. `rediss`, `rediss+sentinel`, `rediss+cluster` or `?tls=true` use TLS, with the system's
/// certificates, or those in the file of `?ca=/path/ca.pem` in their place.
///
/// ```
/// use hapax_redis::RedisConfig;
/// use std::time::Duration;
/// let config = RedisConfig::new("redis+cluster://a:7000,b:7001")?.limit(Duration::from_secs(1));
/// assert!(RedisConfig::new("redis://host:port").is_err());
/// # Ok::<(), hapax_core::StoreError>(())
/// ```
#[derive(Clone)]
pub struct RedisConfig {
    pub(crate) address: Address,
    pub(crate) naming: Naming,
    pub(crate) limit: Duration,
    pub(crate) in_flight: usize,
    pub(crate) partitions: u16,
}

/// Shows nothing of the credentials.
impl fmt::Debug for RedisConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisConfig")
            .field("address", &self.address)
            .field("naming", &self.naming)
            .field("limit", &self.limit)
            .field("in_flight", &self.in_flight)
            .field("partitions", &self.partitions)
            .finish()
    }
}

impl RedisConfig {
    /// The servers of this URL, with default settings.
    ///
    /// # Errors
    /// [`StoreError::Incompatible`] where the URL is malformed.
    pub fn new(url: &str) -> Result<Self, StoreError> {
        Ok(Self {
            address: Address::parse(url)?,
            naming: Naming { prefix: "hapax".into(), verbatim: Verbatim::default() },
            limit: Duration::from_secs(2),
            in_flight: 1024,
            partitions: hapax_core::log::PARTITIONS,
        })
    }

    /// How long one call may take; 2 s by default.
    #[must_use]
    pub fn limit(mut self, limit: Duration) -> Self {
        self.limit = limit;
        self
    }

    /// How many calls may be on their way at once; 1024 by default. Further ones wait for their
    /// turn, within their limit: a server that hangs must not pile them up.
    #[must_use]
    pub fn in_flight(mut self, calls: usize) -> Self {
        self.in_flight = calls.clamp(1, tokio::sync::Semaphore::MAX_PERMITS);
        self
    }

    /// Acknowledges an append or an enqueue only when this many replicas have it, and gives
    /// [`StoreError::Unavailable`] where that takes longer than `within` (at most half the limit of a
    /// call): then it may or may not last. None by default; `?wait_replicas=1&wait_ms=1000` in the URL
    /// does the same. It narrows what a failover can lose, and does not rule it out: a replica without
    /// the write may be the one that is promoted.
    #[must_use]
    pub fn wait(mut self, replicas: u16, within: Duration) -> Self {
        self.address.wait = Wait::on(replicas, within);
        self
    }

    /// Over how many partitions jobs are spread; 256 by default. The number is stored with the first
    /// event, and a store that holds another one is refused.
    #[must_use]
    pub fn partitions(mut self, partitions: u16) -> Self {
        self.partitions = partitions.max(1);
        self
    }

    /// What keys (all but the verbatim ones) and the wake-up channel start with; `hapax` by
    /// default.
    ///
    /// # Errors
    /// [`StoreError::Incompatible`] where it is empty or has bytes other than letters, digits, `_`, `-`,
    /// `.` and `:`; a brace would move all keys to one slot of a Cluster.
    pub fn prefix(mut self, prefix: &str) -> Result<Self, StoreError> {
        let fine = |b: u8| b.is_ascii_alphanumeric() || b"_-.:".contains(&b);
        if prefix.is_empty() || !prefix.bytes().all(fine) {
            let reason = "the key prefix takes letters, digits, `_`, `-`, `.` and `:`".into();
            return Err(StoreError::Incompatible { reason });
        }
        self.naming.prefix = prefix.into();
        Ok(self)
    }

    /// Which keys are used as they are.
    #[must_use]
    pub fn verbatim(mut self, verbatim: Verbatim) -> Self {
        self.naming.verbatim = verbatim;
        self
    }
}
