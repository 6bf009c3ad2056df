use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use async_trait::async_trait;
use hapax_core::log::{Attached, LogEntry, PageRequest};
use hapax_core::{Key, Store, StoreResult};

use hapax_core::wrapped_store::{StoreWrapper, WrappedStore};

/// Counts what [`Log::attach`](hapax_core::Log::attach) reads from another store.
pub type CountingStore = WrappedStore<AttachCounter>;

/// The wrapper inside a [`CountingStore`].
#[derive(Clone)]
pub struct AttachCounter {
    store: Arc<dyn Store>,
    calls: Arc<AtomicU64>,
    bytes: Arc<AtomicU64>,
}

impl From<Arc<dyn Store>> for AttachCounter {
    fn from(store: Arc<dyn Store>) -> Self {
        Self { store, calls: Arc::default(), bytes: Arc::default() }
    }
}

impl AttachCounter {
    /// How often a job was read.
    pub fn attach_calls(&self) -> u64 {
        self.calls.load(Relaxed)
    }

    /// How many bytes of payload were read, of entries and of states.
    pub fn attach_bytes(&self) -> u64 {
        self.bytes.load(Relaxed)
    }
}

#[async_trait]
impl StoreWrapper for AttachCounter {
    fn inner(&self) -> &dyn Store {
        &*self.store
    }

    async fn attach(&self, job: &Key, page: &PageRequest) -> StoreResult<Option<Attached>> {
        let attached = self.store.attach(job, page).await?;
        self.calls.fetch_add(1, Relaxed);
        let read = attached.iter().flat_map(|a| a.entries.iter().chain(&a.head.state));
        let bytes: usize = read.map(|entry: &LogEntry| entry.payload.len()).sum();
        self.bytes.fetch_add(bytes as u64, Relaxed);
        Ok(attached)
    }
}
