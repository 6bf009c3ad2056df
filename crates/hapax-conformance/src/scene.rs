use std::sync::Arc;
use std::time::Duration;

use hapax_core::{ClaimRequest, Claimed, Key, Store, Tenant, Ticket, Token};

use crate::Subject;

/// Longer than any test.
pub(crate) const LONG: Duration = Duration::from_secs(3600);
/// Short enough to wait for on a real clock.
pub(crate) const SHORT: Duration = Duration::from_millis(150);

/// What a law acts on: a store, its time, and a tenant of its own, so that laws never meet.
#[derive(Clone)]
pub(crate) struct Scene {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) tenant: Tenant,
    subject: Arc<dyn Subject>,
}

impl Scene {
    pub(crate) async fn new(subject: Arc<dyn Subject>) -> Self {
        let tenant = Tenant::new(&format!("t{}", Token::random().as_str())).unwrap();
        Self { store: subject.open().await, tenant, subject }
    }

    /// Another node on the same data.
    pub(crate) async fn reopened(&self) -> Self {
        Self { store: self.subject.open().await, ..self.clone() }
    }

    /// Lets what lasts `time` come to its end, with a margin for clocks of millisecond steps.
    pub(crate) async fn outlive(&self, time: Duration) {
        self.subject.pass(time + Duration::from_millis(20)).await;
    }

    pub(crate) fn command(&self, name: &str) -> Key {
        Key::command(&self.tenant, "law", name).unwrap()
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

    /// Claims what must be free.
    pub(crate) async fn granted(&self, key: &Key, ask: &ClaimRequest) -> Ticket {
        match self.claim(key, ask).await {
            Claimed::Granted { ticket, .. } => ticket,
            other => panic!("expected a grant, got {other:?}"),
        }
    }
}
