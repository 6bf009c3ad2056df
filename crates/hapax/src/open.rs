use std::sync::Arc;
use std::time::Duration;

use hapax_core::memory::MemoryStore;
use hapax_core::{OpenMode, Store, StoreError, StoreResult};

/// The settings of [`open`].
///
/// ```
/// use std::time::Duration;
/// let config = hapax::StoreConfig::default()
///     .timeout(Duration::from_millis(800))
///     .redis_verbatim(["processing:*"]);
/// ```
#[derive(Clone, Debug)]
pub struct StoreConfig {
    timeout: Duration,
    redis_verbatim: Vec<String>,
    mode: OpenMode,
}

impl Default for StoreConfig {
    fn default() -> Self {
        Self { timeout: Self::DEFAULT_TIMEOUT, redis_verbatim: Vec::new(), mode: OpenMode::Migrate }
    }
}

impl StoreConfig {
    /// The default of [`StoreConfig::timeout`].
    pub const DEFAULT_TIMEOUT: Duration = Duration::from_secs(2);

    /// Sets the longest time that one store call may take; two seconds by default.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Sets what opening the store may change; by default it creates and migrates its tables.
    #[must_use]
    pub fn mode(mut self, mode: OpenMode) -> Self {
        self.mode = mode;
        self
    }

    /// Sets which locks and records of the tenant `default` Redis stores under their plain names,
    /// without hapax's prefix, because programs without hapax use them too. `*` stands for any text.
    /// None by default.
    #[must_use]
    pub fn redis_verbatim(mut self, names: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.redis_verbatim = names.into_iter().map(Into::into).collect();
        self
    }
}

/// Opens the store with this URL.
///
/// | URL | store | cargo feature |
/// |---|---|---|
/// | `sqlite:FILE` | an embedded file | `sqlite` (default) |
/// | `memory:` | this process; nothing survives it | |
/// | `redis://…`, `rediss://…`, `redis+sentinel://…`, `redis+cluster://…` | Redis or Valkey | `redis` |
/// | `postgres://…`, `postgresql://…` | PostgreSQL | `postgres` |
///
/// An unreachable server is not an error: the store connects when it can. Call this function inside
/// a tokio runtime.
///
/// # Errors
/// If the URL is malformed, names a store that is not compiled in, or the file cannot be used.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), hapax::StoreError> {
/// use hapax::{StoreConfig, lock::{LockConfig, Locks}};
///
/// let store = hapax::open("memory:", &StoreConfig::default())?;
/// let locks = Locks::new(store);
/// let guard = locks.acquire("nightly-report", &LockConfig::default()).await.unwrap();
/// # drop(guard);
/// # Ok(()) }
/// ```
pub fn open(url: &str, config: &StoreConfig) -> StoreResult<Arc<dyn Store>> {
    let (scheme, rest) = url.split_once(':').unwrap_or((url, ""));
    match scheme {
        "memory" => Ok(Arc::new(MemoryStore::default())),
        "sqlite" => sqlite(rest, config),
        "redis" | "rediss" | "redis+sentinel" | "rediss+sentinel" | "redis+cluster"
        | "rediss+cluster" => redis(url, config),
        "postgres" | "postgresql" => postgres(url, config),
        _ => Err(StoreError::Incompatible {
            reason: "a store URL starts with sqlite:, memory:, redis://, rediss://, \
                     redis+sentinel://, redis+cluster:// or postgres://"
                .into(),
        }),
    }
}

/// The SQL that the next opening of this store would run to create its tables or bring them up to date:
/// empty if there is nothing to do, `None` for stores without tables. Nothing is changed.
///
/// # Errors
/// As [`open`]; also where the server cannot be reached, or the tables were written by a newer hapax.
pub async fn migration_sql(url: &str, config: &StoreConfig) -> StoreResult<Option<String>> {
    let (scheme, rest) = url.split_once(':').unwrap_or((url, ""));
    match scheme {
        #[cfg(feature = "sqlite")]
        "sqlite" => hapax_sqlite::migration_sql(sqlite_config(rest, config)?).map(Some),
        #[cfg(feature = "postgres")]
        "postgres" | "postgresql" => {
            hapax_postgres::migration_sql(&postgres_config(url, config)).await.map(Some)
        }
        _ => open(url, config).map(|_| None),
    }
}

#[cfg(feature = "sqlite")]
fn sqlite_config(path: &str, config: &StoreConfig) -> StoreResult<hapax_sqlite::SqliteConfig> {
    // `sqlite:file.db`, `sqlite:/var/file.db` and `sqlite:///var/file.db` are all in use.
    let path = path.strip_prefix("//").unwrap_or(path);
    if path.is_empty() {
        let reason = "sqlite: needs a file, as in sqlite:hapax.db".into();
        return Err(StoreError::Incompatible { reason });
    }
    Ok(hapax_sqlite::SqliteConfig::new(path).timeout(config.timeout).mode(config.mode))
}

#[cfg(feature = "sqlite")]
fn sqlite(path: &str, config: &StoreConfig) -> StoreResult<Arc<dyn Store>> {
    Ok(Arc::new(hapax_sqlite::SqliteStore::open(sqlite_config(path, config)?)?))
}

#[cfg(feature = "redis")]
fn redis(url: &str, config: &StoreConfig) -> StoreResult<Arc<dyn Store>> {
    let names = &config.redis_verbatim;
    let verbatim = hapax_redis::VerbatimKeys::default().locks(names).records(names);
    let store_config =
        hapax_redis::RedisConfig::new(url)?.timeout(config.timeout).verbatim(verbatim);
    Ok(Arc::new(hapax_redis::RedisStore::open(store_config)?))
}

#[cfg(feature = "postgres")]
fn postgres(url: &str, config: &StoreConfig) -> StoreResult<Arc<dyn Store>> {
    Ok(Arc::new(hapax_postgres::PostgresStore::open(postgres_config(url, config))?))
}

#[cfg(feature = "postgres")]
fn postgres_config(url: &str, config: &StoreConfig) -> hapax_postgres::PostgresConfig {
    hapax_postgres::PostgresConfig::new(url).timeout(config.timeout).mode(config.mode)
}

#[cfg(not(feature = "sqlite"))]
fn sqlite(_: &str, _: &StoreConfig) -> StoreResult<Arc<dyn Store>> {
    Err(not_compiled_in("sqlite"))
}

#[cfg(not(feature = "redis"))]
fn redis(_: &str, _: &StoreConfig) -> StoreResult<Arc<dyn Store>> {
    Err(not_compiled_in("redis"))
}

#[cfg(not(feature = "postgres"))]
fn postgres(_: &str, _: &StoreConfig) -> StoreResult<Arc<dyn Store>> {
    Err(not_compiled_in("postgres"))
}

#[cfg(not(all(feature = "sqlite", feature = "redis", feature = "postgres")))]
fn not_compiled_in(feature: &str) -> StoreError {
    let reason = format!("this build has no such store; enable the cargo feature `{feature}`");
    StoreError::Incompatible { reason }
}
