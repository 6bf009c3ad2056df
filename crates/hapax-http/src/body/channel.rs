//! Carries a response's frames from the task that runs the service to the client's connection.

use std::fmt;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::HeaderMap;
use http_body::{Frame, SizeHint};
use tokio::sync::{Semaphore, mpsc};

use crate::BoxError;

enum Item {
    Data(Bytes),
    /// An explicit end: a sender that is dropped without it has cut the response.
    End(Option<HeaderMap>),
    Cut(BoxError),
}

/// Opens a channel in which at most `capacity` bytes wait for the client.
pub(crate) fn open(capacity: usize, length: Option<u64>) -> (BodySender, BodyReceiver) {
    let (sender, items) = mpsc::unbounded_channel();
    let size =
        u32::try_from(capacity.max(1)).unwrap_or(u32::MAX).min(Semaphore::MAX_PERMITS as u32);
    let room = Arc::new(Semaphore::new(size as usize));
    let body_sender = BodySender { sender, room: room.clone(), size };
    (body_sender, BodyReceiver { items, room, size, length, trailers: None, ended: false })
}

/// The permits that a chunk takes. One that is larger than the whole channel takes all of them.
fn permits(data: &Bytes, size: u32) -> u32 {
    u32::try_from(data.len()).unwrap_or(u32::MAX).min(size)
}

pub(crate) struct BodySender {
    sender: mpsc::UnboundedSender<Item>,
    room: Arc<Semaphore>,
    size: u32,
}

impl BodySender {
    /// Sends data as soon as there is room for it; drops it where the client has disconnected.
    pub(crate) async fn send(&self, data: Bytes) {
        if let Ok(permits) = self.room.acquire_many(permits(&data, self.size)).await {
            permits.forget();
            let _ = self.sender.send(Item::Data(data));
        }
    }

    /// Completes when the client has disconnected.
    pub(crate) async fn closed(&self) {
        self.sender.closed().await;
    }

    pub(crate) fn end(self, trailers: Option<HeaderMap>) {
        let _ = self.sender.send(Item::End(trailers));
    }

    /// Ends the response with an error, so that the client does not take it for complete.
    pub(crate) fn cut(self, error: BoxError) {
        let _ = self.sender.send(Item::Cut(error));
    }
}

#[derive(Debug)]
pub(crate) struct BodyReceiver {
    items: mpsc::UnboundedReceiver<Item>,
    room: Arc<Semaphore>,
    size: u32,
    length: Option<u64>,
    trailers: Option<HeaderMap>,
    ended: bool,
}

impl BodyReceiver {
    pub(crate) fn poll_frame(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        if !self.ended {
            let item = ready!(self.items.poll_recv(cx));
            if let Some(Item::Data(data)) = item {
                self.room.add_permits(permits(&data, self.size) as usize);
                return Poll::Ready(Some(Ok(Frame::data(data))));
            }
            self.ended = true;
            match item {
                Some(Item::End(trailers)) => self.trailers = trailers,
                Some(Item::Cut(error)) => return Poll::Ready(Some(Err(error))),
                _ => return Poll::Ready(Some(Err("the service ended early".into()))),
            }
        }
        Poll::Ready(self.trailers.take().map(|trailers| Ok(Frame::trailers(trailers))))
    }

    pub(crate) fn size_hint(&self) -> SizeHint {
        self.length.map_or_else(SizeHint::default, SizeHint::with_exact)
    }
}

impl Drop for BodyReceiver {
    /// Wakes a sender that waits for room: the client has disconnected.
    fn drop(&mut self) {
        self.room.close();
    }
}

impl fmt::Debug for Item {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Item(…)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::poll_fn;

    async fn next(receiver: &mut BodyReceiver) -> Option<Result<Frame<Bytes>, BoxError>> {
        poll_fn(|cx| receiver.poll_frame(cx)).await
    }

    #[tokio::test]
    async fn body_channel_sends_frame_larger_than_capacity() {
        let (sender, mut receiver) = open(10, None);
        sender.send(Bytes::from(vec![0; 100])).await;
        let frame = next(&mut receiver).await.unwrap().unwrap();
        assert_eq!(frame.data_ref().unwrap().len(), 100);
        sender.send(Bytes::from(vec![0; 100])).await;
    }

    #[tokio::test]
    async fn body_sender_waits_until_client_reads_or_disconnects() {
        let (sender, mut receiver) = open(10, None);
        sender.send("0123456789".into()).await;
        let mut more = assert_pending(sender.send("x".into())).await;
        next(&mut receiver).await.unwrap().unwrap();
        more.as_mut().await;
        drop(more);
        sender.send("123456789".into()).await;
        let more = assert_pending(sender.send("x".into())).await;
        drop(receiver);
        more.await;
        sender.closed().await;
    }

    async fn assert_pending<F: Future<Output = ()>>(future: F) -> std::pin::Pin<Box<F>> {
        let mut future = Box::pin(future);
        let pending = poll_fn(|cx| Poll::Ready(future.as_mut().poll(cx).is_pending())).await;
        assert!(pending);
        future
    }

    #[tokio::test]
    async fn body_sender_dropped_without_end_cuts_response() {
        let (sender, mut receiver) = open(10, None);
        sender.send("half".into()).await;
        drop(sender);
        assert!(next(&mut receiver).await.unwrap().is_ok());
        assert!(next(&mut receiver).await.unwrap().is_err());
        assert!(next(&mut receiver).await.is_none());
    }

    #[tokio::test]
    async fn body_channel_ends_with_trailers() {
        let (sender, mut receiver) = open(10, None);
        let mut trailers = HeaderMap::new();
        trailers.insert("grpc-status", 0.into());
        sender.end(Some(trailers.clone()));
        let frame = next(&mut receiver).await.unwrap().unwrap();
        assert_eq!(frame.into_trailers().unwrap(), trailers);
        assert!(next(&mut receiver).await.is_none());
    }

    #[test]
    fn body_channel_opens_with_any_capacity() {
        let _ = open(usize::MAX, None);
    }
}
