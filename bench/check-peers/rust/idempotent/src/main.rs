//! The routes of `hapax check` behind the layer of the crate `idempotent`, as its README has it: keys belong to the
//! caller in `Authorization`. `STORE` is `memory` or the address of a Redis server.

use std::env;
use std::error::Error;

use axum::Router;
use idempotent::memory::MemoryStore;
use idempotent::middleware::IdempotencyLayer;
use idempotent::valkey::ValkeyStore;

macro_rules! protected {
    ($store:expr) => {
        example_check_target::routes().layer(IdempotencyLayer::new($store).scope(|parts| {
            let caller = parts.headers.get("authorization");
            Some(caller.map_or("anonymous", |caller| caller.to_str().unwrap_or("?")).to_owned())
        }))
    };
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let app: Router = match env::var("STORE")?.as_str() {
        "memory" => protected!(MemoryStore::builder().try_build()?),
        url => protected!(ValkeyStore::with_url(url).prefix("peer-idempotent").try_build().await?),
    };
    let listener = tokio::net::TcpListener::bind(env::var("LISTEN")?).await?;
    Ok(axum::serve(listener, app).await?)
}
