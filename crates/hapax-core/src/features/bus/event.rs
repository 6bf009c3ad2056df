//! What is published, checked and encoded once.

use std::sync::Arc;

use serde::Serialize;
use serde_json::Value;

use super::BusConfig;
use crate::key::{InvalidKey, MAX_NAME, check};
use crate::log::{LogEvent, MAX_NUMBER};
use crate::{Fingerprint, Key, Tenant, canonical_json};

/// Stages that mean something to readers of a stream, and are nobody's own.
pub const RESERVED_STAGES: [&str; 3] = ["gap", "snapshot", "end"];
/// The longest timestamp, in bytes.
const MAX_TIMESTAMP: usize = 64;

/// An event to publish. Its identity is tenant, domain, job, stage and seq; published again with the
/// same content it is recognised, with another content refused.
///
/// ```
/// use hapax_core::bus::NewEvent;
/// use serde_json::json;
/// let event = NewEvent::new("scan", "job-1", "vision", 10).data(json!({"status": "started"}));
/// assert!(!event.closes);
/// assert!(NewEvent::new("scan", "job-1", "done", 51).closing().closes);
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct NewEvent {
    /// What kind of job it is.
    pub domain: String,
    /// Which job.
    pub job_id: String,
    /// What the job is at.
    pub stage: String,
    /// The producer's own number; the highest one is the job's state.
    pub seq: u64,
    /// What it says.
    pub data: Value,
    /// Whether it is the job's last one.
    pub closes: bool,
    /// When it happened, as its producer writes it; `None` for now. Never compared.
    pub timestamp: Option<String>,
}

impl NewEvent {
    /// An event that says nothing but that it happened.
    pub fn new(
        domain: impl Into<String>,
        job_id: impl Into<String>,
        stage: impl Into<String>,
        seq: u64,
    ) -> Self {
        Self {
            domain: domain.into(),
            job_id: job_id.into(),
            stage: stage.into(),
            seq,
            data: Value::Null,
            closes: false,
            timestamp: None,
        }
    }

    /// What it says.
    #[must_use]
    pub fn data(mut self, data: Value) -> Self {
        self.data = data;
        self
    }

    /// It is the job's last one.
    #[must_use]
    pub fn closing(mut self) -> Self {
        self.closes = true;
        self
    }

    /// When it happened.
    #[must_use]
    pub fn timestamp(mut self, timestamp: impl Into<String>) -> Self {
        self.timestamp = Some(timestamp.into());
        self
    }

    /// The event as a log keeps it: checked, fingerprinted, and encoded once for all readers.
    pub(super) fn sealed(
        &self,
        tenant: &Tenant,
        settings: &BusConfig,
        now: &str,
    ) -> Result<LogEvent, InvalidEvent> {
        let job = Key::job(tenant, &self.domain, &self.job_id)?;
        check("stage", &self.stage, 0x21, MAX_NAME)?;
        if RESERVED_STAGES.contains(&self.stage.as_str()) {
            return Err(InvalidEvent::ReservedStage);
        }
        if self.seq > MAX_NUMBER {
            return Err(InvalidEvent::Seq);
        }
        let timestamp = self.timestamp.as_deref().unwrap_or(now);
        if timestamp.len() > MAX_TIMESTAMP || timestamp.chars().any(char::is_control) {
            return Err(InvalidEvent::Timestamp);
        }
        let payload = self.encoded(timestamp);
        if payload.len() > settings.largest {
            let (bytes, limit) = (payload.len(), settings.largest);
            return Err(InvalidEvent::TooLarge { bytes, limit });
        }
        let finale = settings.finale.as_ref();
        let closes = self.closes || finale.is_some_and(|finale| finale.is(&self.stage, self.seq));
        Ok(LogEvent {
            job,
            stage: self.stage.as_str().into(),
            seq: self.seq,
            fingerprint: self.fingerprint(),
            payload: payload.into(),
            closes,
        })
    }

    /// Of what it says, not of how it is written or when it was sent.
    fn fingerprint(&self) -> Fingerprint {
        let closes: &[u8] = if self.closes { b"final" } else { b"" };
        Fingerprint::of(&[canonical_json(&self.data).as_bytes(), closes])
    }

    fn encoded(&self, timestamp: &str) -> Vec<u8> {
        let payload = Payload {
            domain: &self.domain,
            job_id: &self.job_id,
            stage: &self.stage,
            seq: self.seq,
            data: &self.data,
            closes: self.closes,
            timestamp,
        };
        serde_json::to_vec(&payload).expect("texts, numbers and JSON become JSON")
    }
}

/// What readers get, but for the offset, which only the log knows.
#[derive(Serialize)]
struct Payload<'a> {
    domain: &'a str,
    job_id: &'a str,
    stage: &'a str,
    seq: u64,
    data: &'a Value,
    #[serde(rename = "final", skip_serializing_if = "std::ops::Not::not")]
    closes: bool,
    timestamp: &'a str,
}

