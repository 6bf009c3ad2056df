//! Request and response bodies of commands.

use std::ops::RangeInclusive;

use axum::response::Response;
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use bytes::Bytes;
use hapax::command::{CommandState, CommandView, StoredResponse};
use hapax::millis;
use hyper::header::{HeaderName, HeaderValue};
use serde_json::{Map, Value};

use crate::api::v1::prelude::*;

/// The request to begin a command. Every field has a default.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[expect(dead_code, reason = "read field by field, strictly; this is what the documentation shows")]
pub(crate) struct BeginCommand {
    /// A hash of the request; a different one for the same key is refused.
    #[schema(max_length = 255, nullable = false)]
    fingerprint: Option<String>,
    /// How long the owner is presumed alive without completing.
    #[schema(default = 30_000, minimum = 1, maximum = 3_600_000, nullable = false)]
    lease_ms: Option<u64>,
    /// How long the response is kept.
    #[schema(default = 86_400_000, minimum = 1, maximum = 31_622_400_000_u64, nullable = false)]
    retention_ms: Option<u64>,
    /// How long to wait for the response of another attempt.
    #[schema(default = 0, minimum = 0, maximum = 60_000, nullable = false)]
    wait_ms: Option<u64>,
    /// The policy for a command whose earlier owner may or may not have acted.
    #[serde(default)]
    on_unknown: OnUnknownField,
    /// A name of the owner that operators see beside it; never anything that identifies a person. By
    /// default the name of the node.
    #[schema(min_length = 1, max_length = 64, nullable = false)]
    label: Option<String>,
}

/// The policy for a command whose earlier owner may or may not have acted.
#[derive(Default, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
#[schema(as = OnUnknown, default = "refuse")]
pub(crate) enum OnUnknownField {
    /// Respond `outcome-unknown`.
    #[default]
    Refuse,
    /// Run the command again as the next attempt.
    Rerun,
}

/// A command that the caller is to run.
#[derive(Serialize, ToSchema)]
pub(crate) struct BegunCommand {
    #[schema(value_type = String, example = "pending")]
    pub(super) state: &'static str,
    /// The secret of the command; its bearer may complete or fail it.
    pub(super) token: String,
    /// Grows with every attempt; pass it to the systems that you write to.
    pub(super) fence: u64,
    /// 1 for the first attempt.
    pub(super) attempt: u32,
}

/// The response of a command, byte for byte.
#[derive(Serialize, ToSchema)]
pub(crate) struct ShownResponse {
    /// The status that the command was completed with.
    #[schema(minimum = 100, maximum = 599)]
    status: u16,
    /// Strings; an array of strings for a repeated header.
    #[schema(value_type = Object)]
    headers: Map<String, Value>,
    /// The body, if it is UTF-8.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    body: Option<String>,
    /// The body in base64, if it is not UTF-8.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    body_base64: Option<String>,
}

/// A command that ran before.
#[derive(Serialize, ToSchema)]
pub(crate) struct CompletedCommand {
    #[schema(value_type = String, example = "completed")]
    pub(super) state: &'static str,
    #[serde(flatten)]
    pub(super) response: ShownResponse,
    /// How long the response is still kept.
    pub(super) expires_in_ms: u64,
}

/// The request to complete a command.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[expect(dead_code, reason = "read field by field, strictly; this is what the documentation shows")]
pub(crate) struct CompleteCommand {
    /// The secret of the command.
    #[schema(min_length = 1, max_length = 255)]
    token: String,
    /// The HTTP status of the response.
    #[schema(minimum = 100, maximum = 599)]
    status: u16,
    /// Strings; an array of strings for a repeated header.
    #[schema(value_type = Object, required = false)]
    headers: Option<Map<String, Value>>,
    /// The body as text.
    #[schema(nullable = false)]
    body: Option<String>,
    /// The body in base64, if it is not UTF-8; excludes `body`.
    #[schema(nullable = false)]
    body_base64: Option<String>,
}

/// A command that was completed.
#[derive(Serialize, ToSchema)]
#[schema(as = Completed)]
pub(crate) struct CompletedState {
    #[schema(value_type = String, example = "completed")]
    state: &'static str,
}

pub(in crate::api) fn completed_response() -> Response {
    json_response(StatusCode::OK, &CompletedState { state: "completed" })
}

/// The state of a command.
#[derive(Serialize, ToSchema)]
pub(crate) struct CommandShown {
    /// `pending`, `unknown`, `completed` or `failed`.
    #[schema(value_type = String, example = "completed")]
    state: &'static str,
    /// The number of the last attempt.
    attempt: u32,
    /// The fence of the last attempt.
    #[schema(required)]
    fence: Option<u64>,
    /// How long ago the last attempt began.
    #[schema(required)]
    begun_ms_ago: Option<u64>,
    #[serde(flatten)]
    details: CommandDetails,
}

