//! A store around another store, which changes some of its calls.

use std::future::Future;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use crate::log::{
    Appended, Attached, LogEvent, LogRetention, PageRequest, PartitionTail, SeqSearch, TailPosition,
};
use crate::queue::{
    DeadLetter, DeadLetterAction, DeadQuery, DeadReason, Enqueued, ItemId, ItemOutcome,
    LeaseRequest, LeasedItem, QueueDepth, QueueItem, QueueName, QueuedItem, Resolved,
};
use crate::{
    ClaimPage, ClaimQuery, ClaimRequest, ClaimStep, ClaimView, Claimed, Claims, Deleted, Expect,
    Finding, Key, KeyKind, Log, OpenClaims, Oversight, Put, Queue, Record, Records, Step, Store,
    StoreResult, Swept, Tenant, TenantPage, Timestamp, Token, Watch,
};
use async_trait::async_trait;
use bytes::Bytes;

/// The trait that a call of a store belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StorePart {
    /// Calls of [`Claims`].
    Claims,
    /// Calls of [`Queue`].
    Queue,
    /// All other calls.
    Rest,
}

/// A store around a [`StoreWrapper`], whose own methods it has too.
#[derive(Clone)]
pub struct WrappedStore<W>(pub W);

impl<W: From<Arc<dyn Store>>> WrappedStore<W> {
    /// Wraps a store.
    pub fn new(store: Arc<dyn Store>) -> Self {
        Self(store.into())
    }
}

impl<W> Deref for WrappedStore<W> {
    type Target = W;

    fn deref(&self) -> &W {
        &self.0
    }
}

/// Declares [`StoreWrapper`] with all methods of a store, and implements the traits of a store for
/// [`WrappedStore`] with them.
macro_rules! store_methods {
    ($($trait:ident, $part:ident {
        $(async fn $method:ident($($arg:ident: $type:ty),*) -> $answer:ty;)*
        $(fn $plain:ident($($plain_arg:ident: $plain_type:ty)?) -> $plain_answer:ty;)*
    })*) => {
        /// Changes some calls of another store. Each method passes its call on unless it is
        /// overridden.
        ///
        /// ```
        /// use async_trait::async_trait;
        /// use hapax_core::wrapped_store::{StoreWrapper, WrappedStore};
        /// use hapax_core::{ClaimView, Key, Store, StoreResult, memory::MemoryStore};
        ///
        /// /// Shows every claim as vacant.
        /// struct Blind(MemoryStore);
        ///
        /// #[async_trait]
        /// impl StoreWrapper for Blind {
        ///     fn inner(&self) -> &dyn Store { &self.0 }
        ///     async fn look(&self, _: &Key) -> StoreResult<Option<ClaimView>> { Ok(None) }
        /// }
        /// let store: std::sync::Arc<dyn Store> =
        ///     std::sync::Arc::new(WrappedStore(Blind(MemoryStore::default())));
        /// ```
        #[async_trait]
        pub trait StoreWrapper: Send + Sync + 'static {
            /// The store that calls are passed on to.
            fn inner(&self) -> &dyn Store;

            /// Makes one call of the wrapper. Override it to make the call later, twice or not at
            /// all.
            async fn call<T, F, C>(&self, _part: StorePart, call: C) -> StoreResult<T>
            where
                T: Send,
                F: Future<Output = StoreResult<T>> + Send,
                C: Fn() -> F + Send + Sync,
            {
                call().await
            }

            $($(
                /// Passes the call on.
                async fn $method(&self, $($arg: $type),*) -> StoreResult<$answer> {
                    self.inner().$method($($arg),*).await
                }
            )*
            $(
                /// Passes the call on.
                fn $plain(&self, $($plain_arg: $plain_type)?) -> $plain_answer {
                    self.inner().$plain($($plain_arg)?)
                }
            )*)*
        }

        $(
            #[async_trait]
            impl<W: StoreWrapper> $trait for WrappedStore<W> {
                $(async fn $method(&self, $($arg: $type),*) -> StoreResult<$answer> {
                    let call = || self.0.$method($(Clone::clone(&$arg)),*);
                    self.0.call(StorePart::$part, call).await
                })*
                $(fn $plain(&self, $($plain_arg: $plain_type)?) -> $plain_answer {
                    self.0.$plain($($plain_arg)?)
                })*
            }
        )*
    };
}

store_methods! {
    Claims, Claims {
        async fn claim(key: &Key, ask: &ClaimRequest) -> Claimed;
        async fn step(key: &Key, token: &Token, step: ClaimStep) -> Step;
        async fn look(key: &Key) -> Option<ClaimView>;
        fn watch(key: &Key) -> Watch;
    }
    Records, Rest {
        async fn get(key: &Key) -> Option<Record>;
        async fn put(key: &Key, value: Bytes, expect: &Expect, ttl: Option<Duration>) -> Put;
        async fn delete(key: &Key, expect: &Expect) -> Deleted;
    }
    Log, Rest {
        async fn append(events: &[LogEvent], keep: &LogRetention) -> Vec<Appended>;
        async fn attach(job: &Key, page: &PageRequest) -> Option<Attached>;
        async fn find_seq(job: &Key, seq: u64) -> Option<SeqSearch>;
        async fn tail(from: &[(u16, TailPosition)], at_most: usize) -> Vec<PartitionTail>;
        fn partitions() -> u16;
        fn listen(job: &Key) -> Watch;
    }
    Queue, Queue {
        async fn enqueue(queue: &QueueName, items: &[QueueItem]) -> Vec<Enqueued>;
        async fn lease(queue: &QueueName, take: &LeaseRequest) -> Vec<LeasedItem>;
        async fn renew(queue: &QueueName, token: &Token, lease: Duration) -> u64;
        async fn resolve(
            queue: &QueueName,
            token: &Token,
            outcomes: &[(ItemId, ItemOutcome)]
        ) -> Vec<Resolved>;
        async fn depth(queue: &QueueName, whose: Option<&Tenant>) -> QueueDepth;
        async fn waiting(
            queue: &QueueName,
            whose: Option<&Tenant>,
            at_most: u32
        ) -> Vec<QueuedItem>;
        async fn dead(
            queue: &QueueName,
            whose: Option<&Tenant>,
            query: &DeadQuery
        ) -> Vec<DeadLetter>;
        async fn dead_reasons(
            queue: &QueueName,
            whose: Option<&Tenant>,
            at_most: u32
        ) -> Vec<DeadReason>;
        async fn dead_item(
            queue: &QueueName,
            whose: Option<&Tenant>,
            id: ItemId
        ) -> Option<QueueItem>;
        async fn queues() -> Vec<QueueName>;
        async fn resolve_dead(
            queue: &QueueName,
            whose: Option<&Tenant>,
            id: ItemId,
            action: DeadLetterAction
        ) -> bool;
        fn arrivals(queue: &QueueName) -> Watch;
    }
    Oversight, Rest {
        async fn list(query: &ClaimQuery) -> ClaimPage;
        async fn tenants(after: Option<&str>, at_most: u32) -> TenantPage;
        async fn count_open(whose: Option<&Tenant>, kind: KeyKind) -> Option<OpenClaims>;
        async fn count_claims(tenant: &Tenant, at_most: u64) -> Option<u64>;
    }
    Store, Rest {
        async fn ping() -> ();
        async fn server_time() -> Option<Timestamp>;
        async fn examine() -> Vec<Finding>;
        async fn sweep(at_most: u32) -> Swept;
        fn name() -> &'static str;
    }
}
