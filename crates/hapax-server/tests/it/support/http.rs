//! An HTTP client that sends exactly what it is told to, also where that is wrong.

use std::fmt::{self, Display};
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};

use serde_json::Value;

use super::{WAIT_TIMEOUT, schema};

/// One request on a connection of its own.
#[derive(Clone)]
pub(crate) struct HttpRequest {
    address: String,
    head: String,
    body: Option<Vec<u8>>,
    is_described: bool,
}

#[derive(Debug)]
pub(crate) struct HttpResponse {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
}

impl HttpRequest {
    pub(crate) fn new(address: &str, method: &str, path: &str) -> Self {
        let head = format!("{method} {path} HTTP/1.1\r\nConnection: close\r\n");
        let request = Self { address: address.into(), head, body: None, is_described: false };
        request.header("Host", address)
    }

    /// Compares the response with the OpenAPI document of `hapax serve`.
    pub(crate) fn compared(mut self) -> Self {
        self.is_described = true;
        self
    }

    pub(crate) fn header(mut self, name: &str, value: &str) -> Self {
        if name.eq_ignore_ascii_case("Host") {
            // Replace the default one.
            let lines = self.head.split_inclusive("\r\n").filter(|line| !line.starts_with("Host:"));
            self.head = lines.collect();
        }
        self.head.push_str(&format!("{name}: {value}\r\n"));
        self
    }

    pub(crate) fn bearer(self, token: &str) -> Self {
        self.header("Authorization", &format!("Bearer {token}"))
    }

    pub(crate) fn json(self, body: impl Display) -> Self {
        self.header("Content-Type", "application/json").body(body.to_string().as_bytes())
    }

    pub(crate) fn body(mut self, body: &[u8]) -> Self {
        self.body = Some(body.to_vec());
        self
    }

    /// The bytes that go over the wire.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        let mut bytes = self.head.clone().into_bytes();
        if let Some(body) = &self.body {
            bytes.extend(format!("Content-Length: {}\r\n", body.len()).bytes());
        }
        bytes.extend(b"\r\n");
        bytes.extend(self.body.iter().flatten());
        bytes
    }

    #[track_caller]
    pub(crate) fn send(&self) -> HttpResponse {
        self.begin().answer()
    }

    /// The response, unless the server is gone.
    pub(crate) fn try_send(&self) -> Option<HttpResponse> {
        let mut stream = TcpStream::connect(&self.address).ok()?;
        stream.set_read_timeout(Some(WAIT_TIMEOUT)).ok()?;
        stream.write_all(&self.bytes()).ok()?;
        let mut bytes = Vec::new();
        stream.read_to_end(&mut bytes).ok().filter(|count| *count > 0)?;
        let answer = HttpResponse::parse(&bytes)?;
        if let Some((method, path)) = self.described() {
            schema::check(&method, &path, &answer);
        }
        Some(answer)
    }

    /// Sends without waiting for the response.
    pub(crate) fn begin(&self) -> SentRequest {
        let sent = SentRequest::new(&self.address, &self.bytes());
        SentRequest { described: self.described(), ..sent }
    }

    /// Method and path, if the response is to be compared with the OpenAPI document.
    fn described(&self) -> Option<(String, String)> {
        let mut words = self.head.split(' ').map(str::to_owned);
        self.is_described.then(|| (words.next().unwrap(), words.next().unwrap()))
    }

    pub(crate) fn status(&self) -> u16 {
        self.send().status
    }

    /// The response, which must be this problem document.
    #[track_caller]
    pub(crate) fn is(&self, status: u16, code: &str) -> HttpResponse {
        let answer = self.send();
        answer.is(status, code);
        answer
    }
}

/// The beginning of the request, for messages.
impl fmt::Display for HttpRequest {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = self.bytes();
        write!(formatter, "{}", String::from_utf8_lossy(&bytes[..bytes.len().min(400)]))
    }
}

pub(crate) struct SentRequest {
    stream: TcpStream,
    /// Method and path of a request whose response is described by the OpenAPI document.
    described: Option<(String, String)>,
}

