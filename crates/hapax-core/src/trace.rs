//! The trace of the current task, which enqueued items inherit without an explicit argument.
//!
//! `hapax-http` reads the trace from a request's `traceparent` header, `hapax-relay` from a
//! message's, and [`QueueItem::new`](crate::queue::QueueItem::new) writes it to the item's headers.
//! A spawned task starts without a trace: pass it [`current`] with [`within`].

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use pin_project_lite::pin_project;
use tokio::task::futures::TaskLocalFuture;

/// The name of the header.
pub const TRACEPARENT: &str = "traceparent";

/// The length of a `traceparent`: version, trace id, parent id and flags, joined by `-`.
const LENGTH: usize = 2 + 1 + 32 + 1 + 16 + 1 + 2;

tokio::task_local! {
    static CURRENT: Traceparent;
}

/// A position in a trace, in the format of W3C Trace Context.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Traceparent(Arc<str>);

impl Traceparent {
    /// Parses a `traceparent`. An invalid one is `None`, because Trace Context requires that it is
    /// ignored.
    ///
    /// ```
    /// use hapax_core::trace::Traceparent;
    /// assert!(Traceparent::parse("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01").is_some());
    /// assert!(Traceparent::parse("00-00000000000000000000000000000000-00f067aa0ba902b7-01").is_none());
    /// ```
    pub fn parse(text: &str) -> Option<Self> {
        if text.len() != LENGTH {
            return None;
        }
        let parts: Vec<&str> = text.split('-').collect();
        let [version, trace, parent, flags] = parts[..] else { return None };
        let lengths = [version, trace, parent, flags].map(str::len) == [2, 32, 16, 2];
        let hex = |part: &&str| part.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
        let zero = |part: &str| part.bytes().all(|b| b == b'0');
        let valid = lengths && parts.iter().all(hex) && version != "ff";
        (valid && !zero(trace) && !zero(parent)).then(|| Self(text.into()))
    }

    /// The header value.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// The trace of the current task, if any.
pub fn current() -> Option<Traceparent> {
    CURRENT.try_with(Clone::clone).ok()
}

/// Runs the work in this trace; with `None`, in the trace of the caller, at no cost.
///
/// ```
/// use hapax_core::{Tenant, queue::QueueItem, trace::{self, Traceparent}};
/// # #[tokio::main(flavor = "current_thread")] async fn main() {
/// let text = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
/// let order = async { QueueItem::new(&Tenant::default(), "orders", "{}") };
/// let item = trace::within(Traceparent::parse(text), order).await;
/// assert_eq!(item.headers["traceparent"], text);
/// # }
/// ```
pub fn within<F: Future>(trace: Option<Traceparent>, work: F) -> InTrace<F> {
    match trace {
        Some(trace) => InTrace { work: Work::Traced { work: CURRENT.scope(trace, work) } },
        None => InTrace { work: Work::Untraced { work } },
    }
}

/// Like [`within`], for a function that does part of the work before it returns the future.
pub fn call_within<F: Future>(trace: Option<Traceparent>, start: impl FnOnce() -> F) -> InTrace<F> {
    let work = match &trace {
        Some(trace) => CURRENT.sync_scope(trace.clone(), start),
        None => start(),
    };
    within(trace, work)
}

pin_project! {
    /// The future returned by [`within`] and [`call_within`].
    pub struct InTrace<F> {
        #[pin]
        work: Work<F>,
    }
}

pin_project! {
    #[project = WorkProjection]
    enum Work<F> {
        Traced { #[pin] work: TaskLocalFuture<Traceparent, F> },
        Untraced { #[pin] work: F },
    }
}

impl<F: Future> Future for InTrace<F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        match self.project().work.project() {
            WorkProjection::Traced { work } => work.poll(cx),
            WorkProjection::Untraced { work } => work.poll(cx),
        }
    }
}

impl<F> fmt::Debug for InTrace<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("InTrace").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Tenant;
    use crate::queue::QueueItem;

    const OURS: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    #[test]
    fn traceparent_follows_trace_context() {
        assert_eq!(Traceparent::parse(OURS).unwrap().as_str(), OURS);
        let wrong = [
            "",
            "00-1-2-01",
            "ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
            "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e473-600f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-0g",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7\r\n1",
        ];
        for text in wrong {
            assert_eq!(Traceparent::parse(text), None, "{text:?}");
        }
    }

    #[tokio::test]
    async fn trace_of_an_item_is_the_innermost_one() {
        let item = || QueueItem::new(&Tenant::default(), "t", "{}");
        let other = Traceparent::parse(&OURS.replace('4', "5"));
        within(Traceparent::parse(OURS), async {
            assert_eq!(item().headers[TRACEPARENT], OURS);
            within(None, async { assert_eq!(item().headers[TRACEPARENT], OURS) }).await;
            within(other.clone(), async { assert_eq!(current(), other) }).await;
            assert_eq!(item().header(TRACEPARENT, "mine").headers[TRACEPARENT], "mine");
        })
        .await;
        assert!(current().is_none() && item().headers.is_empty());
    }
}
