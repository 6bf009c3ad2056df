//! The frames that followers get. Each is encoded once and shared by all followers of the job; the
//! encoding itself belongs to the edge that writes it ([`EncodedFrame`]).

use bytes::Bytes;

use crate::Key;
use crate::log::{Cursor, LogEntry};

/// The content of a frame, to be encoded.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum FrameContent<'a> {
    /// An entry of the log.
    Entry(&'a LogEntry),
    /// Entries are missing. Has no cursor: a follower that disconnects here has seen nothing new.
    Gap {
        /// The job, for a follower of several jobs.
        job: Option<&'a Key>,
        /// The first missing offset.
        from: u64,
        /// The last missing offset; `None` if the job has no log any more.
        to: Option<u64>,
    },
    /// The job's state, sent after a gap.
    Snapshot {
        /// Where a follower continues after this frame.
        at: Cursor,
        /// The entry with the highest seq.
        state: &'a LogEntry,
    },
}

/// A frame in the encoding of one edge. Clones must be cheap: they share the bytes.
pub trait EncodedFrame: Clone + Send + Sync + 'static {
    /// Encodes the content; called once for all followers of the job.
    fn encode(content: FrameContent<'_>) -> Self;

    /// The encoded size in bytes, counted against the limits of the follower ring.
    fn size(&self) -> usize;
}

/// The kind of a [`JobFrame`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameKind {
    /// An entry of the log.
    Entry,
    /// Entries are missing.
    Gap {
        /// The first missing offset.
        from: u64,
        /// The last missing offset; `None` if the job has no log any more.
        to: Option<u64>,
    },
    /// The job's state, after a gap.
    Snapshot,
}

/// One frame of a job, in the encoding `F`.
#[derive(Clone, Debug)]
pub struct JobFrame<F = JsonFrame> {
    kind: FrameKind,
    at: Option<Cursor>,
    encoded: F,
}

impl<F: EncodedFrame> JobFrame<F> {
    pub(super) fn entry(entry: &LogEntry) -> Self {
        let encoded = F::encode(FrameContent::Entry(entry));
        Self { kind: FrameKind::Entry, at: Some(entry.at), encoded }
    }

    pub(super) fn gap(job: Option<&Key>, from: u64, to: Option<u64>) -> Self {
        let encoded = F::encode(FrameContent::Gap { job, from, to });
        Self { kind: FrameKind::Gap { from, to }, at: None, encoded }
    }

    pub(super) fn snapshot(at: Cursor, state: &LogEntry) -> Self {
        let encoded = F::encode(FrameContent::Snapshot { at, state });
        Self { kind: FrameKind::Snapshot, at: Some(at), encoded }
    }

    pub(super) fn size(&self) -> usize {
        self.encoded.size()
    }
}

impl<F> JobFrame<F> {
    /// The kind of the frame.
    pub fn kind(&self) -> FrameKind {
        self.kind
    }

    /// Where a follower continues after this frame; `None` for a gap.
    pub fn at(&self) -> Option<Cursor> {
        self.at
    }

    /// The frame in its edge's encoding.
    pub fn encoded(&self) -> &F {
        &self.encoded
    }
}

/// The default encoding: the event as JSON, with its offset.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JsonFrame(Bytes);

impl JsonFrame {
    /// The JSON text.
    pub fn json(&self) -> &Bytes {
        &self.0
    }
}

impl EncodedFrame for JsonFrame {
    fn encode(content: FrameContent<'_>) -> Self {
        Self(content.json().into())
    }

    fn size(&self) -> usize {
        self.0.len()
    }
}

impl FrameContent<'_> {
    /// The content as JSON: an event with its offset, or the bounds of a gap.
    pub fn json(&self) -> String {
        match self {
            Self::Entry(entry) | Self::Snapshot { state: entry, .. } => with_offset(entry),
            Self::Gap { job: None, from, to } => {
                format!("{{\"from\":{from},\"to\":{}}}", number_or_null(*to))
            }
            Self::Gap { job: Some(job), from, to } => {
                let to = number_or_null(*to);
                let quoted = |text: &str| serde_json::Value::from(text).to_string();
                let (domain, job_id) = (quoted(job.scope()), quoted(job.name()));
                format!("{{\"domain\":{domain},\"job_id\":{job_id},\"from\":{from},\"to\":{to}}}")
            }
        }
    }
}

fn number_or_null(number: Option<u64>) -> String {
    number.map_or_else(|| "null".into(), |number| number.to_string())
}

/// The stored event with the offset that the log gave it.
///
/// ```
/// # use hapax_core::{bus::with_offset, log::{Cursor, Epoch, LogEntry}};
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

    #[test]
    fn gap_frame_has_no_cursor_and_names_its_job_among_several() {
        let gap = JobFrame::<JsonFrame>::gap(None, 3, Some(4));
        assert_eq!((gap.at(), &gap.encoded().json()[..]), (None, &br#"{"from":3,"to":4}"#[..]));
        let job = Key::job(&Tenant::default(), "scan", "a\"b").unwrap();
        let gap = JobFrame::<JsonFrame>::gap(Some(&job), 3, Some(4));
        let json = r#"{"domain":"scan","job_id":"a\"b","from":3,"to":4}"#;
        assert_eq!(gap.encoded().json(), json);
        let forgotten = JobFrame::<JsonFrame>::gap(None, 3, None);
        assert_eq!(forgotten.encoded().json(), r#"{"from":3,"to":null}"#);
    }
}
