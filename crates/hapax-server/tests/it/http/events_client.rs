//! A client of event streams, over HTTP/1.1 (where the server writes to the socket itself) and over
//! HTTP/1.0 (where the HTTP library does).

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;

use serde_json::{Value, json};

use crate::support::http::HttpResponse;
use crate::support::server::Server;
use crate::support::{WAIT_TIMEOUT, schema};

/// The protocol versions, one for each sink of a stream.
pub(crate) const WAYS: [&str; 2] = ["HTTP/1.1", "HTTP/1.0"];

#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Event {
    pub(crate) id: Option<String>,
    pub(crate) name: String,
    pub(crate) data: Value,
}

impl Event {
    pub(crate) fn offset(&self) -> u64 {
        self.data["offset"].as_u64().unwrap_or_else(|| panic!("no offset: {self:?}"))
    }

    pub(crate) fn id(&self) -> &str {
        self.id.as_deref().unwrap_or_else(|| panic!("no id: {self:?}"))
    }
}

pub(crate) struct Listener {
    pub(crate) status: u16,
    head: HttpResponse,
    body: BufReader<Dechunked>,
    pub(crate) comments: usize,
    max_comments: usize,
    pub(crate) retry: Option<u64>,
}

impl Listener {
    pub(crate) fn open(address: &str, way: &str, path: &str, headers: &[(&str, &str)]) -> Self {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(WAIT_TIMEOUT)).unwrap();
        let mut head = format!("GET {path} {way}\r\nHost: {address}\r\n");
        headers.iter().for_each(|(name, value)| head.push_str(&format!("{name}: {value}\r\n")));
        stream.write_all(format!("{head}\r\n").as_bytes()).unwrap();
        let mut reader = BufReader::new(stream);
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            assert_ne!(reader.read_until(b'\n', &mut head).unwrap(), 0, "no response");
        }
        let head = HttpResponse::parse(&head).unwrap();
        schema::check_head("GET", path, &head);
        let chunked = head.header("transfer-encoding") == Some("chunked");
        assert_eq!(chunked, way == "HTTP/1.1" && head.status == 200, "{head:?}");
        let body = BufReader::new(Dechunked { reader, chunked, left: 0, ended: !chunked });
        Self { status: head.status, head, body, comments: 0, max_comments: usize::MAX, retry: None }
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.head.header(name)
    }

    /// The next event; `None` at the end of the stream.
    pub(crate) fn next(&mut self) -> Option<Event> {
        let mut event = Event::default();
        loop {
            let mut line = String::new();
            if self.body.read_line(&mut line).expect("something comes, or the end") == 0 {
                assert_eq!(event, Event::default(), "cut off in the middle");
                return None;
            }
            let line = line.strip_suffix('\n').expect("a whole line");
            match line.split_once(": ").unwrap_or((line, "")) {
                ("", _) if event.data != Value::Null => return Some(event),
                ("id", id) => event.id = Some(id.into()),
                ("event", name) => event.name = name.into(),
                ("data", data) => event.data = serde_json::from_str(data).expect("JSON"),
                ("retry", ms) => self.retry = Some(ms.parse().unwrap()),
                (":", _) => {
                    self.comments += 1;
                    if self.comments >= self.max_comments {
                        return None;
                    }
                }
                ("", _) => {}
                other => panic!("no line of an event stream: {other:?}"),
            }
        }
    }

    /// The next event; `None` if so many keep-alive comments come before it.
    pub(crate) fn next_within_comments(&mut self, comments: usize) -> Option<Event> {
        self.max_comments = self.comments + comments;
        let event = self.next();
        self.max_comments = usize::MAX;
        event
    }

    #[track_caller]
    pub(crate) fn expect(&mut self) -> Event {
        self.next().expect("an event, and not the end")
    }

    pub(crate) fn take(&mut self, count: usize) -> Vec<Event> {
        (0..count).map(|_| self.expect()).collect()
    }

    /// A gap, and the snapshot that follows unless the job has no log.
    #[track_caller]
    pub(crate) fn expect_gap(&mut self) {
        let gap = self.expect();
        assert_eq!(gap.name, "gap");
        if gap.data["to"] != Value::Null {
            assert_eq!(self.expect().name, "snapshot");
        }
    }

    /// Everything to the end of the stream.
    pub(crate) fn rest(&mut self) -> Vec<Event> {
        std::iter::from_fn(|| self.next()).collect()
    }

    /// Whether the last chunk was received.
    pub(crate) fn ended_in_order(&self) -> bool {
        self.body.get_ref().ended
    }

    /// Reads until a keep-alive comment.
    pub(crate) fn until_comment(&mut self) {
        while self.comments == 0 {
            let mut line = String::new();
            assert_ne!(self.body.read_line(&mut line).expect("a comment comes"), 0);
            self.comments += usize::from(line.starts_with(':'));
        }
    }
}

/// Removes the chunk framing of a body.
struct Dechunked {
    reader: BufReader<TcpStream>,
    chunked: bool,
    left: usize,
    ended: bool,
}

impl Read for Dechunked {
    fn read(&mut self, buf: &mut [u8]) -> std::io::Result<usize> {
        if !self.chunked {
            return self.reader.read(buf);
        }
        if self.left == 0 {
            let mut line = String::new();
            if self.ended || self.reader.read_line(&mut line)? == 0 {
                return Ok(0);
            }
            self.left = usize::from_str_radix(line.trim_end(), 16).expect("the length of a chunk");
            if self.left == 0 {
                let mut end = String::new();
                self.reader.read_line(&mut end)?;
                assert_eq!(end, "\r\n");
                self.ended = true;
                return Ok(0);
            }
        }
        let most = buf.len().min(self.left);
        let n = self.reader.read(&mut buf[..most])?;
        self.left -= n;
        if self.left == 0 {
            let mut end = [0; 2];
            self.reader.read_exact(&mut end)?;
            assert_eq!(&end, b"\r\n", "a chunk is as long as it says");
        }
        Ok(n)
    }
}

impl Server {
    /// Publishes one event; its offset and epoch.
    #[track_caller]
    pub(crate) fn publish(&self, job: &str, stage: &str, seq: u64) -> (u64, u64) {
        self.publish_data(job, stage, seq, &json!({"n": seq}))
    }

    #[track_caller]
    pub(crate) fn publish_data(
        &self,
        job: &str,
        stage: &str,
        seq: u64,
        data: &Value,
    ) -> (u64, u64) {
        let event =
            json!({"domain": "scan", "job_id": job, "stage": stage, "seq": seq, "data": data});
        let answer = self.post("/v1/events").json(&event).send();
        assert_eq!(answer.status, 201, "{}", answer.text());
        let answer = answer.json();
        (answer["offset"].as_u64().unwrap(), answer["epoch"].as_u64().unwrap())
    }

    pub(crate) fn finish(&self, job: &str) {
        self.publish(job, "done", 51);
    }

    pub(crate) fn follow(&self, way: &str, job: &str, query: &str) -> Listener {
        self.follow_with(way, job, query, &[])
    }

    pub(crate) fn follow_with(
        &self,
        way: &str,
        job: &str,
        query: &str,
        headers: &[(&str, &str)],
    ) -> Listener {
        let path = format!("/v1/jobs/scan/{job}/events{query}");
        Listener::open(&self.address, way, &path, headers)
    }
}
