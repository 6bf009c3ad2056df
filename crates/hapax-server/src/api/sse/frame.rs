//! Frames of server-sent events, each encoded once for all streams, with the framing of an HTTP/1.1
//! chunk around it.

use std::fmt::Write;

use bytes::Bytes;
use hapax::bus::{Bus, EncodedFrame, FrameContent, JobFrame};

/// The bus of the server: its followers get [`SseFrame`]s.
pub(crate) type EventBus = Bus<SseFrame>;
pub(super) type SseJobFrame = JobFrame<SseFrame>;

const CRLF: usize = 2;

/// One frame. Clones share the bytes.
///
/// ```text
///   5b\r\n id: 7-42\n event: vision\ndata: {"offset":42,…}\n\n \r\n
///   └chunk┘ └──id──┘ └───────────── without_id ───────────────┘
/// ```
#[derive(Clone, Debug)]
pub(crate) struct SseFrame {
    bytes: Bytes,
    id: (usize, usize),
}

impl EncodedFrame for SseFrame {
    fn encode(content: FrameContent<'_>) -> Self {
        let (at, event) = match &content {
            FrameContent::Entry(entry) => (Some(entry.at), &*entry.stage),
            FrameContent::Snapshot { at, .. } => (Some(*at), "snapshot"),
            _ => (None, "gap"),
        };
        let id = at.map(|at| format!("id: {at}\n")).unwrap_or_default();
        let head = format!("event: {event}\ndata: ");
        let json = content.json();
        let length = id.len() + head.len() + json.len() + 2;
        let mut text = String::with_capacity(length + 12);
        let _ = write!(text, "{length:x}\r\n");
        let start = text.len();
        for part in [&id, &head, &json, "\n\n\r\n"] {
            text.push_str(part);
        }
        Self { bytes: text.into(), id: (start, start + id.len()) }
    }

    fn size(&self) -> usize {
        self.bytes.len()
    }
}

impl SseFrame {
    /// The frame as a chunk of an HTTP/1.1 body.
    pub(super) fn chunk(&self) -> Bytes {
        self.bytes.clone()
    }

    /// The frame without the chunk framing.
    pub(super) fn text(&self) -> Bytes {
        self.bytes.slice(self.id.0..self.end())
    }

    pub(super) fn without_id(&self) -> Bytes {
        self.bytes.slice(self.id.1..self.end())
    }

    fn end(&self) -> usize {
        self.bytes.len() - CRLF
    }
}

#[cfg(test)]
mod tests {
    use hapax::log::{Cursor, Epoch, LogEntry};
    use hapax::{Key, Tenant};

    use super::*;

    #[test]
    fn sse_frame_is_a_chunk_of_the_right_length() {
        let at = Cursor { epoch: Epoch(7), offset: 42 };
        let payload = r#"{"seq":10}"#.into();
        let entry = LogEntry { at, stage: "vision".into(), seq: 10, closes: false, payload };
        let frame = SseFrame::encode(FrameContent::Entry(&entry));
        let text = "id: 7-42\nevent: vision\ndata: {\"offset\":42,\"seq\":10}\n\n";
        assert_eq!(frame.text(), text);
        assert_eq!(frame.chunk(), format!("{:x}\r\n{text}\r\n", text.len()));
        assert_eq!(frame.without_id(), text.strip_prefix("id: 7-42\n").unwrap());
    }

    #[test]
    fn sse_gap_has_no_id_and_names_its_job_among_several() {
        let gap = SseFrame::encode(FrameContent::Gap { job: None, from: 3, to: Some(4) });
        assert_eq!(gap.text(), "event: gap\ndata: {\"from\":3,\"to\":4}\n\n");
        assert_eq!(gap.text(), gap.without_id());
        let job = Key::job(&Tenant::default(), "scan", "a\"b").unwrap();
        let gap = SseFrame::encode(FrameContent::Gap { job: Some(&job), from: 3, to: Some(4) });
        let json = r#"{"domain":"scan","job_id":"a\"b","from":3,"to":4}"#;
        assert_eq!(gap.text(), format!("event: gap\ndata: {json}\n\n"));
    }
}
