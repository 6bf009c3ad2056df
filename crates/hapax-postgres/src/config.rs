use std::fmt;
use std::time::Duration;

use hapax_core::OpenMode;
use hapax_core::log::PARTITIONS;

/// How a [`PostgresStore`](crate::PostgresStore) connects.
///
/// ```
/// use hapax_postgres::PostgresConfig;
/// use std::time::Duration;
///
/// let config = PostgresConfig::new("postgres://app:secret@db.internal/app?sslmode=verify-full")
///     .max_connections(16)
///     .timeout(Duration::from_millis(800));
/// assert!(!format!("{config:?}").contains("secret"));
/// ```
#[derive(Clone)]
pub struct PostgresConfig {
    pub(crate) url: String,
    pub(crate) max_connections: usize,
    pub(crate) timeout: Duration,
    pub(crate) max_batch: usize,
    pub(crate) schema: Option<String>,
    pub(crate) transaction_pooler: bool,
    pub(crate) partitions: u16,
    pub(crate) mode: OpenMode,
}

impl PostgresConfig {
    /// Eight connections, a timeout of two seconds, at most 128 operations in a statement.
    ///
    /// The URL is `postgres://user:password@host:port/database?options`, with the options that
    /// libpq knows: among them `sslmode` (`disable`, `prefer`, `require`, `verify-ca`,
    /// `verify-full`), `sslrootcert` (a PEM file, or `system`), `sslcert` and `sslkey`. Several
    /// hosts may be given, with `target_session_attrs=read-write` to find the primary.
    /// `pgbouncer=true` is [`PostgresConfig::transaction_pooler`].
    pub fn new(url: impl Into<String>) -> Self {
        Self {
            url: url.into(),
            max_connections: 8,
            timeout: Duration::from_secs(2),
            max_batch: 128,
            schema: None,
            transaction_pooler: false,
            partitions: PARTITIONS,
            mode: OpenMode::Migrate,
        }
    }

    hapax_core::builder_methods! {
        /// The longest that one call may take, from the wait for a connection to the answer.
        timeout: Duration;
        /// Connects through a transaction pooler (PgBouncer, Supavisor, RDS Proxy): no prepared
        /// statements, no session settings, and no notifications from other nodes; hints for waiters
        /// go through a table that is read once a second instead.
        transaction_pooler: bool;
        /// How much connecting may change in the database.
        mode: OpenMode;
    }

    /// The size of the pool; one more connection is used for wake-ups from other nodes.
    #[must_use]
    pub fn max_connections(mut self, connections: usize) -> Self {
        self.max_connections = connections.max(1);
        self
    }

    /// How many concurrent operations go into one statement.
    #[must_use]
    pub fn max_batch(mut self, operations: usize) -> Self {
        self.max_batch = operations.max(1);
        self
    }

    /// Keeps the tables in this schema, created if it is missing, instead of the role's default one.
    #[must_use]
    pub fn schema(mut self, schema: impl Into<String>) -> Self {
        self.schema = Some(schema.into());
        self
    }

    /// How many partitions the logs have. The number is stored when the tables are created; opening
    /// them with another number is refused.
    #[must_use]
    pub fn partitions(mut self, partitions: u16) -> Self {
        self.partitions = partitions.max(1);
        self
    }
}

/// Shows everything but the URL, which may hold a password.
impl fmt::Debug for PostgresConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PostgresConfig")
            .field("max_connections", &self.max_connections)
            .field("timeout", &self.timeout)
            .field("max_batch", &self.max_batch)
            .field("schema", &self.schema)
            .field("transaction_pooler", &self.transaction_pooler)
            .field("partitions", &self.partitions)
            .finish_non_exhaustive()
    }
}
