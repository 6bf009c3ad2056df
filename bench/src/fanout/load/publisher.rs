//! One connection that publishes, several requests on their way at once: HTTP/1.1 answers them in
//! order, so the events have one, too.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::net::tcp::OwnedWriteHalf;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::mark::Mark;
use super::tally::Tally;
use crate::fanout::subject::Kind;

/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(30);

pub(super) struct Publisher {
    kind: Kind,
    writer: OwnedWriteHalf,
    tally: Arc<Tally>,
    request: Vec<u8>,
    /// How many events were sent so far.
    pub(super) sent: u64,
    answered: watch::Receiver<u64>,
    reading: JoinHandle<anyhow::Result<()>>,
}

impl Publisher {
    pub(super) async fn connect(
        kind: Kind,
        address: SocketAddr,
        tally: &Arc<Tally>,
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
        let (tally, request) = (tally.clone(), Vec::new());
        Ok(Self { kind, writer, tally, request, sent: 0, answered, reading })
    }

    pub(super) async fn send(&mut self) -> anyhow::Result<()> {
        self.sent += 1;
        let mark = Mark { number: self.sent, nanos: self.tally.nanos() };
        self.request.clear();
        self.kind.publish(mark.number, |text| mark.write(text), &mut self.request);
        Ok(self.writer.write_all(&self.request).await?)
    }

    /// Waits until at most so many requests are not answered yet.
    pub(super) async fn wait_until_open(&mut self, at_most: u64) -> anyhow::Result<()> {
        let sent = self.sent;
        let waiting = self.answered.wait_for(|answered| sent - answered <= at_most);
        let waited = tokio::time::timeout(PATIENCE, waiting).await;
        match waited.context("what is published is not answered")? {
            Ok(_) => Ok(()),
            Err(_) => (&mut self.reading).await?,
        }
    }
}

impl Drop for Publisher {
    fn drop(&mut self) {
        self.reading.abort();
    }
}

/// Counts answers by their status lines; all must say that it worked.
#[derive(Default)]
struct Answers {
    count: u64,
    /// What a status line may begin with, at the end of the last piece.
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
    fn answers_are_counted_however_they_are_cut() {
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
