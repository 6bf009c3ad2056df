//! An HTTP server that answers as a test says.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;

/// A server on loopback that records its requests. It runs until the test process ends.
pub struct HttpStub {
    port: u16,
    requests: Arc<Mutex<Vec<ReceivedRequest>>>,
}

/// A request as the [`HttpStub`] received it.
#[derive(Clone, Debug)]
pub struct ReceivedRequest {
    /// The request line, such as `POST /hook HTTP/1.1`.
    pub line: String,
    /// The headers, with names in lower case.
    pub headers: HashMap<String, String>,
    /// The body, as long as `Content-Length` says.
    pub body: Vec<u8>,
}

/// The reaction of an [`HttpStub`] to a request.
#[derive(Clone, Debug)]
pub enum StubAnswer {
    /// Sends this text, head and body of a response, and keeps the connection.
    Respond(String),
    /// Sends this text, which may be empty, and closes the connection.
    RespondAndClose(String),
    /// Sends nothing, and waits until the client closes the connection.
    Hang,
}

impl HttpStub {
    /// Starts a server on a free port.
    pub fn start(answer: impl Fn(&ReceivedRequest) -> StubAnswer + Send + Sync + 'static) -> Self {
        Self::start_at(0, answer)
    }

    /// Starts a server on this port.
    pub fn start_at(
        port: u16,
        answer: impl Fn(&ReceivedRequest) -> StubAnswer + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", port)).expect("the port is free");
        let port = listener.local_addr().expect("it is bound").port();
        let (requests, answer) = (Arc::<Mutex<Vec<_>>>::default(), Arc::new(answer));
        let log = requests.clone();
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (log, answer) = (log.clone(), answer.clone());
                thread::spawn(move || serve(stream, &log, &*answer));
            }
        });
        Self { port, requests }
    }

    /// The port of the server.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The URL of a path, such as `/hook`.
    pub fn url(&self, path: &str) -> String {
        format!("http://127.0.0.1:{}{path}", self.port)
    }

    /// The requests so far. Each is recorded before it is answered.
    pub fn requests(&self) -> Vec<ReceivedRequest> {
        self.requests.lock().expect("no thread panicked").clone()
    }
}

fn serve(
    stream: TcpStream,
    log: &Mutex<Vec<ReceivedRequest>>,
    answer: &dyn Fn(&ReceivedRequest) -> StubAnswer,
) {
    let mut stream = BufReader::new(stream);
    while let Some(request) = read_request(&mut stream) {
        let answer = answer(&request);
        log.lock().expect("no thread panicked").push(request);
        match answer {
            StubAnswer::Respond(text) => {
                if stream.get_mut().write_all(text.as_bytes()).is_err() {
                    return;
                }
            }
            StubAnswer::RespondAndClose(text) => {
                let _ = stream.get_mut().write_all(text.as_bytes());
                return;
            }
            StubAnswer::Hang => drop(stream.read(&mut [0])),
        }
    }
}

/// Reads one request; `None` where the client closed the connection.
fn read_request(stream: &mut impl BufRead) -> Option<ReceivedRequest> {
    let mut lines = stream.by_ref().lines().map_while(Result::ok);
    let line = lines.next()?;
    let header = |line: String| {
        let (name, value) = line.split_once(": ")?;
        Some((name.to_ascii_lowercase(), value.to_owned()))
    };
    let headers: HashMap<_, _> =
        lines.take_while(|line| !line.is_empty()).filter_map(header).collect();
    let length = headers.get("content-length").map_or(Ok(0), |length| length.parse());
    let mut body = vec![0; length.ok()?];
    stream.read_exact(&mut body).ok()?;
    Some(ReceivedRequest { line, headers, body })
}