/// Why an event cannot be published. Says which field, what it takes and what to do, and never what
/// was in it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidEvent {
    /// Domain, job or stage cannot be one.
    #[error(transparent)]
    Key(#[from] InvalidKey),
    /// The stage means something to readers.
    #[error("stage is one of {}, which are reserved; use another name", RESERVED_STAGES.join(", "))]
    ReservedStage,
    /// The seq is too large.
    #[error("seq is too large; it takes a whole number from 0 to {MAX_NUMBER} (2^53 - 1)")]
    Seq,
    /// The timestamp is no short text.
    #[error(
        "timestamp takes up to {MAX_TIMESTAMP} bytes without control characters, or leave it out"
    )]
    Timestamp,
    /// It says too much.
    #[error(
        "the event has {bytes} bytes; it takes up to {limit}: store what is large elsewhere and publish where"
    )]
    TooLarge {
        /// How large it is, encoded.
        bytes: usize,
        /// How large it may be.
        limit: usize,
    },
}

/// The event that closes a job by convention, also where it does not say so.
///
/// ```
/// use hapax_core::bus::ClosingEvent;
/// assert_eq!(ClosingEvent::default(), ClosingEvent::new("done", 51));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClosingEvent {
    stage: Arc<str>,
    seq: u64,
}

impl ClosingEvent {
    /// This stage at this seq.
    pub fn new(stage: &str, seq: u64) -> Self {
        Self { stage: stage.into(), seq }
    }

    fn is(&self, stage: &str, seq: u64) -> bool {
        self.seq == seq && *self.stage == *stage
    }
}

impl Default for ClosingEvent {
    /// Stage `done` at seq 51.
    fn default() -> Self {
        Self::new("done", 51)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn sealed(event: &NewEvent) -> Result<LogEvent, InvalidEvent> {
        event.sealed(&Tenant::default(), &BusConfig::default(), "now")
    }

    fn event() -> NewEvent {
        NewEvent::new("scan", "job-1", "vision", 10)
    }

    #[test]
    fn content_is_compared_as_json_and_final_counts_and_the_timestamp_does_not() {
        let said = |text: &str| event().data(serde_json::from_str(text).unwrap());
        let first = sealed(&said(r#"{"a":1,"b":[2]}"#)).unwrap().fingerprint;
        let again = sealed(&said(r#"{ "b": [2], "a": 1 }"#).timestamp("later")).unwrap();
        assert_eq!(first, again.fingerprint);
        assert_ne!(first, sealed(&said(r#"{"a":1,"b":[3]}"#)).unwrap().fingerprint);
        assert_ne!(first, sealed(&said(r#"{"a":1,"b":[2]}"#).closing()).unwrap().fingerprint);
    }

    #[test]
    fn an_event_is_encoded_without_its_offset() {
        let payload = sealed(&event().data(json!({"n": 1})).closing()).unwrap().payload;
        let text = r#"{"domain":"scan","job_id":"job-1","stage":"vision","seq":10,"data":{"n":1},"final":true,"timestamp":"now"}"#;
        assert_eq!(payload, text);
    }

    #[test]
    fn a_job_closes_by_its_word_or_by_convention() {
        let closes = |event: &NewEvent, settings: &BusConfig| {
            event.sealed(&Tenant::default(), settings, "").unwrap().closes
        };
        let done = NewEvent::new("scan", "j", "done", 51);
        let by_default = BusConfig::default();
        let never = BusConfig { finale: None, ..BusConfig::default() };
        assert!(closes(&done, &by_default) && !closes(&done, &never));
        assert!(!closes(&NewEvent { seq: 50, ..done.clone() }, &by_default));
        assert!(closes(&done.closing(), &never));
    }

    #[test]
    fn what_cannot_be_published_is_told_by_field_limit_and_fix() {
        let settings = BusConfig { largest: 200, ..BusConfig::default() };
        for (wrong, word) in [
            (NewEvent { domain: String::new(), ..event() }, "domain"),
            (NewEvent { job_id: "j".repeat(256), ..event() }, "job_id has 256 bytes"),
            (NewEvent { stage: "a b".into(), ..event() }, "stage"),
            (NewEvent { stage: "snapshot".into(), ..event() }, "reserved"),
            (NewEvent { seq: MAX_NUMBER + 1, ..event() }, "9007199254740991"),
            (event().timestamp("\n"), "timestamp"),
            (event().data("x".repeat(200).into()), "takes up to 200"),
        ] {
            let said = wrong.sealed(&Tenant::default(), &settings, "").unwrap_err().to_string();
            assert!(said.contains(word), "{said}");
        }
    }
}
