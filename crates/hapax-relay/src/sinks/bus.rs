//! hapax's own bus as a sink.

use async_trait::async_trait;
use hapax_core::bus::{Bus, BusError, NewEvent};
use hapax_core::log::Appended;
use serde::Deserialize;
use serde_json::Value;

use crate::{DeliveryError, OutboundMessage, Sink};

/// The name of this sink.
pub(crate) const BUS: &str = "bus";

/// Publishes rows as events of jobs. The payload has the same form as in `POST /v1/events`:
/// `{"domain", "job_id", "stage", "seq", "data"?, "final"?, "timestamp"?}`;
/// the tenant is the row's. Topic, key and headers are not used.
///
/// The event's identity (job, stage, seq) makes a second delivery a duplicate.
pub struct BusSink(Bus);

impl BusSink {
    /// Publishes events on this bus.
    pub fn new(bus: Bus) -> Self {
        Self(bus)
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PostedEvent {
    domain: String,
    job_id: String,
    stage: String,
    seq: u64,
    #[serde(default)]
    data: Value,
    #[serde(default, rename = "final")]
    closes: bool,
    timestamp: Option<String>,
}

#[async_trait]
impl Sink for BusSink {
    fn name(&self) -> &'static str {
        BUS
    }

    async fn send(&self, message: &OutboundMessage) -> Result<(), DeliveryError> {
        // The parser's error is dropped, because it may repeat the payload.
        let PostedEvent { domain, job_id, stage, seq, data, closes, timestamp } =
            serde_json::from_slice(&message.item.payload).map_err(|_| {
                DeliveryError::refused("the payload is no event as POST /v1/events takes it")
                    .permanent()
            })?;
        let event = NewEvent { domain, job_id, stage, seq, data, closes, timestamp };
        let bus = self.0.clone().tenant(message.item.tenant.clone());
        match bus.publish(&event).await {
            Ok(Appended::Published(_) | Appended::Duplicate(_)) => Ok(()),
            Ok(Appended::Conflict) => {
                let reason = "an event of the same job, stage and seq has another content";
                Err(DeliveryError::refused(reason).permanent())
            }
            Ok(Appended::Closed) => {
                Err(DeliveryError::refused("the job has had its last event").permanent())
            }
            Err(BusError::Invalid(error)) => {
                Err(DeliveryError::refused(error.to_string()).permanent())
            }
            Err(BusError::Store(error)) if error.is_transient() || error.is_final() => {
                Err(DeliveryError::unreachable(error.to_string()))
            }
            // The error concerns the stored data of this job; other jobs may work.
            Err(error) => Err(DeliveryError::refused(error.to_string())),
        }
    }

    async fn check(&self) -> Result<(), DeliveryError> {
        let answer = self.0.store().ping().await;
        answer.map_err(|error| DeliveryError::unreachable(error.to_string()))
    }
}
