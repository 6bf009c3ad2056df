//! As little HTTP/1.1 as it takes to keep a server busy: one connection, one request at a time.

use std::net::SocketAddr;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use hapax_bench::Failure;

use super::handler::{ANSWER, REQUEST};

/// No answer here is anywhere near.
const MOST: usize = 64 * 1024;

pub(super) struct Connection {
    stream: TcpStream,
    /// The request up to the key, and what comes after it.
    before_key: String,
    after_key: String,
    request: String,
    answer: Vec<u8>,
}

/// An answer of which everything else was as expected.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Answered {
    pub(super) replayed: bool,
}

impl Connection {
    pub(super) async fn open(address: SocketAddr) -> std::io::Result<Self> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        let before_key = format!(
            "POST /orders HTTP/1.1\r\nHost: {address}\r\nContent-Type: application/json\r\n\
             Authorization: Bearer 0123456789abcdef0123456789abcdef\r\nIdempotency-Key: \""
        );
        let after_key = format!("\"\r\nContent-Length: {}\r\n\r\n{REQUEST}", REQUEST.len());
        let (request, answer) = (String::new(), Vec::with_capacity(4096));
        Ok(Self { stream, before_key, after_key, request, answer })
    }

    pub(super) async fn post(&mut self, key: &str) -> Result<Answered, Failure> {
        self.request.clear();
        for part in [&self.before_key, key, &self.after_key] {
            self.request.push_str(part);
        }
        self.stream.write_all(self.request.as_bytes()).await.map_err(broken)?;
        self.answer.clear();
        loop {
            if self.stream.read_buf(&mut self.answer).await.map_err(broken)? == 0 {
                return Err(Failure::Unexpected("a kept-alive connection was closed"));
            }
            if let Some(answered) = read(&self.answer)? {
                return Ok(answered);
            }
            if self.answer.len() > MOST {
                return Err(Failure::Unexpected("an answer has no end"));
            }
        }
    }
}

fn broken(error: std::io::Error) -> Failure {
    Failure::Engine(error.to_string())
}

/// `None` while the answer is not whole.
fn read(bytes: &[u8]) -> Result<Option<Answered>, Failure> {
    let Some(end) = bytes.windows(4).position(|four| four == b"\r\n\r\n") else {
        return Ok(None);
    };
    let head = std::str::from_utf8(&bytes[..end])
        .map_err(|_| Failure::Unexpected("headers that are no text"))?;
    let body = &bytes[end + 4..];
    if !head.starts_with("HTTP/1.1 201 ") {
        return Err(Failure::Engine(format!("201 was expected: {head}")));
    }
    let whole = match (header(head, "content-length"), header(head, "transfer-encoding")) {
        (Some(length), None) if length == ANSWER.len().to_string() => body == ANSWER.as_bytes(),
        (None, Some("chunked")) => body.ends_with(b"\r\n0\r\n\r\n"),
        _ => return Err(Failure::Engine(format!("the handler's answer was expected: {head}"))),
    };
    let replayed = header(head, "idempotent-replayed") == Some("true");
    Ok(whole.then_some(Answered { replayed }))
}

fn header<'a>(head: &'a str, name: &str) -> Option<&'a str> {
    head.split("\r\n").skip(1).find_map(|line| {
        let (found, value) = line.split_once(':')?;
        found.eq_ignore_ascii_case(name).then_some(value.trim())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_read_when_it_is_whole() {
        let length = ANSWER.len();
        let head = format!("HTTP/1.1 201 Created\r\nContent-Length: {length}\r\n\r\n");
        let chunked = "HTTP/1.1 201 Created\r\ntransfer-encoding: chunked\r\n\
                       Idempotent-Replayed: true\r\n\r\n";
        for (whole, replayed) in [
            (format!("{head}{ANSWER}"), false),
            (format!("{chunked}{length:x}\r\n{ANSWER}\r\n0\r\n\r\n"), true),
        ] {
            for end in 0..whole.len() {
                assert_eq!(read(&whole.as_bytes()[..end]).unwrap(), None, "{end} bytes");
            }
            assert_eq!(read(whole.as_bytes()).unwrap(), Some(Answered { replayed }));
        }
    }

    #[test]
    fn another_answer_is_a_failure() {
        assert!(read(b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\n\r\n").is_err());
        assert!(read(b"HTTP/1.1 201 Created\r\ncontent-length: 0\r\n\r\n").is_err());
    }
}
