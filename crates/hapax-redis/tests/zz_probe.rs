mod common;
use async_trait::async_trait;
use bytes::Bytes;
use common::patient;
use hapax_conformance::Subject;
use hapax_core::*;
use hapax_redis::RedisStore;
use std::sync::Arc;
use std::time::{Duration, Instant};
struct Rec(RedisStore);
#[async_trait]
impl Claims for Rec {
    async fn claim(&self, key: &Key, ask: &Ask) -> Result<Claimed, StoreError> { self.0.claim(key, ask).await }
    async fn extend(&self, key: &Key, token: &Token, lease: Duration) -> Result<Step, StoreError> { self.0.extend(key, token, lease).await }
    async fn settle(&self, key: &Key, token: &Token, value: Bytes) -> Result<Step, StoreError> { self.0.settle(key, token, value).await }
    async fn give_back(&self, key: &Key, token: &Token, how: GiveBack) -> Result<Step, StoreError> { self.0.give_back(key, token, how).await }
    async fn look(&self, key: &Key) -> Result<Option<View>, StoreError> { self.0.look(key).await }
    fn watch(&self, key: &Key) -> Watch { self.0.watch(key) }
}
#[async_trait]
impl Records for Rec {
    async fn get(&self, key: &Key) -> Result<Option<Record>, StoreError> {
        let r = self.0.get(key).await;
        if key.name() == "short" { eprintln!("PROBE get {:?} -> {:?}", key.tenant(), r.as_ref().map(|r| r.as_ref().map(|r| r.expires_in))); }
        r
    }
    async fn put(&self, key: &Key, value: Bytes, expect: &Expect, ttl: Option<Duration>) -> Result<Put, StoreError> {
        let t = Instant::now();
        let r = self.0.put(key, value, expect, ttl).await;
        if key.name() == "short" { eprintln!("PROBE put {:?} ttl {ttl:?} took {:?} -> {:?}", key.tenant(), t.elapsed(), r); }
        r
    }
    async fn delete(&self, key: &Key, expect: &Expect) -> Result<Deleted, StoreError> { self.0.delete(key, expect).await }
}
#[async_trait]
impl Store for Rec {
    fn name(&self) -> &'static str { "redis" }
    async fn ping(&self) -> Result<(), StoreError> { self.0.ping().await }
    async fn examine(&self) -> Result<Vec<Finding>, StoreError> { self.0.examine().await }
    async fn sweep(&self, n: u32) -> Result<u64, StoreError> { self.0.sweep(n).await }
}
struct S(String);
#[async_trait]
impl Subject for S { async fn open(&self) -> Arc<dyn Store> { Arc::new(Rec(patient(&self.0))) } }
#[tokio::test(flavor = "multi_thread")]
async fn probe() {
    for _ in 0..6 {
        let redis = hapax_testkit::Redis::start();
        let url = redis.url();
        let run = tokio::spawn(async move { hapax_conformance::check(|| async { Arc::new(S(url.clone())) as Arc<dyn Subject> }).await });
        eprintln!("PROBE ---- {}", if run.await.is_ok() { "ok" } else { "BROKEN" });
    }
}
