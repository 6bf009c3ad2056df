//! Checks whether LINE would accept a request.

use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HeaderMap};
use serde::Deserialize;
use serde_json::Value;
use uuid::Uuid;

use super::{AcceptedCall, ApiEndpoint};
use crate::MAX_TEXT;

const MAX_QUICK_REPLIES: usize = 13;

/// Why a call is refused. Contains no ids and no message text.
#[derive(Debug)]
pub(super) struct ApiRefusal {
    pub(super) status: u16,
    pub(super) why: &'static str,
}

impl ApiRefusal {
    pub(super) const fn new(status: u16, why: &'static str) -> Self {
        Self { status, why }
    }
}

/// A request in the form that LINE expects.
#[derive(Debug)]
pub(super) struct SimulatedApiRequest {
    pub(super) call: AcceptedCall,
    pub(super) retry_key: Option<Uuid>,
}

/// The body of any call; each endpoint has some of these members.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct CallBody {
    reply_token: String,
    to: String,
    messages: Vec<Value>,
    chat_id: String,
    loading_seconds: Option<u64>,
}

impl SimulatedApiRequest {
    pub(super) fn read(
        endpoint: ApiEndpoint,
        headers: &HeaderMap,
        body: &[u8],
        access_token: &str,
    ) -> Result<Self, ApiRefusal> {
        authorized(headers, access_token)?;
        if !text(headers, CONTENT_TYPE.as_str()).starts_with("application/json") {
            return Err(ApiRefusal::new(
                415,
                "Unsupported media type: application/json is expected",
            ));
        }
        let retry_key = retry_key(endpoint, headers)?;
        let body: CallBody = serde_json::from_slice(body).map_err(|_| {
            ApiRefusal::new(400, "The request body is no JSON of the expected form")
        })?;
        let call = AcceptedCall {
            endpoint,
            reply_token: None,
            to: None,
            retry_key: retry_key.map(|key| key.to_string()),
            messages: Vec::new(),
            loading_seconds: None,
        };
        let call = match endpoint {
            ApiEndpoint::Reply => reply(call, body),
            ApiEndpoint::Push => push(call, body),
            ApiEndpoint::Loading => loading(call, body),
        }?;
        Ok(Self { call, retry_key })
    }
}

fn authorized(headers: &HeaderMap, access_token: &str) -> Result<(), ApiRefusal> {
    let right = text(headers, AUTHORIZATION.as_str()).strip_prefix("Bearer ") == Some(access_token);
    right.then_some(()).ok_or(ApiRefusal::new(401, "Authentication failed: wrong access token"))
}

fn retry_key(endpoint: ApiEndpoint, headers: &HeaderMap) -> Result<Option<Uuid>, ApiRefusal> {
    let Some(key) = headers.get("x-line-retry-key") else { return Ok(None) };
    if endpoint != ApiEndpoint::Push {
        return Err(ApiRefusal::new(400, "A retry key came where none is taken"));
    }
    let key = key.to_str().ok().filter(|text| text.len() == 36);
    let key = key.and_then(|text| Uuid::try_parse(text).ok());
    key.map(Some).ok_or(ApiRefusal::new(400, "The retry key is no UUID"))
}

fn reply(call: AcceptedCall, body: CallBody) -> Result<AcceptedCall, ApiRefusal> {
    if body.reply_token.is_empty() {
        return Err(ApiRefusal::new(400, "Invalid reply token"));
    }
    let messages = checked(body.messages)?;
    Ok(AcceptedCall { reply_token: Some(body.reply_token), messages, ..call })
}

fn push(call: AcceptedCall, body: CallBody) -> Result<AcceptedCall, ApiRefusal> {
    if body.to.is_empty() {
        return Err(ApiRefusal::new(400, "The property, 'to', in the request body is invalid"));
    }
    Ok(AcceptedCall { to: Some(body.to), messages: checked(body.messages)?, ..call })
}

fn loading(call: AcceptedCall, body: CallBody) -> Result<AcceptedCall, ApiRefusal> {
    if !body.chat_id.starts_with('U') {
        return Err(ApiRefusal::new(400, "chatId is no user"));
    }
    let seconds = body.loading_seconds.unwrap_or(20);
    if !(5..=60).contains(&seconds) || !seconds.is_multiple_of(5) {
        return Err(ApiRefusal::new(400, "loadingSeconds is not 5 to 60 in steps of 5"));
    }
    Ok(AcceptedCall { to: Some(body.chat_id), loading_seconds: Some(seconds), ..call })
}

fn checked(messages: Vec<Value>) -> Result<Vec<Value>, ApiRefusal> {
    if !(1..=5).contains(&messages.len()) {
        return Err(ApiRefusal::new(400, "Size must be between 1 and 5: messages"));
    }
    messages.iter().try_for_each(check)?;
    Ok(messages)
}

fn check(message: &Value) -> Result<(), ApiRefusal> {
    let Some(kind) = message["type"].as_str() else {
        return Err(ApiRefusal::new(400, "A message has no type"));
    };
    if kind == "text" {
        let length = message["text"].as_str().unwrap_or_default().encode_utf16().count();
        if !(1..=MAX_TEXT).contains(&length) {
            return Err(ApiRefusal::new(400, "A text has no characters, or more than 5000"));
        }
    }
    let quick_replies = message["quickReply"]["items"].as_array();
    if quick_replies.is_some_and(|items| !(1..=MAX_QUICK_REPLIES).contains(&items.len())) {
        return Err(ApiRefusal::new(400, "Size must be between 1 and 13: quickReply/items"));
    }
    Ok(())
}

fn text<'a>(headers: &'a HeaderMap, name: &str) -> &'a str {
    headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default()
}
