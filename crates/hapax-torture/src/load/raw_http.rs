//! An HTTP/1.1 client that costs little: the clients of a load share the processors with the server.

use std::io;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

/// Longer than the servers' own timeouts.
const EXCHANGE_TIMEOUT: Duration = Duration::from_secs(30);

/// A whole answer.
pub(crate) struct RawAnswer {
    pub(crate) status: u16,
    pub(crate) is_replayed: bool,
    pub(crate) body: Vec<u8>,
}

impl RawAnswer {
    pub(crate) fn is_success(&self) -> bool {
        (200..300).contains(&self.status)
    }

    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).unwrap_or_default()
    }
}

/// A keep-alive connection to one address, made anew when it was closed.
pub(crate) struct LoadConnection {
    address: String,
    stream: Option<TcpStream>,
    buffer: Vec<u8>,
}

impl LoadConnection {
    pub(crate) fn to(address: &str) -> Self {
        Self { address: address.to_owned(), stream: None, buffer: Vec::new() }
    }

    /// Sends a request and reads its answer.
    ///
    /// # Errors
    ///
    /// When the connection was cut, or the answer did not come in time.
    pub(crate) async fn exchange(&mut self, request: &[u8]) -> io::Result<RawAnswer> {
        let mut was_used = self.stream.is_some();
        loop {
            let exchange = timeout(EXCHANGE_TIMEOUT, self.exchange_once(request)).await;
            let answer = exchange.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()));
            if answer.is_ok() {
                return answer;
            }
            self.stream = None;
            // The server closes idle connections; one that it closed just now has carried nothing of an answer.
            let is_stale = was_used && self.buffer.is_empty();
            if !is_stale
                || answer.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::TimedOut)
            {
                return answer;
            }
            was_used = false;
        }
    }

    async fn exchange_once(&mut self, request: &[u8]) -> io::Result<RawAnswer> {
        self.buffer.clear();
        let stream = match &mut self.stream {
            Some(stream) => stream,
            None => {
                let stream = TcpStream::connect(&self.address).await?;
                stream.set_nodelay(true)?;
                self.stream.insert(stream)
            }
        };
        stream.write_all(request).await?;
        let head_end = read_head(stream, &mut self.buffer).await?;
        let head = String::from_utf8_lossy(&self.buffer[..head_end]).to_ascii_lowercase();
        let status = status_of(&head)?;
        let length = head_field(&head, "content-length").and_then(|length| length.parse().ok());
        let length = match length {
            Some(length) => length,
            None if status == 204 || status == 304 => 0,
            None => return Err(io::Error::other("an answer without a length")),
        };
        while self.buffer.len() < head_end + length {
            if stream.read_buf(&mut self.buffer).await? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
        if head_field(&head, "connection") == Some("close") {
            self.stream = None;
        }
        let is_replayed = head_field(&head, "idempotent-replayed").is_some();
        let body = self.buffer[head_end..head_end + length].to_vec();
        Ok(RawAnswer { status, is_replayed, body })
    }
}

/// Reads up to the end of the head; where the body begins.
pub(crate) async fn read_head(stream: &mut TcpStream, buffer: &mut Vec<u8>) -> io::Result<usize> {
    loop {
        if let Some(end) = buffer.windows(4).position(|window| window == b"\r\n\r\n") {
            return Ok(end + 4);
        }
        if stream.read_buf(buffer).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
}

/// The status of an answer with this head.
pub(crate) fn status_of(head: &str) -> io::Result<u16> {
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok());
    status.ok_or_else(|| io::Error::other("not an HTTP answer"))
}

fn head_field<'a>(head: &'a str, name: &str) -> Option<&'a str> {
    head.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim)
}

/// The bytes of a request. `headers` are whole lines.
pub(crate) fn request(method: &str, path: &str, token: &str, headers: &str, body: &str) -> Vec<u8> {
    let length = body.len();
    let text = format!(
        "{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {token}\r\n\
         Content-Type: application/json\r\nContent-Length: {length}\r\n{headers}\r\n{body}"
    );
    text.into_bytes()
}
