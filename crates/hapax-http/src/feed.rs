//! The way of an answer's frames from the task that runs the service to the client's connection.

use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::HeaderMap;
use http_body::{Frame, SizeHint};
use tokio::sync::{Semaphore, mpsc};

use crate::BoxError;

enum Piece {
    Data(Bytes),
    /// The end, said in so many words: a feed that just goes away has cut the answer.
    End(Option<HeaderMap>),
    Cut(BoxError),
}

/// Opens a way on which at most `room` bytes wait for the client.
pub(crate) fn open(room: usize, length: Option<u64>) -> (Feed, Live) {
    let (sender, pieces) = mpsc::unbounded_channel();
    let size = u32::try_from(room.max(1)).unwrap_or(u32::MAX).min(Semaphore::MAX_PERMITS as u32);
    let room = Arc::new(Semaphore::new(size as usize));
    let feed = Feed { sender, room: room.clone(), size };
    (feed, Live { pieces, room, size, length, trailers: None, ended: false })
}

/// What a frame takes of the room: a single one larger than all of it takes all of it.
fn weight(data: &Bytes, size: u32) -> u32 {
    u32::try_from(data.len()).unwrap_or(u32::MAX).min(size)
}

/// The service's end.
pub(crate) struct Feed {
    sender: mpsc::UnboundedSender<Piece>,
    room: Arc<Semaphore>,
    size: u32,
}

impl Feed {
    /// Sends data as soon as there is room for it. Where the client went away it goes nowhere.
    pub(crate) async fn send(&self, data: Bytes) {
        if let Ok(permits) = self.room.acquire_many(weight(&data, self.size)).await {
            permits.forget();
            let _ = self.sender.send(Piece::Data(data));
        }
    }

    /// Completes when the client went away.
    pub(crate) async fn closed(&self) {
        self.sender.closed().await;
    }

    /// Ends the answer.
    pub(crate) fn end(self, trailers: Option<HeaderMap>) {
        let _ = self.sender.send(Piece::End(trailers));
    }

    /// Ends the answer with an error, so that nobody takes it for whole.
    pub(crate) fn cut(self, error: BoxError) {
        let _ = self.sender.send(Piece::Cut(error));
    }
}

/// The client's end.
#[derive(Debug)]
pub(crate) struct Live {
    pieces: mpsc::UnboundedReceiver<Piece>,
    room: Arc<Semaphore>,
    size: u32,
    length: Option<u64>,
    trailers: Option<HeaderMap>,
    ended: bool,
}

impl Live {
    pub(crate) fn poll_frame(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        if !self.ended {
            let piece = ready!(self.pieces.poll_recv(cx));
            if let Some(Piece::Data(data)) = piece {
                self.room.add_permits(weight(&data, self.size) as usize);
                return Poll::Ready(Some(Ok(Frame::data(data))));
            }
            self.ended = true;
            match piece {
                Some(Piece::End(trailers)) => self.trailers = trailers,
                Some(Piece::Cut(error)) => return Poll::Ready(Some(Err(error))),
                _ => return Poll::Ready(Some(Err("the service ended in the middle".into()))),
            }
        }
        Poll::Ready(self.trailers.take().map(|trailers| Ok(Frame::trailers(trailers))))
    }

    pub(crate) fn size_hint(&self) -> SizeHint {
        self.length.map_or_else(SizeHint::default, SizeHint::with_exact)
    }
}

impl Drop for Live {
    /// Whoever waits for room hears that nobody reads any more.
    fn drop(&mut self) {
        self.room.close();
    }
}

impl std::fmt::Debug for Piece {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Piece(…)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::poll_fn;

    async fn next(live: &mut Live) -> Option<Result<Frame<Bytes>, BoxError>> {
        poll_fn(|cx| live.poll_frame(cx)).await
    }

    #[tokio::test]
    async fn a_frame_larger_than_the_room_still_goes_through() {
        let (feed, mut live) = open(10, None);
        feed.send(Bytes::from(vec![0; 100])).await;
        let frame = next(&mut live).await.unwrap().unwrap();
        assert_eq!(frame.data_ref().unwrap().len(), 100);
        feed.send(Bytes::from(vec![0; 100])).await;
    }

    #[tokio::test]
    async fn the_sender_waits_for_room_until_the_client_reads_or_goes_away() {
        let (feed, mut live) = open(10, None);
        feed.send("0123456789".into()).await;
        let mut more = tokio_test_pending(feed.send("x".into())).await;
        next(&mut live).await.unwrap().unwrap();
        more.as_mut().await;
        drop(more);
        feed.send("123456789".into()).await;
        let more = tokio_test_pending(feed.send("x".into())).await;
        drop(live);
        more.await;
        feed.closed().await;
    }

    async fn tokio_test_pending<F: Future<Output = ()>>(future: F) -> std::pin::Pin<Box<F>> {
        let mut future = Box::pin(future);
        let pending = poll_fn(|cx| Poll::Ready(future.as_mut().poll(cx).is_pending())).await;
        assert!(pending);
        future
    }

    #[tokio::test]
    async fn a_feed_that_goes_away_has_cut_the_answer() {
        let (feed, mut live) = open(10, None);
        feed.send("half".into()).await;
        drop(feed);
        assert!(next(&mut live).await.unwrap().is_ok());
        assert!(next(&mut live).await.unwrap().is_err());
        assert!(next(&mut live).await.is_none());
    }

    #[tokio::test]
    async fn an_answer_that_was_ended_ends_with_its_trailers() {
        let (feed, mut live) = open(10, None);
        let mut trailers = HeaderMap::new();
        trailers.insert("grpc-status", 0.into());
        feed.end(Some(trailers.clone()));
        let frame = next(&mut live).await.unwrap().unwrap();
        assert_eq!(frame.into_trailers().unwrap(), trailers);
        assert!(next(&mut live).await.is_none());
    }

    #[test]
    fn no_room_is_too_large_to_be_opened() {
        let _ = open(usize::MAX, None);
    }
}
