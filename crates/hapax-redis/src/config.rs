use std::time::Duration;

use hapax_core::{StoreError, StoreResult};

use crate::connect::{RedisAddress, ReplicaWait};
use crate::keys::{KeyNames, VerbatimKeys};

/// The servers of a store, and how to use them.
///
/// | URL | servers |
/// |---|---|
/// | `redis://[user:password@]host[:6379][/database]` | one server |
/// | `redis+sentinel://[user:password@]a[:26379],b/master-name[/database]` | the master that the sentinels name; `?sentinel_username=` and `?sentinel_password=` for the sentinels themselves |
/// | `redis+cluster://[user:password@]a[:6379],b` | a Cluster; some of its nodes are enough |
///
/// `rediss`, `rediss+sentinel`, `rediss+cluster` or `?tls=true` use TLS, with the system's certificates or with
/// those in the file of `?ca=/path/ca.pem`. `?wait_replicas=` and `?wait_ms=` are
/// [`RedisConfig::wait_for_replicas`].
///
/// ```
/// use hapax_redis::RedisConfig;
/// use std::time::Duration;
/// let config = RedisConfig::new("redis+cluster://a:7000,b:7001")?.timeout(Duration::from_secs(1));
/// assert!(RedisConfig::new("redis://host:port").is_err());
/// # Ok::<(), hapax_core::StoreError>(())
/// ```
#[derive(Clone, Debug)]
pub struct RedisConfig {
    pub(crate) address: RedisAddress,
    pub(crate) names: KeyNames,
    pub(crate) timeout: Duration,
    pub(crate) max_in_flight: usize,
    pub(crate) partitions: u16,
}

impl RedisConfig {
    /// Takes the servers from a URL, and the default for everything else.
    ///
    /// # Errors
    /// [`StoreError::Incompatible`] if the URL is malformed.
    pub fn new(url: &str) -> StoreResult<Self> {
        Ok(Self {
            address: RedisAddress::parse(url)?,
            names: KeyNames { prefix: "hapax".into(), verbatim: VerbatimKeys::default() },
            timeout: Duration::from_secs(2),
            max_in_flight: 1024,
            partitions: hapax_core::log::PARTITIONS,
        })
    }

    hapax_core::builder_methods! {
        /// The longest that one call may take; 2 s by default.
        timeout: Duration;
    }

    /// How many calls may be sent at once; 1024 by default. Further calls wait, within their timeout, so that
    /// they do not pile up before a server that hangs.
    #[must_use]
    pub fn max_in_flight(mut self, calls: usize) -> Self {
        self.max_in_flight = calls.clamp(1, tokio::sync::Semaphore::MAX_PERMITS);
        self
    }

    /// Acknowledges an append or an enqueue only when this many replicas have it; none by default. If that takes
    /// longer than `timeout` (at most half the timeout of a call), the call returns
    /// [`StoreError::Unavailable`], and the write may or may not last. `?wait_replicas=1&wait_ms=1000` in the URL
    /// does the same. A failover can then lose less, but still something: the promoted replica may be one
    /// without the write.
    #[must_use]
    pub fn wait_for_replicas(mut self, replicas: u16, timeout: Duration) -> Self {
        self.address.wait = ReplicaWait::new(replicas, timeout);
        self
    }

    /// The number of partitions of the log; 256 by default. It is stored with the first event, and a store that
    /// contains another number is refused.
    #[must_use]
    pub fn partitions(mut self, partitions: u16) -> Self {
        self.partitions = partitions.max(1);
        self
    }

    /// The prefix of the wake-up channel and of all keys but the verbatim ones; `hapax` by default.
    ///
    /// # Errors
    /// [`StoreError::Incompatible`] if it is empty or has bytes other than letters, digits, `_`, `-`, `.` and
    /// `:`; a brace would move all keys to one slot of a Cluster.
    pub fn prefix(mut self, prefix: &str) -> StoreResult<Self> {
        let is_allowed = |b: u8| b.is_ascii_alphanumeric() || b"_-.:".contains(&b);
        if prefix.is_empty() || !prefix.bytes().all(is_allowed) {
            let reason =
                "the key prefix may contain only letters, digits, `_`, `-`, `.` and `:`".into();
            return Err(StoreError::Incompatible { reason });
        }
        self.names.prefix = prefix.into();
        Ok(self)
    }

    /// The locks and records that are stored under their own names; none by default.
    #[must_use]
    pub fn verbatim(mut self, verbatim: VerbatimKeys) -> Self {
        self.names.verbatim = verbatim;
        self
    }
}
