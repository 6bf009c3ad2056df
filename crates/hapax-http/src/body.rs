//! Bodies of requests and responses on both sides of the layer.

use std::convert::Infallible;
use std::error::Error as StdError;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http::HeaderMap;
use http_body::{Body as HttpBody, Frame, SizeHint};
use http_body_util::{BodyExt, LengthLimitError};
use pin_project_lite::pin_project;
use tokio::sync::{Semaphore, mpsc};
use tokio::time::{Instant, timeout_at};

use crate::limits::ClientPresence;
use crate::request::IDEMPOTENCY_KEY;
use crate::service::{HAPAX_ATTEMPT, HAPAX_FENCE};
use crate::{IdempotencyConfig, Problem, ProblemKind, ReservedBuffer, ReservedMemory};

/// Any error of a body.
pub type BoxError = Box<dyn StdError + Send + Sync>;

/// A body that is completely in memory: its bytes, and its trailers where it has some.
#[derive(Clone, Debug, Default)]
pub struct FullBody {
    data: Bytes,
    trailers: Option<HeaderMap>,
    /// Given back when the request that this body belongs to has been sent on.
    _memory: Option<Arc<ReservedMemory>>,
}

impl FullBody {
    pub(crate) fn new(data: Bytes, trailers: Option<HeaderMap>) -> Self {
        Self { data, trailers, _memory: None }
    }

    /// Reads a keyed request's body, up to the configured size, time and memory.
    pub(crate) async fn read<B>(body: B, config: &IdempotencyConfig) -> Result<Self, Problem>
    where
        B: HttpBody<Data = Bytes>,
        B::Error: Into<BoxError>,
    {
        let max = config.max_body;
        let too_large = || {
            Problem::new(
                ProblemKind::PayloadTooLarge,
                format!("a request with an Idempotency-Key may have at most {max} bytes"),
            )
        };
        if body.size_hint().lower() > max as u64 {
            return Err(too_large());
        }
        // A body whose length is known needs no room to grow.
        let most = body.size_hint().upper().and_then(|length| usize::try_from(length).ok());
        let mut read =
            ReservedBuffer::new(&config.limits.memory, most.map_or(max, |most| most.min(max)));
        let (mut body, since) = (pin!(body), Instant::now());
        let mut trailers = None;
        loop {
            // Silence is not enough of a limit: a byte now and then would hold the memory for ever.
            let arriving = Duration::from_secs((read.len() / config.body_rate.max(1)) as u64);
            let deadline = since + config.body_timeout + arriving;
            let frame = match timeout_at(deadline, body.frame()).await {
                Err(_) => return Err(too_slow()),
                Ok(Some(Err(error))) => {
                    let error: BoxError = error.into();
                    return Err(body_error(&*error, too_large));
                }
                Ok(Some(Ok(frame))) => frame,
                Ok(None) => break,
            };
            match frame.into_data() {
                Ok(data) if data.len() > max - read.len() => return Err(too_large()),
                Ok(data) => read.append(&data)?,
                Err(frame) => trailers = frame.into_trailers().ok().and_then(strip_forged_trailers),
            }
        }
        let (data, memory) = read.into_parts();
        Ok(Self { data, trailers, _memory: Some(Arc::new(memory)) })
    }

    /// The bytes that were not sent yet.
    pub fn bytes(&self) -> &Bytes {
        &self.data
    }

    pub(crate) fn trailers(&self) -> Option<&HeaderMap> {
        self.trailers.as_ref()
    }

    fn next(&mut self) -> Option<Frame<Bytes>> {
        if !self.data.is_empty() {
            return Some(Frame::data(std::mem::take(&mut self.data)));
        }
        self.trailers.take().map(Frame::trailers)
    }
}

fn too_slow() -> Problem {
    let text = "the request body did not arrive in time; nothing was run";
    Problem::new(ProblemKind::RequestTimeout, text)
}

