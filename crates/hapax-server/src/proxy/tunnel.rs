//! WebSockets and other upgrades: after the 101, bytes are copied both ways unchanged.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use hyper::body::Incoming;
use hyper::header::{CONNECTION, HeaderMap, HeaderValue, UPGRADE};
use hyper::http::request::Parts;
use hyper::upgrade::OnUpgrade;
use hyper::{Method, Response};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Instant;

use super::forward;
use crate::daemon::ConnectionActivity;

pub(crate) struct Upgrade {
    protocol: HeaderValue,
    client: OnUpgrade,
    activity: Option<ConnectionActivity>,
}

impl Upgrade {
    /// The upgrade that a request asks for, where the proxy supports it.
    pub(crate) fn requested(parts: &mut Parts) -> Option<Self> {
        if parts.method != Method::GET {
            return None;
        }
        let protocol = forward::requested_upgrade(&parts.headers)?;
        let client = parts.extensions.remove::<OnUpgrade>()?;
        Some(Self {
            protocol,
            client,
            activity: parts.extensions.get::<ConnectionActivity>().cloned(),
        })
    }

    pub(crate) fn add_headers(&self, headers: &mut HeaderMap) {
        headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
        headers.insert(UPGRADE, self.protocol.clone());
    }

    /// Copies bytes both ways until one side closes, both are silent for `idle`, or the proxy ends.
    pub(crate) fn connect(self, response: &mut Response<Incoming>, idle: Duration) {
        let Self { client, activity, .. } = self;
        let upstream = hyper::upgrade::on(response);
        tokio::spawn(async move {
            // An idle tunnel must not be closed as an idle connection.
            let _in_flight = activity.map(|activity| activity.begin_request());
            let Ok((client, upstream)) = tokio::try_join!(client, upstream) else { return };
            let last_read = LastRead::now();
            let mut client = TrackedIo { io: TokioIo::new(client), last_read: last_read.clone() };
            let mut upstream =
                TrackedIo { io: TokioIo::new(upstream), last_read: last_read.clone() };
            tokio::select! {
                _ = tokio::io::copy_bidirectional(&mut client, &mut upstream) => {}
                () = last_read.idle_for(idle) => tracing::debug!("an idle tunnel is closed"),
            }
        });
    }
}

/// When either side of a tunnel was last heard, in milliseconds since its start.
#[derive(Clone)]
struct LastRead {
    start: Instant,
    millis: Arc<AtomicU64>,
}

impl LastRead {
    fn now() -> Self {
        Self { start: Instant::now(), millis: Arc::default() }
    }

    fn note(&self) {
        let elapsed = u64::try_from(self.start.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.millis.store(elapsed, Ordering::Relaxed);
    }

    /// Completes when nothing was read for this long.
    async fn idle_for(&self, idle: Duration) {
        loop {
            let last = Duration::from_millis(self.millis.load(Ordering::Relaxed));
            let deadline = self.start + last + idle;
            if Instant::now() >= deadline {
                return;
            }
            tokio::time::sleep_until(deadline).await;
        }
    }
}

/// One side of a tunnel, which notes when bytes come from it.
struct TrackedIo<S> {
    io: S,
    last_read: LastRead,
}

impl<S: AsyncRead + Unpin> AsyncRead for TrackedIo<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let polled = Pin::new(&mut self.io).poll_read(cx, buf);
        if buf.filled().len() > before {
            self.last_read.note();
        }
        polled
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for TrackedIo<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}
