//! Events to publish: checked, fingerprinted and encoded once.

use std::sync::Arc;

use serde::Serialize;
use serde_json::Value;

use super::BusConfig;
use crate::key::{InvalidKey, MAX_NAME, check};
use crate::log::{LogEvent, MAX_NUMBER};
use crate::{Fingerprint, Key, Tenant, canonical_json};

/// Stage names that mean something to readers of a stream. A browser's `EventSource` calls its own
/// handlers for events named `error`, `open` and `message`.
pub const RESERVED_STAGES: [&str; 6] = ["gap", "snapshot", "end", "error", "open", "message"];
/// The longest timestamp, in bytes.
const MAX_TIMESTAMP: usize = 64;

/// An event to publish. Its identity is tenant, domain, job, stage and seq. Published again with the
/// same content, it is recognised as a duplicate; with another content, it is refused.
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
    /// The kind of job.
    pub domain: String,
    /// The job's id.
    pub job_id: String,
    /// The step that the job has reached.
    pub stage: String,
    /// The producer's number; the event with the highest one is the job's state.
    pub seq: u64,
    /// The content.
    pub data: Value,
    /// Whether it is the job's last event.
    pub closes: bool,
    /// When it happened, as its producer writes it; `None` for now. Not part of the content.
    pub timestamp: Option<String>,
}

impl NewEvent {
    /// An event without data.
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

    /// Sets the content.
    #[must_use]
    pub fn data(mut self, data: Value) -> Self {
        self.data = data;
        self
    }

    /// Marks it as the job's last event.
    #[must_use]
    pub fn closing(mut self) -> Self {
        self.closes = true;
        self
    }

    /// Sets when it happened.
    #[must_use]
    pub fn timestamp(mut self, timestamp: impl Into<String>) -> Self {
        self.timestamp = Some(timestamp.into());
        self
    }

    /// The event as a log stores it: checked, fingerprinted, and encoded once for all readers.
    pub(super) fn sealed(
        &self,
        tenant: &Tenant,
        config: &BusConfig,
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
        if payload.len() > config.max_event_bytes {
            let (bytes, limit) = (payload.len(), config.max_event_bytes);
            return Err(InvalidEvent::TooLarge { bytes, limit });
        }
        let closes = self.closes
            || config.closing_event.as_ref().is_some_and(|event| event.is(&self.stage, self.seq));
        Ok(LogEvent {
            job,
            stage: self.stage.as_str().into(),
            seq: self.seq,
            fingerprint: self.fingerprint(),
            payload: payload.into(),
            closes,
        })
    }

    /// A hash of the content, independent of member order, white space and timestamp.
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

/// The JSON of an event as readers get it, without the offset, which the log assigns.
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

/// Why an event cannot be published. The message names the field and its limit, never the value.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidEvent {
    /// The domain, job id or stage is invalid.
    #[error(transparent)]
    Key(#[from] InvalidKey),
    /// The stage is one of [`RESERVED_STAGES`].
    #[error("stage is one of {}, which are reserved; use another name", RESERVED_STAGES.join(", "))]
    ReservedStage,
    /// The seq is too large.
    #[error("seq is too large; it takes a whole number from 0 to {MAX_NUMBER} (2^53 - 1)")]
    Seq,
    /// The timestamp is too long or has control characters.
    #[error(
        "timestamp takes up to {MAX_TIMESTAMP} bytes without control characters, or leave it out"
    )]
    Timestamp,
    /// The encoded event is too large.
    #[error(
        "the event has {bytes} bytes; it takes up to {limit}: store large data elsewhere and publish where it is"
    )]
    TooLarge {
        /// How large it is, encoded.
        bytes: usize,
        /// How large it may be.
        limit: usize,
    },
}

impl InvalidEvent {
    /// Always false: the event itself must change.
    pub const fn is_retryable(&self) -> bool {
        false
    }
}

/// An event that closes its job by convention, also where it is not marked as the last one.
///
/// ```
/// use hapax_core::bus::{BusConfig, ClosingEvent};
/// let config = BusConfig::default().closing_event(ClosingEvent::new("done", 51));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClosingEvent {
    stage: Arc<str>,
    seq: u64,
}

impl ClosingEvent {
    /// The event of this stage with this seq.
    pub fn new(stage: &str, seq: u64) -> Self {
        Self { stage: stage.into(), seq }
    }

    fn is(&self, stage: &str, seq: u64) -> bool {
        self.seq == seq && *self.stage == *stage
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
    fn event_fingerprint_covers_json_and_final_not_timestamp() {
        let said = |text: &str| event().data(serde_json::from_str(text).unwrap());
        let first = sealed(&said(r#"{"a":1,"b":[2]}"#)).unwrap().fingerprint;
        let again = sealed(&said(r#"{ "b": [2], "a": 1 }"#).timestamp("later")).unwrap();
        assert_eq!(first, again.fingerprint);
        assert_ne!(first, sealed(&said(r#"{"a":1,"b":[3]}"#)).unwrap().fingerprint);
        assert_ne!(first, sealed(&said(r#"{"a":1,"b":[2]}"#).closing()).unwrap().fingerprint);
    }

    #[test]
    fn event_is_encoded_without_its_offset() {
        let payload = sealed(&event().data(json!({"n": 1})).closing()).unwrap().payload;
        let text = r#"{"domain":"scan","job_id":"job-1","stage":"vision","seq":10,"data":{"n":1},"final":true,"timestamp":"now"}"#;
        assert_eq!(payload, text);
    }

    #[test]
    fn event_closes_its_job_if_marked_or_by_convention() {
        let closes = |event: &NewEvent, config: &BusConfig| {
            event.sealed(&Tenant::default(), config, "").unwrap().closes
        };
        let done = NewEvent::new("scan", "j", "done", 51);
        let by_convention = BusConfig::default().closing_event(ClosingEvent::new("done", 51));
        let never = BusConfig::default();
        assert!(closes(&done, &by_convention) && !closes(&done, &never));
        assert!(!closes(&NewEvent { seq: 50, ..done.clone() }, &by_convention));
        assert!(closes(&done.closing(), &never));
    }

    #[test]
    fn invalid_event_names_field_and_limit() {
        let config = BusConfig::default().max_event_bytes(200);
        for (wrong, word) in [
            (NewEvent { domain: String::new(), ..event() }, "domain"),
            (NewEvent { job_id: "j".repeat(256), ..event() }, "job_id has 256 bytes"),
            (NewEvent { stage: "a b".into(), ..event() }, "stage"),
            (NewEvent { stage: "snapshot".into(), ..event() }, "reserved"),
            (NewEvent { seq: MAX_NUMBER + 1, ..event() }, "9007199254740991"),
            (event().timestamp("\n"), "timestamp"),
            (event().data("x".repeat(200).into()), "takes up to 200"),
        ] {
            let said = wrong.sealed(&Tenant::default(), &config, "").unwrap_err().to_string();
            assert!(said.contains(word), "{said}");
        }
    }

    /// The usual design gives each stage ten numbers: the eleventh event of `vision` is taken for the
    /// first one of `rule`.
    #[test]
    fn hole_13_the_eleventh_event_of_a_stage_is_its_own() {
        let identity = |event: &NewEvent| {
            let event = sealed(event).unwrap();
            (event.job, event.stage, event.seq)
        };
        let eleventh = identity(&NewEvent::new("scan", "job-1", "vision", 20));
        assert_ne!(eleventh, identity(&NewEvent::new("scan", "job-1", "rule", 20)));
    }
}