/// The exceeded limit may also be that of a body limit outside the layer.
fn body_error(error: &(dyn StdError + 'static), too_large: impl Fn() -> Problem) -> Problem {
    if is_length_limit(error) {
        return too_large();
    }
    if is_timeout(error) {
        return too_slow();
    }
    Problem::invalid("the request body ended early; nothing was run").retryable()
}

/// Removes the trailers that a service could take for the layer's own headers, or for another key.
fn strip_forged_trailers(mut trailers: HeaderMap) -> Option<HeaderMap> {
    for name in [HAPAX_ATTEMPT, HAPAX_FENCE, IDEMPOTENCY_KEY] {
        trailers.remove(name);
    }
    (!trailers.is_empty()).then_some(trailers)
}

fn is_length_limit(error: &(dyn StdError + 'static)) -> bool {
    error.is::<LengthLimitError>() || error.source().is_some_and(is_length_limit)
}

/// Whether a server around the layer gave up waiting for the body.
fn is_timeout(error: &(dyn StdError + 'static)) -> bool {
    let kind = error.downcast_ref::<std::io::Error>().map(std::io::Error::kind);
    kind == Some(std::io::ErrorKind::TimedOut) || error.source().is_some_and(is_timeout)
}

impl From<Bytes> for FullBody {
    fn from(data: Bytes) -> Self {
        Self::new(data, None)
    }
}

impl HttpBody for FullBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        _cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        Poll::Ready(self.get_mut().next().map(Ok))
    }

    fn is_end_stream(&self) -> bool {
        self.data.is_empty() && self.trailers.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        let length = self.data.len() as u64;
        if self.trailers.is_none() {
            return SizeHint::with_exact(length);
        }
        // HTTP/1.1 sends trailers only with a body of unknown length.
        let mut hint = SizeHint::new();
        hint.set_lower(length);
        hint
    }
}

/// The body of a request behind the layer: passed through, or read completely because the request
/// has a key.
pub type RequestBody<B> = LayerBody<B>;

/// The body of a response in front of the layer: passed through; complete (a replay, a problem, a
/// response that was ready at once); or streamed while a copy is captured.
pub type ResponseBody<R> = LayerBody<R>;

pin_project! {
    /// A body that the layer passes through, has in memory, or streams.
    #[derive(Debug)]
    pub struct LayerBody<B> {
        #[pin]
        inner: Inner<B>,
    }
}

pin_project! {
    #[project = InnerProjection]
    #[derive(Debug)]
    enum Inner<B> {
        PassedThrough { #[pin] body: B },
        Full { body: FullBody },
        Streamed { body: BodyReceiver },
    }
}

impl<B> LayerBody<B> {
    pub(crate) fn passed_through(body: B) -> Self {
        Self { inner: Inner::PassedThrough { body } }
    }

    pub(crate) fn full(body: FullBody) -> Self {
        Self { inner: Inner::Full { body } }
    }

    pub(crate) fn streamed(body: BodyReceiver) -> Self {
        Self { inner: Inner::Streamed { body } }
    }

    /// Counts the client as present until a streamed body is dropped. Any other body comes from a run
    /// that has ended.
    pub(crate) fn with_presence(mut self, presence: ClientPresence) -> Self {
        if let Inner::Streamed { body } = &mut self.inner {
            body.presence = Some(presence);
        }
        self
    }
}

impl<B> HttpBody for LayerBody<B>
where
    B: HttpBody<Data = Bytes>,
    B::Error: Into<BoxError>,
{
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        match self.project().inner.project() {
            InnerProjection::PassedThrough { body } => body.poll_frame(cx).map_err(Into::into),
            InnerProjection::Full { body } => Poll::Ready(body.next().map(Ok)),
            InnerProjection::Streamed { body } => body.poll_frame(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.inner {
            Inner::PassedThrough { body } => body.is_end_stream(),
            Inner::Full { body } => body.is_end_stream(),
            Inner::Streamed { .. } => false,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.inner {
            Inner::PassedThrough { body } => body.size_hint(),
            Inner::Full { body } => body.size_hint(),
            Inner::Streamed { body } => body.size_hint(),
        }
    }
}

/// A part of a response on its way from the task that runs the service to the client's connection.
enum Item {
    Data(Bytes),
    /// An explicit end: a sender that is dropped without it has cut the response.
    End(Option<HeaderMap>),
    Cut(BoxError),
}

/// Opens a channel in which at most `capacity` bytes wait for the client.
pub(crate) fn open_channel(capacity: usize, length: Option<u64>) -> (BodySender, BodyReceiver) {
    let (sender, items) = mpsc::unbounded_channel();
    let size =
        u32::try_from(capacity.max(1)).unwrap_or(u32::MAX).min(Semaphore::MAX_PERMITS as u32);
    let room = Arc::new(Semaphore::new(size as usize));
    let body_sender = BodySender { sender, room: room.clone(), size };
    let (trailers, ended, presence) = (None, false, None);
    (body_sender, BodyReceiver { items, room, size, length, trailers, ended, presence })
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
    presence: Option<ClientPresence>,
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::poll_fn;

    async fn next(receiver: &mut BodyReceiver) -> Option<Result<Frame<Bytes>, BoxError>> {
        poll_fn(|cx| receiver.poll_frame(cx)).await
    }

    #[tokio::test]
    async fn body_channel_sends_frame_larger_than_capacity() {
        let (sender, mut receiver) = open_channel(10, None);
        sender.send(Bytes::from(vec![0; 100])).await;
        let frame = next(&mut receiver).await.unwrap().unwrap();
        assert_eq!(frame.data_ref().unwrap().len(), 100);
        sender.send(Bytes::from(vec![0; 100])).await;
    }

    #[tokio::test]
    async fn body_sender_waits_until_client_reads_or_disconnects() {
        let (sender, mut receiver) = open_channel(10, None);
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
        let (sender, mut receiver) = open_channel(10, None);
        sender.send("half".into()).await;
        drop(sender);
        assert!(next(&mut receiver).await.unwrap().is_ok());
        assert!(next(&mut receiver).await.unwrap().is_err());
        assert!(next(&mut receiver).await.is_none());
    }

    #[tokio::test]
    async fn body_channel_ends_with_trailers() {
        let (sender, mut receiver) = open_channel(10, None);
        let mut trailers = HeaderMap::new();
        trailers.insert("grpc-status", 0.into());
        sender.end(Some(trailers.clone()));
        let frame = next(&mut receiver).await.unwrap().unwrap();
        assert_eq!(frame.into_trailers().unwrap(), trailers);
        assert!(next(&mut receiver).await.is_none());
    }

    #[test]
    fn body_channel_opens_with_any_capacity() {
        let _ = open_channel(usize::MAX, None);
    }
}
