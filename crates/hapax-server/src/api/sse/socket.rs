//! An HTTP/1.1 connection that was taken over from the HTTP library, as the sink of a stream.

use std::io::{self, ErrorKind, IoSlice};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Buf, Bytes};
use tokio::io::AsyncWriteExt;
use tokio::time::timeout;

use super::fanout::FanoutGroups;
use super::stream::{BodyFraming, EventStream, FrameSink, StreamEnd};
use crate::daemon::RawConnection;

/// The send buffer for a client that does not read; the kernel doubles this.
const SEND_BUFFER: usize = 32 * 1024;
/// How many pieces one vectored write takes.
const MAX_PIECES: usize = 32;
/// How many bytes a client may send after its request before it is disconnected.
const MAX_READ: usize = 64 * 1024;

/// A taken-over connection. Shared frames are written without copying, several in one system call.
pub(super) struct SocketSink {
    connection: RawConnection,
    write_timeout: Duration,
    bytes_read: usize,
}

impl SocketSink {
    pub(super) fn new(connection: RawConnection, write_timeout: Duration) -> Self {
        let _ = socket2::SockRef::from(&connection.socket).set_send_buffer_size(SEND_BUFFER);
        Self { connection, write_timeout, bytes_read: 0 }
    }

    /// Writes `left` and then the stream, until it ends or is idle and joins the fan-out of its
    /// job.
    pub(super) async fn run(
        mut self,
        mut left: Vec<Bytes>,
        mut stream: EventStream,
        fanout: Arc<FanoutGroups>,
    ) {
        let ended = match self.write(&mut left).await {
            Ok(()) => stream.run(&mut self).await,
            Err(ended) => ended,
        };
        if ended == StreamEnd::Idle {
            return fanout.join(self, stream);
        }
        stream.count_end(ended);
        if ended.is_orderly()
            && self.write(&mut vec![Bytes::from_static(b"0\r\n\r\n")]).await.is_ok()
        {
            let _ = timeout(self.write_timeout, self.connection.socket.shutdown()).await;
        }
    }

    /// Makes one system call; returns how many bytes were written.
    pub(super) fn write_once(&self, pieces: &[Bytes]) -> io::Result<usize> {
        // A plain write is cheaper than a vectored one.
        if let [piece] = pieces {
            return self.connection.socket.try_write(piece);
        }
        let mut slices = [IoSlice::new(&[]); MAX_PIECES];
        for (slice, piece) in slices.iter_mut().zip(pieces) {
            *slice = IoSlice::new(piece);
        }
        self.connection.socket.try_write_vectored(&slices[..pieces.len().min(MAX_PIECES)])
    }

    /// Whether the client is still connected; wakes the context when that may have changed.
    pub(super) fn is_connected(&mut self, context: &mut Context<'_>) -> bool {
        while let Poll::Ready(ready) = self.connection.socket.poll_read_ready(context) {
            match ready.and_then(|()| self.read_some()) {
                Err(error) if error.kind() != ErrorKind::WouldBlock => return false,
                _ => {}
            }
        }
        true
    }

    fn read_some(&mut self) -> io::Result<()> {
        let mut bytes = [0; 512];
        match self.connection.socket.try_read(&mut bytes)? {
            0 => Err(ErrorKind::UnexpectedEof.into()),
            n => {
                self.bytes_read += n;
                if self.bytes_read > MAX_READ { Err(ErrorKind::InvalidData.into()) } else { Ok(()) }
            }
        }
    }
}

pub(super) fn advance(pieces: &mut Vec<Bytes>, mut written: usize) {
    let whole = pieces.iter().take_while(|piece| {
        let whole = piece.len() <= written;
        if whole {
            written -= piece.len();
        }
        whole
    });
    let whole = whole.count();
    pieces.drain(..whole);
    if let Some(piece) = pieces.first_mut() {
        piece.advance(written);
    }
}

impl FrameSink for SocketSink {
    const FRAMING: BodyFraming = BodyFraming::Chunked;
    const CAN_JOIN_FANOUT: bool = true;

    async fn write(&mut self, pieces: &mut Vec<Bytes>) -> Result<(), StreamEnd> {
        while !pieces.is_empty() {
            match self.write_once(pieces) {
                Ok(written) => advance(pieces, written),
                // The timeout restarts after each write: only a client that reads nothing is too slow.
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    let writable = timeout(self.write_timeout, self.connection.socket.writable());
                    writable.await.map_err(|_| StreamEnd::Slow)?.map_err(|_| StreamEnd::Client)?;
                }
                Err(_) => return Err(StreamEnd::Client),
            }
        }
        Ok(())
    }

    async fn disconnected(&mut self) {
        std::future::poll_fn(|context| {
            if self.is_connected(context) { Poll::Pending } else { Poll::Ready(()) }
        })
        .await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn advance_drops_written_bytes() {
        let pieces = || vec![Bytes::from("abc"), Bytes::from("de"), Bytes::from("f")];
        for written in 0..=6 {
            let mut left = pieces();
            advance(&mut left, written);
            let left: Vec<u8> = left.into_iter().flatten().collect();
            assert_eq!(left, b"abcdef"[written..], "{written}");
        }
    }
}
