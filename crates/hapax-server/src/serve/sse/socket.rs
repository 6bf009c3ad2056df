//! A connection of our own, to which a stream is written without the HTTP library.

use std::io::{self, ErrorKind, IoSlice};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Buf, Bytes};
use tokio::io::AsyncWriteExt;
use tokio::time::timeout;

use super::fanout::Crowds;
use super::source::Framing;
use super::stream::{Ended, Outlet, Stream};
use crate::net::Bare;

/// What the kernel may hold for a client that does not read; it counts twice that.
const SEND_BUFFER: usize = 32 * 1024;
/// How many pieces go to the kernel at once.
const AT_ONCE: usize = 32;
/// How much a client may send that has nothing more to say.
const MOST_READ: usize = 64 * 1024;

/// The bare connection. Its frames are encoded once for all, several go out in one call, and nothing
/// is kept for it but where it is.
pub(super) struct Socket {
    bare: Bare,
    limit: Duration,
    read: usize,
}

impl Socket {
    pub(super) fn new(bare: Bare, limit: Duration) -> Self {
        let _ = socket2::SockRef::from(&bare.socket).set_send_buffer_size(SEND_BUFFER);
        Self { bare, limit, read: 0 }
    }

    /// Writes what is left, and then what comes, until there is an end or nothing to do but to wait,
    /// which is done in a crowd.
    pub(super) async fn send(
        mut self,
        mut left: Vec<Bytes>,
        mut stream: Stream,
        crowds: Arc<Crowds>,
    ) {
        let ended = match self.write(&mut left).await {
            Ok(()) => stream.run(&mut self).await,
            Err(ended) => ended,
        };
        if ended == Ended::Idle {
            return crowds.join(self, stream);
        }
        stream.ended(ended);
        if ended.is_orderly()
            && self.write(&mut vec![Bytes::from_static(b"0\r\n\r\n")]).await.is_ok()
        {
            let _ = timeout(self.limit, self.bare.socket.shutdown()).await;
        }
    }

    /// Writes as much as there is room for.
    pub(super) fn write_some(&self, pieces: &mut Vec<Bytes>) -> io::Result<()> {
        while !pieces.is_empty() {
            let written = self.write_once(pieces)?;
            advance(pieces, written);
        }
        Ok(())
    }

    /// One call of the kernel; how many bytes it took.
    pub(super) fn write_once(&self, pieces: &[Bytes]) -> io::Result<usize> {
        // The kernel has less to do for one piece than for a list of one.
        if let [piece] = pieces {
            return self.bare.socket.try_write(piece);
        }
        let mut slices = [IoSlice::new(&[]); AT_ONCE];
        for (slice, piece) in slices.iter_mut().zip(pieces) {
            *slice = IoSlice::new(piece);
        }
        self.bare.socket.try_write_vectored(&slices[..pieces.len().min(AT_ONCE)])
    }

    /// Whether the client is still there; whoever asks is woken when that may have changed.
    pub(super) fn is_there(&mut self, context: &mut Context<'_>) -> bool {
        while let Poll::Ready(ready) = self.bare.socket.poll_read_ready(context) {
            match ready.and_then(|()| self.look()) {
                Err(error) if error.kind() != ErrorKind::WouldBlock => return false,
                _ => {}
            }
        }
        true
    }

    fn look(&mut self) -> io::Result<()> {
        let mut bytes = [0; 512];
        match self.bare.socket.try_read(&mut bytes)? {
            0 => Err(ErrorKind::UnexpectedEof.into()),
            n => {
                self.read += n;
                if self.read > MOST_READ { Err(ErrorKind::InvalidData.into()) } else { Ok(()) }
            }
        }
    }
}

/// Leaves out what was written.
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

impl Outlet for Socket {
    const FRAMING: Framing = Framing::Chunks;
    const MAY_IDLE: bool = true;

    async fn write(&mut self, pieces: &mut Vec<Bytes>) -> Result<(), Ended> {
        loop {
            match self.write_some(pieces) {
                Ok(()) => return Ok(()),
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(_) => return Err(Ended::Client),
            }
            // Anew after each bit of progress: slow is who makes none.
            match timeout(self.limit, self.bare.socket.writable()).await {
                Ok(Ok(())) => {}
                Ok(Err(_)) => return Err(Ended::Client),
                Err(_) => return Err(Ended::Slow),
            }
        }
    }

    async fn gone(&mut self) {
        std::future::poll_fn(
            |context| {
                if self.is_there(context) { Poll::Pending } else { Poll::Ready(()) }
            },
        )
        .await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_written_is_left_out_piece_by_piece() {
        let pieces = || vec![Bytes::from("abc"), Bytes::from("de"), Bytes::from("f")];
        for written in 0..=6 {
            let mut left = pieces();
            advance(&mut left, written);
            let left: Vec<u8> = left.into_iter().flatten().collect();
            assert_eq!(left, b"abcdef"[written..], "{written}");
        }
    }
}
