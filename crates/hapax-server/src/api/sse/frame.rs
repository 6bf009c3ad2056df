//! Frames of server-sent events, each encoded once for all streams, with the framing of an HTTP/1.1
//! chunk around it.

use std::fmt::Write;

use bytes::Bytes;
use hapax::bus::{Bus, EncodedFrame, FrameContent, JobFrame};
use serde::{Deserialize, Serialize};

use super::stream::BodyFraming;

/// The bus of the server: its followers get [`SseFrame`]s.
pub(crate) type EventBus = Bus<SseFrame>;
pub(super) type SseJobFrame = JobFrame<SseFrame>;

const CRLF: usize = 2;

/// One frame. Clones share the bytes.
///
/// ```text
///   5b\r\n id: 7-42\n event: vision\n data: {"offset":42,…}\n\n \r\n
///   └chunk┘ └──id──┘ └────name─────┘ └─────────data──────────┘
/// ```
#[derive(Clone, Debug)]
pub(crate) struct SseFrame {
    bytes: Bytes,
    id: (usize, usize),
    data: usize,
}

/// What a stream sends of its frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum FrameForm {
    /// All of them, with the stage as the name.
    Named,
    /// Without the `event:` line: a browser calls `onmessage` only for frames without one.
    Unnamed,
    /// For operators: entries without a name, and without what may identify a person.
    Masked,
}

/// What an operator sees of an event.
#[derive(Default, Serialize, Deserialize)]
#[serde(default)]
struct MaskedEvent {
    offset: u64,
    stage: String,
    seq: u64,
    timestamp: Option<String>,
    #[serde(rename = "final")]
    closes: bool,
}

impl EncodedFrame for SseFrame {
    fn encode(content: FrameContent<'_>) -> Self {
        let (at, event) = match &content {
            FrameContent::Entry(entry) => (Some(entry.at), &*entry.stage),
            FrameContent::Snapshot { at, .. } => (Some(*at), "snapshot"),
            _ => (None, "gap"),
        };
        let id = at.map(|at| format!("id: {at}\n")).unwrap_or_default();
        let (name, head) = (format!("event: {event}\n"), "data: ");
        let json = content.json();
        let length = id.len() + name.len() + head.len() + json.len() + 2;
        let mut text = String::with_capacity(length + 12);
        let _ = write!(text, "{length:x}\r\n");
        let start = text.len();
        for part in [&id, &name, head, &json, "\n\n\r\n"] {
            text.push_str(part);
        }
        let id = (start, start + id.len());
        Self { bytes: text.into(), id, data: id.1 + name.len() }
    }

    fn size(&self) -> usize {
        self.bytes.len()
    }
}

impl SseFrame {
    /// Appends the frame to the pieces of a body.
    pub(super) fn push_to(&self, pieces: &mut Vec<Bytes>, framing: BodyFraming, form: FrameForm) {
        match (framing, form) {
            (BodyFraming::Plain, FrameForm::Named) => pieces.push(self.text()),
            (BodyFraming::Chunked, FrameForm::Named) => pieces.push(self.bytes.clone()),
            (_, FrameForm::Unnamed | FrameForm::Masked) => {
                self.push_with_id(&self.bytes[self.id.0..self.id.1], pieces, framing, form);
            }
        }
    }

    /// Appends the frame with another `id:` line, and the shared rest.
    pub(super) fn push_with_id(
        &self,
        id: &[u8],
        pieces: &mut Vec<Bytes>,
        framing: BodyFraming,
        form: FrameForm,
    ) {
        let rest = match form {
            FrameForm::Named => self.bytes.slice(self.id.1..self.end()),
            FrameForm::Unnamed => self.bytes.slice(self.data..self.end()),
            FrameForm::Masked => self.masked(),
        };
        match framing {
            BodyFraming::Plain => pieces.extend([Bytes::copy_from_slice(id), rest]),
            BodyFraming::Chunked => {
                let mut head = format!("{:x}\r\n", id.len() + rest.len()).into_bytes();
                head.extend_from_slice(id);
                pieces.extend([head.into(), rest, Bytes::from_static(b"\r\n")]);
            }
        }
    }

