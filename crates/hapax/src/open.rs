use std::sync::Arc;
use std::time::Duration;

use hapax_core::memory::MemoryStore;
use hapax_core::{Store, StoreError};

/// How a store is opened.
#[derive(Clone, Debug)]
pub struct StoreConfig {
    /// The longest that one store call may take.
    pub call_limit: Duration,
    /// Names of locks and records that Redis keeps under the very same key, for the tenant
    /// `default`, because programs that know nothing of hapax use them too. `*` stands for any text.
    pub redis_verbatim: Vec<String>,
}

impl Default for StoreConfig {
    fn default() -> Self {
        Self {
            call_limit: Duration::from_secs(2),
            redis_verbatim: vec!["processing:*".into(), "user:*:last_transaction".into()],
        }
    }
}

/// Opens the store that a URL names.
///
/// | URL | store | cargo feature |
/// |---|---|---|
/// | `sqlite:FILE` | an embedded file | `sqlite` (default) |
/// | `memory:` | this process; nothing survives it | |
/// | `redis://…`, `rediss://…`, `redis+sentinel://…`, `redis+cluster://…` | Redis or Valkey | `redis` |
/// | `postgres://…`, `postgresql://…` | PostgreSQL | `postgres` |
///
/// A server that does not answer yet is no error: the store connects when it can. Call it inside a
/// tokio runtime.
///
/// # Errors
/// Where the URL is malformed, or the file cannot be used.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), hapax::StoreError> {
/// use hapax::{StoreConfig, lock::{LockConfig, Locks}};
///
/// let store = hapax::open("memory:", &StoreConfig::default()).await?;
/// let locks = Locks::new(store);
/// let guard = locks.acquire("nightly-report", &LockConfig::default()).await.unwrap();
/// # drop(guard);
/// # Ok(()) }
/// ```
pub async fn open(url: &str, options: &StoreConfig) -> Result<Arc<dyn Store>, StoreError> {
    let (scheme, rest) = url.split_once(':').unwrap_or((url, ""));
    match scheme {
        "memory" => Ok(Arc::new(MemoryStore::default())),
        "sqlite" => sqlite(rest, options),
        "redis" | "rediss" | "redis+sentinel" | "rediss+sentinel" | "redis+cluster"
        | "rediss+cluster" => redis(url, options),
        "postgres" | "postgresql" => postgres(url, options),
        _ => Err(StoreError::Incompatible {
            reason: "a store URL starts with sqlite:, memory:, redis://, rediss://, \
                     redis+sentinel://, redis+cluster:// or postgres://"
                .into(),
        }),
    }
}

#[cfg(feature = "sqlite")]
fn sqlite(path: &str, options: &StoreConfig) -> Result<Arc<dyn Store>, StoreError> {
    // `sqlite:file.db`, `sqlite:/var/file.db` and `sqlite:///var/file.db` are all in use.
    let path = path.strip_prefix("//").unwrap_or(path);
    if path.is_empty() {
        let reason = "sqlite: needs a file, as in sqlite:hapax.db".into();
        return Err(StoreError::Incompatible { reason });
    }
    let config = hapax_sqlite::SqliteConfig::new(path).timeout(options.call_limit);
    Ok(Arc::new(hapax_sqlite::SqliteStore::open(config)?))
}

#[cfg(feature = "redis")]
fn redis(url: &str, options: &StoreConfig) -> Result<Arc<dyn Store>, StoreError> {
    let names = &options.redis_verbatim;
    let verbatim = hapax_redis::VerbatimKeys::default().locks(names).records(names);
    let config = hapax_redis::RedisConfig::new(url)?.timeout(options.call_limit).verbatim(verbatim);
    Ok(Arc::new(hapax_redis::RedisStore::open(config)?))
}

#[cfg(feature = "postgres")]
fn postgres(url: &str, options: &StoreConfig) -> Result<Arc<dyn Store>, StoreError> {
    let config = hapax_postgres::PostgresConfig::new(url).timeout(options.call_limit);
    Ok(Arc::new(hapax_postgres::PostgresStore::open(config)?))
}

#[cfg(not(feature = "sqlite"))]
fn sqlite(_: &str, _: &StoreConfig) -> Result<Arc<dyn Store>, StoreError> {
    Err(left_out("sqlite"))
}

#[cfg(not(feature = "redis"))]
fn redis(_: &str, _: &StoreConfig) -> Result<Arc<dyn Store>, StoreError> {
    Err(left_out("redis"))
}

#[cfg(not(feature = "postgres"))]
fn postgres(_: &str, _: &StoreConfig) -> Result<Arc<dyn Store>, StoreError> {
    Err(left_out("postgres"))
}

#[cfg(not(all(feature = "sqlite", feature = "redis", feature = "postgres")))]
fn left_out(feature: &str) -> StoreError {
    let reason = format!("this build has no such store; enable the cargo feature `{feature}`");
    StoreError::Incompatible { reason }
}
