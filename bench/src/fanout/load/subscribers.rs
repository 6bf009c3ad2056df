//! The subscribers: sockets that are only read.

use std::cell::RefCell;
use std::future::poll_fn;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use anyhow::Context as _;
use tokio::io::{AsyncRead, AsyncWriteExt, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use super::deliveries::{DeliveryCounters, SubscriberReader};

/// How many clients connect at the same time: fewer than any server's backlog.
const AT_ONCE: usize = 64;
/// How long a subscription may take to be answered.
const TIMEOUT: Duration = Duration::from_secs(30);
const PIECE: usize = 64 * 1024;

thread_local! {
    /// Clients that are read by the same thread are read one after the other: one buffer is enough.
    static BUFFER: RefCell<Vec<u8>> = RefCell::new(vec![0; PIECE]);
}

/// Clients that read until the group is dropped.
pub(super) struct SubscriberGroup {
    _clients: JoinSet<()>,
}

impl SubscriberGroup {
    /// Connects this many clients; all are subscribed when this returns.
    pub(super) async fn connect(
        address: SocketAddr,
        request: &str,
        clients: usize,
        counters: &Arc<DeliveryCounters>,
    ) -> anyhow::Result<Self> {
        let turns = Arc::new(Semaphore::new(AT_ONCE));
        let mut connecting = JoinSet::new();
        for _ in 0..clients {
            let (turns, request) = (turns.clone(), request.to_owned());
            connecting.spawn(async move {
                let _turn = turns.acquire_owned().await;
                tokio::time::timeout(TIMEOUT, subscribe(address, &request))
                    .await
                    .unwrap_or_else(|_| anyhow::bail!("a subscription is not answered"))
            });
        }
        let mut subscribers = JoinSet::new();
        while let Some(connected) = connecting.join_next().await {
            let (stream, rest) = connected??;
            subscribers.spawn(read(stream, rest, counters.clone()));
        }
        Ok(Self { _clients: subscribers })
    }
}

/// The connection after the response's head, and the bytes that came with the head.
async fn subscribe(address: SocketAddr, request: &str) -> anyhow::Result<(TcpStream, Vec<u8>)> {
    let mut stream = TcpStream::connect(address).await.context("a client cannot connect")?;
    stream.write_all(request.as_bytes()).await?;
    let mut head = Vec::new();
    loop {
        let piece = poll_fn(|cx| poll_piece(&mut stream, cx, |piece| head.extend(piece)));
        anyhow::ensure!(piece.await? > 0, "a subscription is not answered, but cut off");
        let Some(end) = memchr::memmem::find(&head, b"\r\n\r\n") else { continue };
        let said = String::from_utf8_lossy(&head[..end]);
        anyhow::ensure!(said.starts_with("HTTP/1.1 200"), "a subscription is answered with {said}");
        return Ok((stream, head.split_off(end + 4)));
    }
}

async fn read(mut stream: TcpStream, rest: Vec<u8>, counters: Arc<DeliveryCounters>) {
    let mut reader = SubscriberReader::default();
    reader.read(&rest, &counters);
    drop(rest);
    loop {
        let piece =
            poll_fn(|cx| poll_piece(&mut stream, cx, |piece| reader.read(piece, &counters)));
        if !matches!(piece.await, Ok(1..)) {
            counters.closed.fetch_add(1, Relaxed);
            return;
        }
    }
}

/// Reads into the thread's own buffer, so that a waiting client needs none.
fn poll_piece(
    stream: &mut TcpStream,
    cx: &mut Context<'_>,
    take: impl FnOnce(&[u8]),
) -> Poll<std::io::Result<usize>> {
    BUFFER.with_borrow_mut(|buffer| {
        let mut buffer = ReadBuf::new(buffer);
        ready!(Pin::new(stream).poll_read(cx, &mut buffer))?;
        take(buffer.filled());
        Poll::Ready(Ok(buffer.filled().len()))
    })
}
