//! The routes of `hapax check` behind hapax's own layer. `STORE` is `memory`, the address of a Redis server, or a file.

use std::env;
use std::error::Error;
use std::sync::Arc;

use hapax::memory::MemoryStore;
use hapax::redis::{RedisConfig, RedisStore};
use hapax::sqlite::SqliteStore;
use hapax_http::IdempotencyLayer;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let routes = example_check_target::routes();
    let app = match env::var("STORE")?.as_str() {
        "memory" => routes.layer(IdempotencyLayer::new(Arc::new(MemoryStore::default()))),
        url if url.starts_with("redis:") => {
            let store = RedisStore::open(RedisConfig::new(url)?)?;
            routes.layer(IdempotencyLayer::new(Arc::new(store)))
        }
        file => routes.layer(IdempotencyLayer::new(Arc::new(SqliteStore::open(file)?))),
    };
    let listener = tokio::net::TcpListener::bind(env::var("LISTEN")?).await?;
    Ok(axum::serve(listener, app).await?)
}