impl SentRequest {
    pub(crate) fn new(address: &str, bytes: &[u8]) -> Self {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(WAIT_TIMEOUT)).unwrap();
        stream.set_write_timeout(Some(WAIT_TIMEOUT)).unwrap();
        // A server that refuses early may close before everything was sent.
        let _ = stream.write_all(bytes);
        Self { stream, described: None }
    }

    #[track_caller]
    pub(crate) fn answer(mut self) -> HttpResponse {
        let mut bytes = Vec::new();
        if let Err(error) = self.stream.read_to_end(&mut bytes) {
            assert!(!bytes.is_empty(), "no response: {error}");
        }
        let answer = HttpResponse::parse(&bytes)
            .unwrap_or_else(|| panic!("no response: {}", String::from_utf8_lossy(&bytes)));
        if let Some((method, path)) = &self.described {
            schema::check(method, path, &answer);
        }
        answer
    }

    /// Sends more; returns whether the connection took it.
    pub(crate) fn more(&mut self, bytes: &[u8]) -> bool {
        self.stream.write_all(bytes).is_ok()
    }

    /// Waits until a response begins.
    pub(crate) fn first_byte(&mut self) {
        self.stream.read_exact(&mut [0]).unwrap();
    }

    /// Reads one answer that has a length, and leaves the connection open.
    pub(crate) fn read_answer(&mut self) {
        let mut bytes = Vec::new();
        while HttpResponse::parse(&bytes).is_none_or(|answer| {
            let length = answer.header("content-length").expect("a length").parse();
            answer.body.len() < length.expect("a number")
        }) {
            let mut byte = [0];
            self.stream.read_exact(&mut byte).unwrap();
            bytes.extend(byte);
        }
    }

    /// Whether the other side has neither answered nor closed.
    pub(crate) fn alive(&self) -> bool {
        self.stream.set_nonblocking(true).unwrap();
        let quiet = self.stream.peek(&mut [0]).is_err_and(|e| e.kind() == ErrorKind::WouldBlock);
        self.stream.set_nonblocking(false).unwrap();
        quiet
    }

    /// Everything until the other side closes.
    pub(crate) fn rest(mut self) -> Vec<u8> {
        let mut bytes = Vec::new();
        let _ = self.stream.read_to_end(&mut bytes);
        bytes
    }

    /// Whether the other side closes without sending anything.
    pub(crate) fn silence(mut self) -> bool {
        let mut bytes = Vec::new();
        self.stream.read_to_end(&mut bytes).is_ok() && bytes.is_empty()
    }

    pub(crate) fn hang_up(self) {
        let _ = self.stream.shutdown(Shutdown::Both);
    }
}

impl HttpResponse {
    /// A response, of which at least the head is complete.
    pub(crate) fn parse(bytes: &[u8]) -> Option<Self> {
        let end = bytes.windows(4).position(|bytes| bytes == b"\r\n\r\n")?;
        let head = String::from_utf8(bytes[..end].to_vec()).unwrap();
        let mut lines = head.lines();
        let status = lines.next().unwrap().split(' ').nth(1).unwrap().parse().unwrap();
        let header = |line: &str| {
            let (name, value) = line.split_once(':').unwrap();
            (name.to_ascii_lowercase(), value.trim().to_owned())
        };
        Some(Self { status, headers: lines.map(header).collect(), body: bytes[end + 4..].to_vec() })
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(n, _)| n == name).map(|(_, value)| value.as_str())
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|_| panic!("no JSON: {self:?}"))
    }

    /// The token of a lock, a command or a message that was just taken.
    #[track_caller]
    pub(crate) fn token(&self) -> String {
        assert_eq!(self.status, 201, "{}", self.text());
        self.json()["token"].as_str().unwrap().to_owned()
    }

    pub(crate) fn etag(&self) -> String {
        self.header("etag").expect("an ETag").to_owned()
    }

    /// The code of a problem document, whose every member is checked.
    pub(crate) fn problem(&self) -> String {
        assert_eq!(self.header("content-type"), Some("application/problem+json"), "{self:?}");
        let document = self.json();
        let text =
            |name: &str| document[name].as_str().unwrap_or_else(|| panic!("{name}: {document}"));
        assert!(!text("title").is_empty() && !text("detail").is_empty());
        assert_eq!(document["status"].as_u64(), Some(self.status.into()));
        assert!(document["retryable"].is_boolean(), "{document}");
        match (document["retry_after_ms"].as_u64(), self.header("retry-after")) {
            (Some(ms), Some(seconds)) => {
                assert_eq!(seconds.parse::<u64>().unwrap(), ms.div_ceil(1000).max(1));
            }
            (None, None) => {}
            other => panic!("one without the other: {other:?}"),
        }
        text("type").rsplit('/').next().unwrap().to_owned()
    }

    pub(crate) fn detail(&self) -> String {
        self.json()["detail"].as_str().unwrap().to_owned()
    }

    #[track_caller]
    pub(crate) fn is(&self, status: u16, code: &str) -> &Self {
        assert_eq!((self.status, self.problem().as_str()), (status, code), "{}", self.text());
        self
    }
}
