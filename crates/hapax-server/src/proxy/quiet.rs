//! Bodies whose sender may not be silent for ever.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use hyper::body::{Body, Frame, SizeHint};
use tokio::sync::watch;
use tokio::time::{Instant, Sleep};

use super::BoxError;

/// The sender was silent for longer than it may be.
#[derive(Debug)]
pub(crate) struct TooQuiet;

impl fmt::Display for TooQuiet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("nothing came for too long")
    }
}

impl std::error::Error for TooQuiet {}

/// A body that fails when its sender is silent for too long. Only the time counts in which somebody
/// waits for it: a slow reader is not the sender's fault.
pub(crate) struct Quiet<B> {
    body: B,
    limit: Option<Duration>,
    silence: Option<Pin<Box<Sleep>>>,
    waiting: bool,
}

impl<B> Quiet<B> {
    /// Without a limit it may be silent for ever.
    pub(crate) fn new(body: B, limit: Option<Duration>) -> Self {
        Self { body, limit, silence: None, waiting: false }
    }

    fn too_quiet(&mut self, cx: &mut Context<'_>) -> bool {
        let Some(limit) = self.limit else { return false };
        let silence = self.silence.get_or_insert_with(|| Box::pin(tokio::time::sleep(limit)));
        if !self.waiting {
            self.waiting = true;
            silence.as_mut().reset(Instant::now() + limit);
        }
        silence.as_mut().poll(cx).is_ready()
    }
}

impl<B> Body for Quiet<B>
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
            Poll::Pending if self.too_quiet(cx) => Poll::Ready(Some(Err(TooQuiet.into()))),
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

/// Who is waited for while a request is being sent.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Turn {
    Client,
    Upstream,
}

/// A request's body that lets its [`Patience`] see how it is being sent.
pub(crate) struct Watched<B> {
    body: B,
    turn: watch::Sender<Turn>,
}

/// Waits for an upstream that takes nothing and says nothing.
pub(crate) struct Patience(watch::Receiver<Turn>);

impl<B> Watched<B> {
    pub(crate) fn new(body: B) -> (Self, Patience) {
        let (turn, patience) = watch::channel(Turn::Upstream);
        (Self { body, turn }, Patience(patience))
    }
}

impl Patience {
    /// Ends when the upstream was silent for `limit`. A long upload is no silence, and a client that
    /// does not send has a limit of its own.
    pub(crate) async fn end(mut self, limit: Duration) {
        loop {
            let turn = *self.0.borrow_and_update();
            let sent = match turn {
                Turn::Client => self.0.changed().await.is_err(),
                Turn::Upstream => match tokio::time::timeout(limit, self.0.changed()).await {
                    Ok(changed) => changed.is_err(),
                    Err(_) => return,
                },
            };
            if sent {
                return tokio::time::sleep(limit).await;
            }
        }
    }
}

impl<B: Body + Unpin> Body for Watched<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        let polled = Pin::new(&mut self.body).poll_frame(cx);
        self.turn.send_replace(if polled.is_pending() { Turn::Client } else { Turn::Upstream });
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

    const LIMIT: Duration = Duration::from_millis(20);

    #[tokio::test]
    async fn a_sender_that_is_silent_for_too_long_has_failed() {
        let (mut sender, body) = Channel::<Bytes, BoxError>::new(1);
        let mut body = Quiet::new(body, Some(LIMIT));
        sender.send_data("x".into()).await.unwrap();
        assert!(body.frame().await.unwrap().is_ok());
        assert!(body.frame().await.unwrap().unwrap_err().is::<TooQuiet>());
    }

    #[tokio::test]
    async fn an_upstream_that_takes_nothing_is_silent() {
        let (_, patience) = Watched::new(Channel::<Bytes, BoxError>::new(1).1);
        patience.end(LIMIT).await;
        let (body, patience) = Watched::new(Channel::<Bytes, BoxError>::new(1).1);
        patience.end(LIMIT).await;
        drop(body);
    }

    #[tokio::test]
    async fn a_long_upload_is_no_silence() {
        let (_sender, body) = Channel::<Bytes, BoxError>::new(1);
        let (mut body, patience) = Watched::new(body);
        // The upstream asks for more, and the client has not sent it yet.
        tokio::select! {
            biased;
            _ = body.frame() => unreachable!("nothing was sent"),
            () = patience.end(LIMIT) => panic!("the upstream is not to blame"),
            () = tokio::time::sleep(LIMIT * 5) => {}
        }
    }
}
