use std::sync::Arc;
use std::time::Duration;

use hapax_core::{ClaimRequest, Claimed, Key, Operation, Store, Tenant, Ticket, Token, Watch};

use crate::StoreUnderTest;

/// Longer than any test.
pub(crate) const LONG: Duration = Duration::from_secs(3600);
/// Short enough to wait for on a real clock.
pub(crate) const SHORT: Duration = Duration::from_millis(150);

/// The environment of a law: a store, its clock, and a tenant that no other law uses.
#[derive(Clone)]
pub(crate) struct LawContext {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) tenant: Tenant,
    pub(crate) subject: Arc<dyn StoreUnderTest>,
}

impl LawContext {
    pub(crate) async fn new(subject: Arc<dyn StoreUnderTest>) -> Self {
        let tenant = Tenant::new(&format!("t{}", Token::random().as_str())).unwrap();
        Self { store: subject.open().await, tenant, subject }
    }

    /// Opens another node on the same data.
    pub(crate) async fn reopened(&self) -> Self {
        Self { store: self.subject.open().await, ..self.clone() }
    }

    /// Advances the clock beyond `time`, with a margin for clocks of millisecond steps.
    pub(crate) async fn outlive(&self, time: Duration) {
        self.subject.advance(time + Duration::from_millis(20)).await;
    }

    /// Sweeps until nothing is left. On a private store exactly `expired` rows have to go.
    pub(crate) async fn sweep(&self, expired: u64) {
        let mut count = 0;
        loop {
            let swept = self.store.sweep(10_000).await.expect("the store answers");
            count += swept.count;
            if !swept.more {
                break;
            }
        }
        if self.subject.is_private() {
            assert_eq!(count, expired, "rows that were swept");
        }
    }

    /// A tenant whose name begins with that of this law's tenant.
    pub(crate) fn other_tenant(&self) -> Tenant {
        Tenant::new(&format!("{}x", self.tenant.as_str())).unwrap()
    }

    pub(crate) fn command(&self, name: &str) -> Key {
        Key::command(&self.tenant, Operation("law"), name).unwrap()
    }

    pub(crate) fn record(&self, name: &str) -> Key {
        Key::record(&self.tenant, name).unwrap()
    }

    pub(crate) fn job(&self, name: &str) -> Key {
        Key::job(&self.tenant, "law", name).unwrap()
    }

    pub(crate) fn is_mine(&self, key: &Key) -> bool {
        *key.tenant() == self.tenant
    }

    pub(crate) async fn claim(&self, key: &Key, ask: &ClaimRequest) -> Claimed {
        self.store.claim(key, ask).await.expect("the store answers")
    }

    /// Claims a key that must be free.
    pub(crate) async fn granted(&self, key: &Key, ask: &ClaimRequest) -> Ticket {
        match self.claim(key, ask).await {
            Claimed::Granted { ticket, .. } => ticket,
            other => panic!("expected a grant, got {other:?}"),
        }
    }
}

/// Runs tasks at the same time, and returns their results in order.
pub(crate) async fn concurrently<T: Send + 'static>(
    tasks: impl Iterator<Item: Future<Output = T> + Send + 'static>,
) -> Vec<T> {
    let tasks: Vec<_> = tasks.map(tokio::spawn).collect();
    let mut results = Vec::new();
    for task in tasks {
        results.push(task.await.expect("the task ends without a panic"));
    }
    results
}

/// Runs `action` and expects that it wakes the watch.
pub(crate) async fn expect_woken(mut watch: Watch, action: impl Future<Output = ()>) {
    // A subscription over the network needs a moment. An earlier message would be missed, for which
    // features compensate by polling.
    tokio::time::sleep(Duration::from_millis(300)).await;
    action.await;
    // Without a wake-up `changed` would return only after `LONG`.
    let woken = tokio::time::timeout(Duration::from_secs(60), watch.changed(LONG)).await;
    assert!(woken.is_ok(), "the watch was not woken");
}
