//! A stream of events, read on a thread of its own: it blocks, and may do so for ever where a
//! connection died without a word.

use std::io::{BufRead, BufReader, Read};
use std::time::Duration;

use tokio::sync::mpsc;
use ureq::http::StatusCode;

use super::frames::{Frame, Frames};
use crate::client::{Api, Call, Failure};

/// The server says something at least every 15 s; this long without a word means that nobody is there.
const SILENCE: Duration = Duration::from_secs(60);
/// The longest line.
const LONGEST: u64 = 64 << 20;

pub(super) struct Stream {
    lines: mpsc::Receiver<String>,
    frames: Frames,
}

impl Stream {
    /// `None` where there will be no more events.
    pub(super) async fn open(api: &Api, call: Call) -> Result<Option<Self>, Failure> {
        let (status, body) = api.stream(call).await?;
        if status == StatusCode::NO_CONTENT {
            return Ok(None);
        }
        let (sender, lines) = mpsc::channel(64);
        std::thread::spawn(move || pump(body, &sender));
        Ok(Some(Self { lines, frames: Frames::default() }))
    }

    /// The next frame; `None` where the stream has ended or is silent.
    pub(super) async fn next(&mut self) -> Option<Frame> {
        loop {
            let line = tokio::time::timeout(SILENCE, self.lines.recv()).await.ok()??;
            if let Some(frame) = self.frames.take(&line) {
                return Some(frame);
            }
        }
    }
}

fn pump(body: impl Read, lines: &mpsc::Sender<String>) {
    let mut body = BufReader::new(body);
    loop {
        let mut line = Vec::new();
        let read = body.by_ref().take(LONGEST).read_until(b'\n', &mut line);
        // A line that was cut off belongs to a frame that was cut off.
        if read.is_err() || line.pop() != Some(b'\n') {
            return;
        }
        if line.last() == Some(&b'\r') {
            line.pop();
        }
        let Ok(line) = String::from_utf8(line) else { return };
        if lines.blocking_send(line).is_err() {
            return;
        }
    }
}
