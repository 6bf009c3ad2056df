//! One connection that publishes with pipelined requests. HTTP/1.1 answers them in order, so the events
//! have an order, too.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::net::tcp::OwnedWriteHalf;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::deliveries::{DeliveryCounters, EventStamp};
use crate::fanout::server::FanoutServer;

/// How long a response may take.
const TIMEOUT: Duration = Duration::from_secs(30);

pub(super) struct FanoutPublisher {
    kind: FanoutServer,
    writer: OwnedWriteHalf,
    counters: Arc<DeliveryCounters>,
    request: Vec<u8>,
    /// The number of events sent so far.
    pub(super) sent: u64,
    answered: watch::Receiver<u64>,
    reading: JoinHandle<anyhow::Result<()>>,
}

impl FanoutPublisher {
    pub(super) async fn connect(
        kind: FanoutServer,
        address: SocketAddr,
        counters: &Arc<DeliveryCounters>,
    ) -> anyhow::Result<Self> {
        let stream = TcpStream::connect(address).await.context("the publisher cannot connect")?;
        stream.set_nodelay(true)?;
        let (mut reader, writer) = stream.into_split();
        let (count, answered) = watch::channel(0);
        let reading = tokio::spawn(async move {
            let mut answers = Answers::default();
            let mut piece = vec![0; 16 * 1024];
            loop {
                let read = reader.read(&mut piece).await?;
                anyhow::ensure!(read > 0, "the publisher was cut off");
                answers.scan(&piece[..read])?;
                count.send_replace(answers.count);
            }
        });
        let (counters, request) = (counters.clone(), Vec::new());
        Ok(Self { kind, writer, counters, request, sent: 0, answered, reading })
    }

    pub(super) async fn send(&mut self) -> anyhow::Result<()> {
        self.sent += 1;
        let stamp = EventStamp { number: self.sent, nanos: self.counters.nanos() };
        self.request.clear();
        self.kind.publish(stamp.number, |text| stamp.write(text), &mut self.request);
        Ok(self.writer.write_all(&self.request).await?)
    }

    /// Waits until at most this many requests are unanswered.
    pub(super) async fn wait_until_open(&mut self, at_most: u64) -> anyhow::Result<()> {
        let sent = self.sent;
        let waiting = self.answered.wait_for(|answered| sent - answered <= at_most);
        let waited = tokio::time::timeout(TIMEOUT, waiting).await;
        match waited.context("what is published is not answered")? {
            Ok(_) => Ok(()),
            Err(_) => (&mut self.reading).await?,
        }
    }
}

impl Drop for FanoutPublisher {
    fn drop(&mut self) {
        self.reading.abort();
    }
}

/// Counts responses by their status lines; each must be a success.
#[derive(Default)]
struct Answers {
    count: u64,
    /// The end of the last piece, which may begin a status line.
    rest: Vec<u8>,
}

impl Answers {
    fn scan(&mut self, piece: &[u8]) -> anyhow::Result<()> {
        const LINE: &[u8] = b"HTTP/1.1 ";
        self.rest.extend_from_slice(piece);
        let mut done = 0;
        for at in memchr::memmem::find_iter(&self.rest, LINE) {
            let Some(status) = self.rest.get(at + LINE.len()) else { break };
            let said = || String::from_utf8_lossy(&self.rest[at..]).into_owned();
            anyhow::ensure!(*status == b'2', "an event is not taken: {}", said());
            self.count += 1;
            done = at + LINE.len() + 1;
        }
        let keep = self.rest.len().saturating_sub(LINE.len());
        self.rest.drain(..keep.max(done));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn publish_responses_are_counted_however_cut() {
        let one = "HTTP/1.1 201 Created\r\ncontent-length: 2\r\n\r\n{}";
        let text = one.repeat(3);
        for cut in 0..text.len() {
            let mut answers = Answers::default();
            answers.scan(&text.as_bytes()[..cut]).unwrap();
            answers.scan(&text.as_bytes()[cut..]).unwrap();
            assert_eq!(answers.count, 3, "cut at {cut}");
        }
        assert!(Answers::default().scan(b"HTTP/1.1 503 Service Unavailable\r\n").is_err());
    }
}
