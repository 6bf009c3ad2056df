//! What is sent on a stream: of one job, or of several.

use bytes::Bytes;
use hapax::bus::{Follower, Followers, Marked, Next};

/// How frames lie in a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Framing {
    /// As they are; the HTTP library does the rest.
    Plain,
    /// As chunks of HTTP/1.1.
    Chunks,
}

impl Framing {
    /// Bytes of our own in it.
    pub(super) fn of(self, text: &str) -> Bytes {
        match self {
            Self::Plain => Bytes::copy_from_slice(text.as_bytes()),
            Self::Chunks => format!("{:x}\r\n{text}\r\n", text.len()).into(),
        }
    }
}

pub(super) enum Source {
    One(Box<Follower>),
    Many(Box<Followers>),
}

/// What has come.
pub(super) enum Came {
    /// As many events.
    Events(u64),
    /// The last event was sent before.
    Complete,
    /// The server stops.
    Stopped,
}

impl Source {
    /// Waits for what comes next, and puts it behind what is to be written. Nothing is lost where the
    /// future is dropped.
    pub(super) async fn next(&mut self, framing: Framing, pieces: &mut Vec<Bytes>) -> Came {
        match self {
            Self::One(follower) => match follower.next().await {
                Next::Frames(frames) => {
                    pieces.extend(frames.iter().map(|frame| match framing {
                        Framing::Plain => frame.text(),
                        Framing::Chunks => frame.chunk(),
                    }));
                    Came::Events(frames.len() as u64)
                }
                Next::Complete => Came::Complete,
                Next::Stopped => Came::Stopped,
            },
            Self::Many(followers) => match followers.next().await {
                Next::Frames(frames) => {
                    frames.iter().for_each(|marked| put(marked, framing, pieces));
                    Came::Events(frames.len() as u64)
                }
                Next::Complete => Came::Complete,
                Next::Stopped => Came::Stopped,
            },
        }
    }
}

/// An id of its own, and the shared rest.
fn put(Marked { frame, bookmark }: &Marked, framing: Framing, pieces: &mut Vec<Bytes>) {
    let id = bookmark.as_ref().map(|bookmark| format!("id: {bookmark}\n")).unwrap_or_default();
    let said = frame.said();
    match framing {
        Framing::Plain => pieces.extend([id.into(), said]),
        Framing::Chunks => {
            let head = format!("{:x}\r\n{id}", id.len() + said.len());
            pieces.extend([head.into(), said, Bytes::from_static(b"\r\n")]);
        }
    }
}
