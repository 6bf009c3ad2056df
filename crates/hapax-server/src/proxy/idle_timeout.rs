//! Timeouts for bodies whose sender stops sending.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use hyper::body::{Body, Frame, SizeHint};
use tokio::sync::watch;
use tokio::time::{Instant, Sleep};

use super::BoxError;

/// The error of a body whose sender sent nothing for longer than the timeout.
#[derive(Debug)]
pub(crate) struct BodyIdle;

impl fmt::Display for BodyIdle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the sender sent nothing for too long")
    }
}

impl std::error::Error for BodyIdle {}

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
            Poll::Pending if self.is_timed_out(cx) => Poll::Ready(Some(Err(BodyIdle.into()))),
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

/// The side that an upload waits for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum WaitingFor {
    Client,
    Upstream,
}

/// A request body that reports to an [`UpstreamIdleTimer`] which side the upload waits for.
pub(crate) struct UploadProgress<B> {
    body: B,
    waiting_for: watch::Sender<WaitingFor>,
}

/// Completes when the upstream neither reads the request nor responds.
pub(crate) struct UpstreamIdleTimer(watch::Receiver<WaitingFor>);

impl<B> UploadProgress<B> {
    pub(crate) fn new(body: B) -> (Self, UpstreamIdleTimer) {
        let (waiting_for, timer) = watch::channel(WaitingFor::Upstream);
        (Self { body, waiting_for }, UpstreamIdleTimer(timer))
    }
}

impl UpstreamIdleTimer {
    /// Completes when the upstream was idle for `timeout`. Time in which the client does not send is
    /// not counted: the client has a timeout of its own.
    pub(crate) async fn idle_for(mut self, timeout: Duration) {
        loop {
            let waiting_for = *self.0.borrow_and_update();
            let upload_ended = match waiting_for {
                WaitingFor::Client => self.0.changed().await.is_err(),
                WaitingFor::Upstream => {
                    match tokio::time::timeout(timeout, self.0.changed()).await {
                        Ok(changed) => changed.is_err(),
                        Err(_) => return,
                    }
                }
            };
            if upload_ended {
                return tokio::time::sleep(timeout).await;
            }
        }
    }
}

impl<B: Body + Unpin> Body for UploadProgress<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        let polled = Pin::new(&mut self.body).poll_frame(cx);
        let pending = polled.is_pending();
        let side = if pending { WaitingFor::Client } else { WaitingFor::Upstream };
        self.waiting_for.send_replace(side);
        polled
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

    #[tokio::test]
    async fn idle_timeout_body_fails_when_sender_stops() {
        let (mut sender, body) = Channel::<Bytes, BoxError>::new(1);
        let mut body = IdleTimeoutBody::new(body, Some(TIMEOUT));
        sender.send_data("x".into()).await.unwrap();
        assert!(body.frame().await.unwrap().is_ok());
        assert!(body.frame().await.unwrap().unwrap_err().is::<BodyIdle>());
    }

    #[tokio::test]
    async fn upstream_idle_timer_ends_when_nothing_is_read() {
        let (_, timer) = UploadProgress::new(Channel::<Bytes, BoxError>::new(1).1);
        timer.idle_for(TIMEOUT).await;
        let (body, timer) = UploadProgress::new(Channel::<Bytes, BoxError>::new(1).1);
        timer.idle_for(TIMEOUT).await;
        drop(body);
    }

    #[tokio::test]
    async fn upstream_idle_timer_ignores_a_slow_client() {
        let (_sender, body) = Channel::<Bytes, BoxError>::new(1);
        let (mut body, timer) = UploadProgress::new(body);
        // The upstream asks for more, and the client has not sent it yet.
        tokio::select! {
            biased;
            _ = body.frame() => unreachable!("nothing was sent"),
            () = timer.idle_for(TIMEOUT) => panic!("the upstream is not idle"),
            () = tokio::time::sleep(TIMEOUT * 5) => {}
        }
    }
}
