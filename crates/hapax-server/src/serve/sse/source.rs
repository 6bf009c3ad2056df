//! The source of a stream: the events of one job or of several, as pieces of a response body.

use bytes::Bytes;
use hapax::bus::{Follower, MultiFollower, MultiFrame, NextFrames};

use super::frame::SseFrame;

/// How frames are laid out in a response body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BodyFraming {
    /// Bare frames; the HTTP library adds its own framing.
    Plain,
    /// HTTP/1.1 chunks.
    Chunked,
}

impl BodyFraming {
    /// Encodes a text that is no event.
    pub(super) fn encode(self, text: &str) -> Bytes {
        match self {
            Self::Plain => Bytes::copy_from_slice(text.as_bytes()),
            Self::Chunked => format!("{:x}\r\n{text}\r\n", text.len()).into(),
        }
    }
}

pub(super) enum StreamSource {
    OneJob(Box<Follower<SseFrame>>),
    ManyJobs(Box<MultiFollower<SseFrame>>),
}

/// The next item of a source.
pub(super) enum SourceItem {
    /// This many events.
    Events(u64),
    /// The last event was sent before.
    Complete,
    /// The server is stopping.
    Stopped,
}

impl StreamSource {
    /// Waits for the next events and appends them to `pieces`. Cancel-safe.
    pub(super) async fn next(
        &mut self,
        framing: BodyFraming,
        pieces: &mut Vec<Bytes>,
    ) -> SourceItem {
        match self {
            Self::OneJob(follower) => match follower.next().await {
                NextFrames::Frames(frames) => {
                    pieces.extend(frames.iter().map(|frame| match framing {
                        BodyFraming::Plain => frame.encoded().text(),
                        BodyFraming::Chunked => frame.encoded().chunk(),
                    }));
                    SourceItem::Events(frames.len() as u64)
                }
                NextFrames::Complete => SourceItem::Complete,
                NextFrames::Stopped => SourceItem::Stopped,
            },
            Self::ManyJobs(followers) => match followers.next().await {
                NextFrames::Frames(frames) => {
                    frames.iter().for_each(|frame| push_with_id(frame, framing, pieces));
                    SourceItem::Events(frames.len() as u64)
                }
                NextFrames::Complete => SourceItem::Complete,
                NextFrames::Stopped => SourceItem::Stopped,
            },
        }
    }
}

/// Appends a frame with the id of this stream and the shared rest.
fn push_with_id(
    MultiFrame { frame, cursor }: &MultiFrame<SseFrame>,
    framing: BodyFraming,
    pieces: &mut Vec<Bytes>,
) {
    let id = cursor.as_ref().map(|cursor| format!("id: {cursor}\n")).unwrap_or_default();
    let rest = frame.encoded().without_id();
    match framing {
        BodyFraming::Plain => pieces.extend([id.into(), rest]),
        BodyFraming::Chunked => {
            let head = format!("{:x}\r\n{id}", id.len() + rest.len());
            pieces.extend([head.into(), rest, Bytes::from_static(b"\r\n")]);
        }
    }
}
