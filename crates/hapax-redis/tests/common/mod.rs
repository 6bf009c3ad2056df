//! What the tests share.
#![allow(dead_code, reason = "each test file uses a part of it")]

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use hapax_conformance::Subject;
use hapax_core::{Ask, Claimed, Claims, Key, Store, StoreError, Tenant, Ticket};
use hapax_redis::{RedisConfig, RedisStore};

/// Longer than any test.
pub(crate) const LONG: Duration = Duration::from_secs(3600);

pub(crate) fn config(url: &str) -> RedisConfig {
    RedisConfig::new(url).unwrap()
}

pub(crate) fn store(url: &str) -> RedisStore {
    RedisStore::open(config(url)).unwrap()
}

/// A busy machine must not fail a law: the limit is not what is tested.
pub(crate) fn patient(url: &str) -> RedisStore {
    RedisStore::open(config(url).limit(Duration::from_secs(20))).unwrap()
}

/// The servers behind one URL, as the conformance suite sees them.
pub(crate) struct Servers(pub(crate) String);

#[async_trait]
impl Subject for Servers {
    async fn open(&self) -> Arc<dyn Store> {
        Arc::new(patient(&self.0))
    }
}

pub(crate) async fn check(url: String) {
    hapax_conformance::check(|| async { Arc::new(Servers(url.clone())) as Arc<dyn Subject> }).await;
}

pub(crate) fn lock(name: &str) -> Key {
    Key::lock(&Tenant::default(), name).unwrap()
}

pub(crate) fn record(name: &str) -> Key {
    Key::record(&Tenant::default(), name).unwrap()
}

pub(crate) async fn granted(store: &RedisStore, key: &Key, ask: &Ask) -> Ticket {
    match store.claim(key, ask).await.unwrap() {
        Claimed::Granted { ticket, .. } => ticket,
        other => panic!("expected a grant, got {other:?}"),
    }
}

/// Calls until it works; for after a fault, when a store may still be reconnecting.
pub(crate) async fn until_it_works<T, F>(mut call: impl FnMut() -> F) -> T
where
    F: Future<Output = Result<T, StoreError>>,
{
    let patience = tokio::time::Instant::now() + Duration::from_secs(60);
    loop {
        match call().await {
            Ok(value) => return value,
            Err(error) if tokio::time::Instant::now() > patience => panic!("still: {error}"),
            Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
        }
    }
}
