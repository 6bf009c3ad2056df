//! The calls of an operator: each should cost no more than its page, however many keys there are.

use std::time::{Duration, Instant};

use hapax_core::queue::QueueName;
use hapax_core::{ClaimQuery, ClaimStatus, KeyKind, Store, StoreError};

use super::keys::tenant;

/// Each call is timed this often; the median counts.
const REPEATED: usize = 5;

/// One thing that a console, a dashboard or `hapax doctor` asks for.
#[derive(Clone, Copy, Debug)]
pub(super) enum OperatorCall {
    /// A page of commands.
    FirstPage,
    /// The page after that.
    NextPage,
    /// A page of the commands whose outcome is unknown.
    UnknownPage,
    /// The gauges of commands and locks.
    CountOpen,
    /// The gauges of all queues.
    Depth,
    /// `hapax tenant list`.
    Tenants,
    /// `hapax doctor`.
    Examine,
    /// `/readyz`.
    Ping,
}

impl OperatorCall {
    pub(super) const ALL: [Self; 8] = [
        Self::FirstPage,
        Self::NextPage,
        Self::UnknownPage,
        Self::CountOpen,
        Self::Depth,
        Self::Tenants,
        Self::Examine,
        Self::Ping,
    ];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::FirstPage => "page of 50 commands",
            Self::NextPage => "next page",
            Self::UnknownPage => "page of unknown outcomes",
            Self::CountOpen => "counts of open commands and locks (gauges)",
            Self::Depth => "queues and their depth (gauges)",
            Self::Tenants => "page of 50 tenants",
            Self::Examine => "doctor",
            Self::Ping => "readiness",
        }
    }

    async fn run(self, store: &dyn Store) -> Result<(), StoreError> {
        let page = |status, after| ClaimQuery {
            tenant: tenant(),
            kind: KeyKind::Command,
            status,
            scope: None,
            after,
            max_claims: 50,
        };
        match self {
            Self::FirstPage => store.list(&page(None, None)).await.map(drop),
            Self::NextPage => {
                let first = store.list(&page(None, None)).await?;
                store.list(&page(None, first.next)).await.map(drop)
            }
            Self::UnknownPage => {
                store.list(&page(Some(ClaimStatus::Unknown), None)).await.map(drop)
            }
            Self::CountOpen => {
                store.count_open(None, KeyKind::Command).await?;
                store.count_open(None, KeyKind::Lock).await.map(drop)
            }
            Self::Depth => {
                store.queues().await?;
                store.depth(&QueueName::outbox(), None).await.map(drop)
            }
            Self::Tenants => store.tenants(None, 50).await.map(drop),
            Self::Examine => store.examine().await.map(drop),
            Self::Ping => store.ping().await,
        }
    }

    /// The median time of the call; the error of one that failed.
    pub(super) async fn time(self, store: &dyn Store) -> Result<Duration, StoreError> {
        let mut times = Vec::with_capacity(REPEATED);
        for _ in 0..REPEATED {
            let began = Instant::now();
            self.run(store).await?;
            times.push(began.elapsed());
        }
        times.sort_unstable();
        Ok(times[REPEATED / 2])
    }
}
