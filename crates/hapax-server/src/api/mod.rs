//! The HTTP API: the features under `/v1`, the pages, health and metrics. `hapax serve` serves it; the
//! command line and the admin listeners use it within their own process.

mod app;
mod local;
mod pages;
mod request;
mod response;
mod router;
pub(crate) mod sse;
mod v1;

pub(crate) use app::AppState;
pub(crate) use local::{LocalApi, router_for_store};
pub(crate) use request::auth::AccessPolicy;
pub(crate) use router::router;
pub(crate) use v1::operator::activity::overview::{Attention, ListedNode, Overview};
pub(crate) use v1::operator::activity::suppressed::{ListedDuplicate, SuppressedList};
pub(crate) use v1::operator::{
    AuditPage, AuditedAction, CommandList, ListedLock, LockList, SweepResult,
};
pub(crate) use v1::queues::{
    DeadLetterBody, DeadLetters, DeadReasonBody, DeadReasons, ListedQueue, QueueDepthBody,
    QueueList,
};
pub(crate) use v1::tasks::{TaskBody, TaskListBody};
