//! The clients: sockets that are read, and nothing else.

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

use super::tally::{Reader, Tally};

/// How many connect at the same time: fewer than any server's backlog.
const AT_ONCE: usize = 64;
/// How long one may take to be answered.
const PATIENCE: Duration = Duration::from_secs(30);
const PIECE: usize = 64 * 1024;

thread_local! {
    /// Clients that are read by the same thread are read one after the other: one buffer is enough.
    static BUFFER: RefCell<Vec<u8>> = RefCell::new(vec![0; PIECE]);
}

/// Clients that read until they are dropped.
pub(super) struct Crowd {
    _clients: JoinSet<()>,
}

impl Crowd {
    /// Connects so many clients; they are all subscribed when this returns.
    pub(super) async fn gather(
        address: SocketAddr,
        request: &str,
        clients: usize,
        tally: &Arc<Tally>,
    ) -> anyhow::Result<Self> {
        let turns = Arc::new(Semaphore::new(AT_ONCE));
        let mut connecting = JoinSet::new();
        for _ in 0..clients {
            let (turns, request) = (turns.clone(), request.to_owned());
            connecting.spawn(async move {
                let _turn = turns.acquire_owned().await;
                tokio::time::timeout(PATIENCE, subscribe(address, &request))
                    .await
                    .unwrap_or_else(|_| anyhow::bail!("a subscription is not answered"))
            });
        }
        let mut crowd = JoinSet::new();
        while let Some(connected) = connecting.join_next().await {
            let (stream, rest) = connected??;
            crowd.spawn(read(stream, rest, tally.clone()));
        }
        Ok(Self { _clients: crowd })
    }
}

/// The stream behind the head of the answer, and what came with that.
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

async fn read(mut stream: TcpStream, rest: Vec<u8>, tally: Arc<Tally>) {
    let mut reader = Reader::default();
    reader.read(&rest, &tally);
    drop(rest);
    loop {
        let piece = poll_fn(|cx| poll_piece(&mut stream, cx, |piece| reader.read(piece, &tally)));
        if !matches!(piece.await, Ok(1..)) {
            tally.closed.fetch_add(1, Relaxed);
            return;
        }
    }
}

/// Reads what is there into the thread's own buffer: a client that waits has none.
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