    /// The frame without its id, for operators. The name of a gap and of a snapshot stays, to tell them from entries.
    fn masked(&self) -> Bytes {
        let name = self.bytes.slice(self.id.1..self.data);
        if name == "event: gap\n" {
            return self.bytes.slice(self.id.1..self.end());
        }
        let json = self.bytes[self.data..self.end()].strip_prefix(b"data: ").unwrap_or_default();
        let event: MaskedEvent = serde_json::from_slice(json).unwrap_or_default();
        let json = serde_json::to_string(&event).expect("texts and numbers become JSON");
        let name = if name == "event: snapshot\n" { "event: snapshot\n" } else { "" };
        format!("{name}data: {json}\n\n").into()
    }

    /// The frame without the chunk framing.
    fn text(&self) -> Bytes {
        self.bytes.slice(self.id.0..self.end())
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
        let written = |framing, form| {
            let mut pieces = Vec::new();
            frame.push_to(&mut pieces, framing, form);
            String::from_utf8(pieces.concat()).unwrap()
        };
        let unnamed = text.replace("event: vision\n", "");
        let masked = "id: 7-42\ndata: {\"offset\":42,\"stage\":\"\",\"seq\":10,\"timestamp\":null,\"final\":false}\n\n";
        assert_eq!(written(BodyFraming::Plain, FrameForm::Masked), masked);
        for (text, form) in [(text, FrameForm::Named), (&unnamed, FrameForm::Unnamed)] {
            assert_eq!(written(BodyFraming::Plain, form), text);
            let chunk = format!("{:x}\r\n{text}\r\n", text.len());
            assert_eq!(written(BodyFraming::Chunked, form), chunk);
        }
        let mut pieces = Vec::new();
        frame.push_with_id(b"id: x\n", &mut pieces, BodyFraming::Plain, FrameForm::Named);
        assert_eq!(pieces.concat(), text.replace("7-42", "x").as_bytes());
    }

    #[test]
    fn sse_frame_for_operators_has_no_data() {
        let at = Cursor { epoch: Epoch(7), offset: 42 };
        let payload =
            r#"{"job_id":"U1","stage":"vision","seq":10,"data":{"who":"U1"},"timestamp":"t"}"#;
        let (stage, payload) = ("vision".into(), payload.into());
        let entry = LogEntry { at, stage, seq: 10, closes: false, payload };
        let written = |content| {
            let mut pieces = Vec::new();
            SseFrame::encode(content).push_to(&mut pieces, BodyFraming::Plain, FrameForm::Masked);
            String::from_utf8(pieces.concat()).unwrap()
        };
        let data = r#"{"offset":42,"stage":"vision","seq":10,"timestamp":"t","final":false}"#;
        assert_eq!(written(FrameContent::Entry(&entry)), format!("id: 7-42\ndata: {data}\n\n"));
        let snapshot = written(FrameContent::Snapshot { at, state: &entry });
        assert_eq!(snapshot, format!("id: 7-42\nevent: snapshot\ndata: {data}\n\n"));
        let gap = written(FrameContent::Gap { job: None, from: 3, to: Some(4) });
        assert_eq!(gap, "event: gap\ndata: {\"from\":3,\"to\":4}\n\n");
    }

    #[test]
    fn sse_gap_has_no_id_and_names_its_job_among_several() {
        let gap = SseFrame::encode(FrameContent::Gap { job: None, from: 3, to: Some(4) });
        assert_eq!(gap.text(), "event: gap\ndata: {\"from\":3,\"to\":4}\n\n");
        let job = Key::job(&Tenant::default(), "scan", "a\"b").unwrap();
        let gap = SseFrame::encode(FrameContent::Gap { job: Some(&job), from: 3, to: Some(4) });
        let json = r#"{"domain":"scan","job_id":"a\"b","from":3,"to":4}"#;
        assert_eq!(gap.text(), format!("event: gap\ndata: {json}\n\n"));
    }
}
