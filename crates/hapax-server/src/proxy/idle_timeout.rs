//! Timeouts for bodies whose sender stops sending.

use std::error::Error;
use std::fmt;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use hyper::body::{Body, Frame, SizeHint};
use tokio::time::{Instant, Sleep};

use super::BoxError;
use super::client_fault::ClientFault;
use super::forward::{self, IdentityHeaders};

/// The reason of a body's error whose sender sent nothing for longer than the timeout.
#[derive(Debug)]
struct BodyIdle;

impl fmt::Display for BodyIdle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the sender sent nothing for too long")
    }
}

impl Error for BodyIdle {}

impl BodyIdle {
    /// The error, of the kind by which the layer recognises a timeout.
    fn error() -> io::Error {
        io::Error::new(io::ErrorKind::TimedOut, Self)
    }
}

/// Whether a body failed because its sender sent nothing for longer than the timeout.
pub(crate) fn is_idle(error: &(dyn Error + 'static)) -> bool {
    let reason = error.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
    reason.is_some_and(|reason| reason.is::<BodyIdle>())
}

/// A body that fails when its sender sends nothing for too long. Only the time counts in which the
/// body is polled: a slow reader is not the sender's fault.
pub(crate) struct IdleTimeoutBody<B> {
    body: B,
    timeout: Option<Duration>,
    timer: Option<Pin<Box<Sleep>>>,
    waiting: bool,
}

impl<B> IdleTimeoutBody<B> {
    /// Without a timeout the sender may be idle for ever.
    pub(crate) fn new(body: B, timeout: Option<Duration>) -> Self {
        Self { body, timeout, timer: None, waiting: false }
    }

    fn is_timed_out(&mut self, cx: &mut Context<'_>) -> bool {
        let Some(timeout) = self.timeout else { return false };
        let timer = self.timer.get_or_insert_with(|| Box::pin(tokio::time::sleep(timeout)));
        if !self.waiting {
            self.waiting = true;
            timer.as_mut().reset(Instant::now() + timeout);
        }
        timer.as_mut().poll(cx).is_ready()
    }
}

impl<B> Body for IdleTimeoutBody<B>
where
    B: Body + Unpin,
    B::Error: Into<BoxError>,
{
    type Data = B::Data;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, BoxError>>> {
        match Pin::new(&mut self.body).poll_frame(cx) {
            Poll::Ready(frame) => {
                self.waiting = false;
                Poll::Ready(frame.map(|frame| frame.map_err(Into::into)))
            }
            Poll::Pending if self.is_timed_out(cx) => {
                Poll::Ready(Some(Err(BodyIdle::error().into())))
            }
            Poll::Pending => Poll::Pending,
        }
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// The shortest time between two looks of a timer at its upload, so that a timeout of zero does not spin while the
/// client is idle.
const SHORTEST_SLEEP: Duration = Duration::from_millis(1);

/// The side that an upload waits for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum UploadState {
    WaitsForClient,
    WaitsForUpstream,
    BrokenOff(ClientFault),
}

struct Upload {
    state: UploadState,
    /// Whether nothing more will be read of the request.
    ended: bool,
    /// When the upload was last polled, or ended.
    since: Instant,
}

impl Upload {
    /// How long the upstream is idle; `None` while the client is.
    fn upstream_idle(&self) -> Option<Duration> {
        let waits_for_upstream = self.ended || self.state == UploadState::WaitsForUpstream;
        waits_for_upstream.then(|| self.since.elapsed())
    }
}

/// An upload, shared by its body and its timer. Progress is frequent and does not wake the timer: when the timer fires,
/// it looks at the upload, and sleeps again for what is left.
#[derive(Clone)]
struct SharedUpload(Arc<Mutex<Upload>>);

impl SharedUpload {
    fn lock(&self) -> MutexGuard<'_, Upload> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A request body that reports to an [`UpstreamIdleTimer`] which side the upload waits for, and drops
/// trailers that would forge headers.
pub(crate) struct UploadProgress<B> {
    body: B,
    identity: Arc<IdentityHeaders>,
    upload: SharedUpload,
}

/// Completes when the upstream neither reads the request nor responds.
pub(crate) struct UpstreamIdleTimer(SharedUpload);

impl<B> UploadProgress<B> {
    pub(crate) fn new(body: B, identity: Arc<IdentityHeaders>) -> (Self, UpstreamIdleTimer) {
        let (state, ended) = (UploadState::WaitsForUpstream, false);
        let upload = Upload { state, ended, since: Instant::now() };
        let upload = SharedUpload(Arc::new(Mutex::new(upload)));
        (Self { body, identity, upload: upload.clone() }, UpstreamIdleTimer(upload))
    }
}

impl<B> Drop for UploadProgress<B> {
    fn drop(&mut self) {
        let mut upload = self.upload.lock();
        (upload.ended, upload.since) = (true, Instant::now());
    }
}

impl UpstreamIdleTimer {
    /// Completes when the upstream was idle for `timeout`. Time in which the client does not send is
    /// not counted: the client has a timeout of its own.
    pub(crate) async fn idle_for(&self, timeout: Duration) {
        loop {
            let idle = self.0.lock().upstream_idle();
            let left = timeout.saturating_sub(idle.unwrap_or_default());
            if left.is_zero() && idle.is_some() {
                return;
            }
            tokio::time::sleep(left.max(SHORTEST_SLEEP)).await;
        }
    }

    /// The client's fault that ended the upload. An HTTP/2 client tells no more of it than that the
    /// stream was reset, so errors of requests do not show it.
    pub(crate) fn client_fault(&self) -> Option<ClientFault> {
        match self.0.lock().state {
            UploadState::BrokenOff(fault) => Some(fault),
            UploadState::WaitsForClient | UploadState::WaitsForUpstream => None,
        }
    }
}

impl<B: Body<Error = BoxError> + Unpin> Body for UploadProgress<B> {
    type Data = B::Data;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, BoxError>>> {
        let polled = Pin::new(&mut self.body).poll_frame(cx);
        let state = match &polled {
            Poll::Pending => UploadState::WaitsForClient,
            Poll::Ready(Some(Err(error))) => UploadState::BrokenOff(ClientFault::of(&**error)),
            Poll::Ready(_) => UploadState::WaitsForUpstream,
        };
        *self.upload.lock() = Upload { state, ended: false, since: Instant::now() };
        polled.map_ok(|mut frame| {
            if let Some(trailers) = frame.trailers_mut() {
                forward::strip_trailers(trailers, &self.identity);
            }
            frame
        })
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use http_body_util::{BodyExt, Channel};

    const TIMEOUT: Duration = Duration::from_millis(20);

    fn progress<B>(body: B) -> (UploadProgress<B>, UpstreamIdleTimer) {
        UploadProgress::new(body, Arc::default())
    }

    #[tokio::test]
    async fn idle_timeout_body_fails_when_sender_stops() {
        let (mut sender, body) = Channel::<Bytes, BoxError>::new(1);
        let mut body = IdleTimeoutBody::new(body, Some(TIMEOUT));
        sender.send_data("x".into()).await.unwrap();
        assert!(body.frame().await.unwrap().is_ok());
        assert!(is_idle(&*body.frame().await.unwrap().unwrap_err()));
    }

    #[tokio::test]
    async fn upstream_idle_timer_ends_when_nothing_is_read() {
        let (_, timer) = progress(Channel::<Bytes, BoxError>::new(1).1);
        timer.idle_for(TIMEOUT).await;
        let (body, timer) = progress(Channel::<Bytes, BoxError>::new(1).1);
        timer.idle_for(TIMEOUT).await;
        drop(body);
    }

    #[tokio::test]
    async fn upstream_idle_timer_ignores_a_slow_client() {
        let (_sender, body) = Channel::<Bytes, BoxError>::new(1);
        let (mut body, timer) = progress(body);
        // The upstream asks for more, and the client has not sent it yet.
        tokio::select! {
            biased;
            _ = body.frame() => unreachable!("nothing was sent"),
            () = timer.idle_for(TIMEOUT) => panic!("the upstream is not idle"),
            () = tokio::time::sleep(TIMEOUT * 5) => {}
        }
    }

    #[tokio::test(start_paused = true)]
    async fn upstream_idle_timer_counts_from_the_last_progress() {
        let (mut sender, body) = Channel::<Bytes, BoxError>::new(1);
        let (mut body, timer) = progress(body);
        let started = Instant::now();
        let upload = async {
            for _ in 0..3 {
                // The upstream reads late, and then waits for a client that takes longer than the timeout.
                tokio::time::sleep(TIMEOUT / 2).await;
                tokio::join!(async { assert!(body.frame().await.unwrap().is_ok()) }, async {
                    tokio::time::sleep(TIMEOUT * 3).await;
                    sender.send_data("x".into()).await.unwrap();
                });
            }
            tokio::time::sleep(TIMEOUT / 2).await;
            drop(body);
            Instant::now()
        };
        let (ended, idle) = tokio::join!(upload, async {
            timer.idle_for(TIMEOUT).await;
            Instant::now()
        });
        assert!(ended - started >= TIMEOUT * 9, "{:?}", ended - started);
        let waited = idle - ended;
        assert!(waited >= TIMEOUT && waited < TIMEOUT + TIMEOUT / 2, "{waited:?}");
    }
}
