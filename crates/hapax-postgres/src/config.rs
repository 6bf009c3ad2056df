use std::fmt;
use std::time::Duration;

use hapax_core::log::PARTITIONS;

/// How a [`PostgresStore`](crate::PostgresStore) connects.
///
/// ```
/// use hapax_postgres::Config;
/// use std::time::Duration;
///
/// let config = Config::new("postgres://app:secret@db.internal/app?sslmode=verify-full")
///     .pool(16)
///     .limit(Duration::from_millis(800));
/// assert!(!format!("{config:?}").contains("secret"));
/// ```
#[derive(Clone)]
pub struct Config {
    pub(crate) url: String,
    pub(crate) pool: usize,
    pub(crate) limit: Duration,
    pub(crate) batch: usize,
    pub(crate) schema: Option<String>,
    pub(crate) pooled: bool,
    pub(crate) partitions: u16,
}

impl Config {
    /// Eight connections, two seconds for a call, at most 128 operations in a statement.
    ///
    /// The URL is `postgres://user:password@host:port/database?options`, with the options that
    /// libpq knows: among them `sslmode` (`disable`, `prefer`, `require`, `verify-ca`,
    /// `verify-full`), `sslrootcert` (a PEM file, or `system`), `sslcert` and `sslkey`. Several
    /// hosts may be given, with `target_session_attrs=read-write` to find the primary.
    /// `pgbouncer=true` is [`Config::pooled`].
    pub fn new(url: impl Into<String>) -> Self {
        Self {
            url: url.into(),
            pool: 8,
            limit: Duration::from_secs(2),
            batch: 128,
            schema: None,
            pooled: false,
            partitions: PARTITIONS,
        }
    }

    /// How many connections at most; one more is used for wake-ups from other nodes.
    #[must_use]
    pub fn pool(mut self, connections: usize) -> Self {
        self.pool = connections.max(1);
        self
    }

    /// How long one call may take, from the wait for a connection to the answer.
    #[must_use]
    pub fn limit(mut self, limit: Duration) -> Self {
        self.limit = limit;
        self
    }

    /// How many concurrent operations go into one statement at most.
    #[must_use]
    pub fn batch(mut self, operations: usize) -> Self {
        self.batch = operations.max(1);
        self
    }

    /// Keeps the tables in this schema, made if it is missing, instead of the role's default one.
    #[must_use]
    pub fn schema(mut self, schema: impl Into<String>) -> Self {
        self.schema = Some(schema.into());
        self
    }

    /// How many partitions the logs have. The number is stored when the tables are made; a store that
    /// holds another one is refused.
    #[must_use]
    pub fn partitions(mut self, partitions: u16) -> Self {
        self.partitions = partitions.max(1);
        self
    }

    /// Goes through a transaction pooler (PgBouncer, Supavisor, RDS Proxy): no prepared statements,
    /// no session settings, and no wake-ups from other nodes: waiters look once a second instead.
    #[must_use]
    pub fn pooled(mut self, pooled: bool) -> Self {
        self.pooled = pooled;
        self
    }
}

/// Shows everything but the URL, which may hold a password.
impl fmt::Debug for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Config")
            .field("pool", &self.pool)
            .field("limit", &self.limit)
            .field("batch", &self.batch)
            .field("schema", &self.schema)
            .field("pooled", &self.pooled)
            .field("partitions", &self.partitions)
            .finish_non_exhaustive()
    }
}
