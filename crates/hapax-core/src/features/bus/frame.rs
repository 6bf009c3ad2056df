//! What a follower gets, encoded once for all of them: a frame of server-sent events, with the
//! framing of an HTTP/1.1 chunk around it.

use std::fmt::Write;

use bytes::Bytes;

use crate::Key;
use crate::log::{Cursor, LogEntry};

/// What a [`Frame`] tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameKind {
    /// An entry of the log.
    Entry,
    /// Entries are missing here.
    Gap,
    /// The job's state, after a gap.
    Snapshot,
}

/// One thing that a follower gets. Clones share the bytes.
///
/// ```text
///   5b\r\n id: 7-42\n event: vision\ndata: {"offset":42,…}\n\n \r\n
///   └chunk┘ └──id──┘ └────────────── said ────────────────────┘
/// ```
#[derive(Clone, Debug)]
pub struct Frame {
    kind: FrameKind,
    at: Option<Cursor>,
    bytes: Bytes,
    /// Where the id begins, and where it ends.
    id: (usize, usize),
    /// Where the JSON begins.
    json: usize,
}

const CRLF: usize = 2;

impl Frame {
    /// An entry of a log.
    pub(super) fn entry(entry: &LogEntry) -> Self {
        Self::new(FrameKind::Entry, Some(entry.at), &entry.stage, &with_offset(entry))
    }

    /// The entries from `from` to `to` are missing. Has no id: a follower that is cut off here has
    /// seen nothing.
    pub(super) fn gap(from: u64, to: u64) -> Self {
        Self::new(FrameKind::Gap, None, "gap", &format!("{{\"from\":{from},\"to\":{to}}}"))
    }

    /// A gap in the log of one job of several.
    pub(super) fn gap_of(&self, job: &Key) -> Self {
        let json = std::str::from_utf8(&self.bytes[self.json..]).unwrap_or_default().trim_end();
        let name = |text: &str| serde_json::Value::from(text).to_string();
        let (domain, job_id) = (name(job.scope()), name(job.name()));
        let rest = json.strip_prefix('{').unwrap_or_default();
        let json = format!("{{\"domain\":{domain},\"job_id\":{job_id},{rest}");
        Self::new(FrameKind::Gap, None, "gap", &json)
    }

    /// The job's state. Who has seen it goes on after `at`.
    pub(super) fn snapshot(at: Cursor, state: &LogEntry) -> Self {
        Self::new(FrameKind::Snapshot, Some(at), "snapshot", &with_offset(state))
    }

    fn new(kind: FrameKind, at: Option<Cursor>, event: &str, json: &str) -> Self {
        let id = at.map(|at| format!("id: {at}\n")).unwrap_or_default();
        let head = format!("event: {event}\ndata: ");
        let length = id.len() + head.len() + json.len() + 2;
        let mut text = String::with_capacity(length + 12);
        let _ = write!(text, "{length:x}\r\n");
        let start = text.len();
        for part in [&id, &head, json, "\n\n\r\n"] {
            text.push_str(part);
        }
        let id = (start, start + id.len());
        Self { kind, at, bytes: text.into(), id, json: id.1 + head.len() }
    }

    /// What it tells.
    pub fn kind(&self) -> FrameKind {
        self.kind
    }

    /// Where a follower goes on that has seen it; `None` for a gap.
    pub fn at(&self) -> Option<Cursor> {
        self.at
    }

    /// The event, or what else it tells, as JSON.
    pub fn json(&self) -> Bytes {
        self.bytes.slice(self.json..self.end() - 2)
    }

    /// The frame as a chunk of an HTTP/1.1 body.
    pub fn chunk(&self) -> Bytes {
        self.bytes.clone()
    }

    /// The frame alone.
    pub fn text(&self) -> Bytes {
        self.bytes.slice(self.id.0..self.end())
    }

    /// The frame without its id.
    pub fn said(&self) -> Bytes {
        self.bytes.slice(self.id.1..self.end())
    }

    pub(super) fn size(&self) -> usize {
        self.bytes.len()
    }

    fn end(&self) -> usize {
        self.bytes.len() - CRLF
    }
}

/// The stored event with the offset that the log gave it.
///
/// ```
/// # use hapax_core::{bus::with_offset, log::{Cursor, LogEntry, Epoch}};
/// let at = Cursor { epoch: Epoch(7), offset: 42 };
/// let payload = r#"{"seq":10,"data":{}}"#.into();
/// let entry = LogEntry { at, stage: "vision".into(), seq: 10, closes: false, payload };
/// assert_eq!(with_offset(&entry), r#"{"offset":42,"seq":10,"data":{}}"#);
/// ```
pub fn with_offset(entry: &LogEntry) -> String {
    let payload = String::from_utf8_lossy(&entry.payload);
    let rest = payload.strip_prefix('{').unwrap_or("}");
    format!("{{\"offset\":{},{rest}", entry.at.offset)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Tenant;
    use crate::log::Epoch;

    fn entry() -> LogEntry {
        let at = Cursor { epoch: Epoch(7), offset: 42 };
        let payload = r#"{"seq":10}"#.into();
        LogEntry { at, stage: "vision".into(), seq: 10, closes: false, payload }
    }

    #[test]
    fn a_frame_is_a_chunk_whose_length_is_right() {
        let frame = Frame::entry(&entry());
        let text = "id: 7-42\nevent: vision\ndata: {\"offset\":42,\"seq\":10}\n\n";
        assert_eq!(frame.text(), text);
        assert_eq!(frame.chunk(), format!("{:x}\r\n{text}\r\n", text.len()));
        assert_eq!(frame.said(), text.strip_prefix("id: 7-42\n").unwrap());
        assert_eq!(frame.json(), r#"{"offset":42,"seq":10}"#);
    }

    #[test]
    fn a_gap_has_no_id_and_names_its_job_among_several() {
        let gap = Frame::gap(3, 4);
        assert_eq!(gap.text(), "event: gap\ndata: {\"from\":3,\"to\":4}\n\n");
        assert_eq!((gap.at(), gap.text()), (None, gap.said()));
        let job = Key::job(&Tenant::default(), "scan", "a\"b").unwrap();
        assert_eq!(gap.gap_of(&job).json(), r#"{"domain":"scan","job_id":"a\"b","from":3,"to":4}"#);
    }
}