/// The fields of one state of a command.
#[derive(Serialize, ToSchema)]
#[serde(untagged)]
enum CommandDetails {
    Pending {
        /// How long the owner of a pending command is presumed alive.
        lease_expires_in_ms: u64,
    },
    Unknown {
        /// How long ago the lease of an unknown command expired.
        unknown_for_ms: u64,
        /// How long the outcome is kept.
        expires_in_ms: u64,
    },
    Completed {
        /// How long the outcome is kept.
        expires_in_ms: u64,
        #[serde(flatten)]
        response: ShownResponse,
    },
    /// A completed command whose response is hidden from this operator.
    Masked {
        /// How long the outcome is kept.
        expires_in_ms: u64,
        /// The status that the command was completed with.
        #[schema(minimum = 100, maximum = 599)]
        status: u16,
        /// Null, because it is masked.
        #[schema(required, value_type = Option<Object>)]
        headers: Option<Map<String, Value>>,
        /// Null, because it is masked.
        #[schema(required)]
        body: Option<String>,
    },
    Failed {
        /// How long the outcome is kept.
        expires_in_ms: u64,
    },
}

impl CommandShown {
    /// The same command without what its response says.
    pub(in crate::api) fn masked(self) -> Self {
        let details = match self.details {
            CommandDetails::Completed { expires_in_ms, response } => {
                let status = response.status;
                CommandDetails::Masked { expires_in_ms, status, headers: None, body: None }
            }
            other => other,
        };
        Self { details, ..self }
    }

    pub(in crate::api) fn new(view: CommandView) -> Self {
        let (state, details) = match view.state {
            CommandState::Pending { lease_left } => {
                ("pending", CommandDetails::Pending { lease_expires_in_ms: millis(lease_left) })
            }
            CommandState::Unknown { since, expires_in } => {
                let (unknown_for_ms, expires_in_ms) = (millis(since), millis(expires_in));
                ("unknown", CommandDetails::Unknown { unknown_for_ms, expires_in_ms })
            }
            CommandState::Completed { response, expires_in } => {
                let (expires_in_ms, response) = (millis(expires_in), shown_response(&response));
                ("completed", CommandDetails::Completed { expires_in_ms, response })
            }
            CommandState::Failed { expires_in } => {
                ("failed", CommandDetails::Failed { expires_in_ms: millis(expires_in) })
            }
        };
        let (fence, begun_ms_ago) = (view.fence.map(|fence| fence.0), view.begun_ago.map(millis));
        Self { state, attempt: view.attempt, fence, begun_ms_ago, details }
    }
}

/// How many headers a response may have, counting each repetition.
const MOST_HEADERS: usize = 256;

/// Parses `status`, `headers`, and `body` or `body_base64`.
pub(in crate::api) fn read_response(
    fields: &mut JsonFields,
    statuses: RangeInclusive<u64>,
) -> Result<StoredResponse, Problem> {
    let status = required("status", fields.number("status", statuses)?)?;
    let headers = fields.object("headers")?.map_or(Ok(Vec::new()), headers)?;
    let body = match (fields.text("body")?, fields.text("body_base64")?) {
        (Some(_), Some(_)) => {
            return Err(Problem::invalid("fields `body` and `body_base64` exclude each other"));
        }
        (Some(text), None) => text.into(),
        (None, Some(text)) => match BASE64_STANDARD.decode(text) {
            Ok(bytes) => bytes.into(),
            Err(_) => return Err(Problem::invalid("field `body_base64` takes padded base64")),
        },
        (None, None) => Bytes::new(),
    };
    let status = u16::try_from(status).expect("at most 599");
    Ok(StoredResponse { status, headers, body })
}

fn headers(given: Map<String, Value>) -> Result<Vec<(String, Bytes)>, Problem> {
    let wrong = |what| Problem::invalid(format!("field `headers` {what}"));
    let mut headers: Vec<(String, Bytes)> = Vec::new();
    let mut names: Vec<HeaderName> = Vec::new();
    for (name, value) in given {
        let parsed: HeaderName = name.parse().map_err(|_| wrong("has an invalid name"))?;
        if names.contains(&parsed) {
            return Err(wrong("has a repeated name; a repeated header is an array"));
        }
        names.push(parsed);
        let values = match value {
            Value::Array(values) => values,
            value => vec![value],
        };
        for value in values {
            let Value::String(value) = value else {
                return Err(wrong("takes strings and arrays of strings"));
            };
            if HeaderValue::from_str(&value).is_err() {
                return Err(wrong("has a value with control characters"));
            }
            headers.push((name.clone(), value.into()));
        }
        if headers.len() > MOST_HEADERS || names.len() > MOST_HEADERS {
            return Err(wrong(&format!("takes at most {MOST_HEADERS} headers")));
        }
    }
    Ok(headers)
}

pub(in crate::api) fn shown_response(response: &StoredResponse) -> ShownResponse {
    let mut headers = Map::new();
    for (name, value) in &response.headers {
        // The API accepts only text; header values of other writers may be any bytes.
        let value = Value::String(String::from_utf8_lossy(value).into_owned());
        match headers.get_mut(name) {
            None => {
                headers.insert(name.clone(), value);
            }
            Some(Value::Array(values)) => values.push(value),
            Some(first) => *first = Value::Array(vec![first.take(), value]),
        }
    }
    let text = std::str::from_utf8(&response.body).ok().map(str::to_owned);
    let body_base64 = text.is_none().then(|| BASE64_STANDARD.encode(&response.body));
    ShownResponse { status: response.status, headers, body: text, body_base64 }
}
