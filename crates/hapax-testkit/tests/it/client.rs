//! A plain TCP client.

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::time::Duration;

pub(crate) struct Client {
    stream: TcpStream,
}

impl Client {
    pub(crate) fn connect(port: u16) -> Self {
        let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).expect("cannot connect");
        Self { stream }
    }

    /// Sends a request of one line.
    pub(crate) fn send(&mut self, request: &str) {
        self.stream.write_all(format!("{request}\r\n").as_bytes()).expect("cannot send");
    }

    /// Sends a request, and returns its answer; the empty string when the connection is closed.
    pub(crate) fn ask(&mut self, request: &str) -> Option<String> {
        self.send(request);
        self.answer_within(Duration::from_secs(60))
    }

    /// `None` when nothing comes in time, the empty string when the connection is closed.
    pub(crate) fn answer_within(&mut self, timeout: Duration) -> Option<String> {
        self.stream.set_read_timeout(Some(timeout)).expect("cannot set a timeout");
        let mut answer = [0; 4096];
        match self.stream.read(&mut answer) {
            Ok(count) => Some(String::from_utf8_lossy(&answer[..count]).into_owned()),
            Err(error) if error.kind() == ErrorKind::ConnectionReset => Some(String::new()),
            Err(error) if error.kind() == ErrorKind::WouldBlock => None,
            // The kernel does not restart a read with a timeout after a signal.
            Err(error) if error.kind() == ErrorKind::Interrupted => self.answer_within(timeout),
            Err(error) => panic!("cannot read: {error}"),
        }
    }
}
