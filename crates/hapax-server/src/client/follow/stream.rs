//! A stream of server-sent events.

use std::time::Duration;

use bytes::BytesMut;
use http_body_util::BodyExt;
use hyper::StatusCode;
use hyper::body::Incoming;

use super::frames::{Frame, Frames};
use crate::client::{Api, Call, Failure};

/// The server sends at least a comment every 15 s: after this long the connection is given up.
const IDLE_TIMEOUT: Duration = Duration::from_secs(60);
const MAX_LINE: usize = 64 << 20;

pub(super) struct Stream {
    body: Incoming,
    received: BytesMut,
    frames: Frames,
}

impl Stream {
    /// `None` where there will be no more events.
    pub(super) async fn open(api: &Api, call: Call) -> Result<Option<Self>, Failure> {
        let response = api.stream(call).await?;
        Ok((response.status() != StatusCode::NO_CONTENT).then(|| Self {
            body: response.into_body(),
            received: BytesMut::new(),
            frames: Frames::default(),
        }))
    }

    /// The next frame; `None` where the stream has ended or nothing arrives any more. A frame that was
    /// cut off is dropped.
    pub(super) async fn next(&mut self) -> Option<Frame> {
        loop {
            let line = self.next_line().await?;
            if let Some(frame) = self.frames.take(&line) {
                return Some(frame);
            }
        }
    }

    async fn next_line(&mut self) -> Option<String> {
        let mut searched = 0;
        loop {
            if let Some(end) = self.received[searched..].iter().position(|byte| *byte == b'\n') {
                let line = self.received.split_to(searched + end + 1);
                let line = line.strip_suffix(b"\r\n").unwrap_or(&line[..line.len() - 1]);
                return String::from_utf8(line.to_vec()).ok();
            }
            searched = self.received.len();
            if searched > MAX_LINE {
                return None;
            }
            let frame = tokio::time::timeout(IDLE_TIMEOUT, self.body.frame()).await.ok()??.ok()?;
            if let Some(data) = frame.data_ref() {
                self.received.extend_from_slice(data);
            }
        }
    }
}
