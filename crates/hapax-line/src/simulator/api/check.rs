//! Whether LINE would take a request.

use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HeaderMap};
use serde::Deserialize;
use serde_json::Value;
use uuid::Uuid;

use super::{Endpoint, Said};
use crate::MAX_TEXT;

const MAX_QUICK_REPLIES: usize = 13;

/// What LINE does not take. Names nobody, and shows nothing that was said.
#[derive(Debug)]
pub(super) struct Refusal {
    pub(super) status: u16,
    pub(super) why: &'static str,
}

impl Refusal {
    pub(super) const fn new(status: u16, why: &'static str) -> Self {
        Self { status, why }
    }
}

/// A request that is as LINE expects it.
#[derive(Debug)]
pub(super) struct Wanted {
    pub(super) said: Said,
    pub(super) retry_key: Option<Uuid>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Reply {
    reply_token: String,
    messages: Vec<Value>,
}

#[derive(Deserialize)]
struct Push {
    to: String,
    messages: Vec<Value>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Loading {
    chat_id: String,
    loading_seconds: Option<u64>,
}

impl Wanted {
    pub(super) fn read(
        endpoint: Endpoint,
        headers: &HeaderMap,
        body: &[u8],
        access_token: &str,
    ) -> Result<Self, Refusal> {
        authorized(headers, access_token)?;
        if !text(headers, CONTENT_TYPE.as_str()).starts_with("application/json") {
            return Err(Refusal::new(415, "Unsupported media type: application/json is expected"));
        }
        let retry_key = retry_key(endpoint, headers)?;
        let mut said = match endpoint {
            Endpoint::Reply => reply(parse(body)?),
            Endpoint::Push => push(parse(body)?),
            Endpoint::Loading => loading(parse(body)?),
        }?;
        said.retry_key = retry_key.map(|key| key.to_string());
        Ok(Self { said, retry_key })
    }
}

fn authorized(headers: &HeaderMap, access_token: &str) -> Result<(), Refusal> {
    let right = text(headers, AUTHORIZATION.as_str()).strip_prefix("Bearer ") == Some(access_token);
    right.then_some(()).ok_or(Refusal::new(401, "Authentication failed: wrong access token"))
}

fn retry_key(endpoint: Endpoint, headers: &HeaderMap) -> Result<Option<Uuid>, Refusal> {
    let Some(key) = headers.get("x-line-retry-key") else { return Ok(None) };
    if endpoint != Endpoint::Push {
        return Err(Refusal::new(400, "A retry key came where none is taken"));
    }
    let key = key.to_str().ok().filter(|text| text.len() == 36);
    let key = key.and_then(|text| Uuid::try_parse(text).ok());
    key.map(Some).ok_or(Refusal::new(400, "The retry key is no UUID"))
}

fn parse<'a, T: Deserialize<'a>>(body: &'a [u8]) -> Result<T, Refusal> {
    serde_json::from_slice(body)
        .map_err(|_| Refusal::new(400, "The request body is no JSON of the expected form"))
}

fn reply(body: Reply) -> Result<Said, Refusal> {
    if body.reply_token.is_empty() {
        return Err(Refusal::new(400, "Invalid reply token"));
    }
    let mut said = said(Endpoint::Reply, checked(body.messages)?);
    said.reply_token = Some(body.reply_token);
    Ok(said)
}

fn push(body: Push) -> Result<Said, Refusal> {
    if body.to.is_empty() {
        return Err(Refusal::new(400, "The property, 'to', in the request body is invalid"));
    }
    let mut said = said(Endpoint::Push, checked(body.messages)?);
    said.to = Some(body.to);
    Ok(said)
}

fn loading(body: Loading) -> Result<Said, Refusal> {
    if !body.chat_id.starts_with('U') {
        return Err(Refusal::new(400, "chatId is no user"));
    }
    let seconds = body.loading_seconds.unwrap_or(20);
    if !(5..=60).contains(&seconds) || !seconds.is_multiple_of(5) {
        return Err(Refusal::new(400, "loadingSeconds is not 5 to 60 in steps of 5"));
    }
    let mut said = said(Endpoint::Loading, Vec::new());
    (said.to, said.loading_seconds) = (Some(body.chat_id), Some(seconds));
    Ok(said)
}

fn said(endpoint: Endpoint, messages: Vec<Value>) -> Said {
    Said { endpoint, reply_token: None, to: None, retry_key: None, messages, loading_seconds: None }
}

fn checked(messages: Vec<Value>) -> Result<Vec<Value>, Refusal> {
    if !(1..=5).contains(&messages.len()) {
        return Err(Refusal::new(400, "Size must be between 1 and 5: messages"));
    }
    messages.iter().try_for_each(check)?;
    Ok(messages)
}

fn check(message: &Value) -> Result<(), Refusal> {
    let Some(kind) = message["type"].as_str() else {
        return Err(Refusal::new(400, "A message has no type"));
    };
    if kind == "text" {
        let length = message["text"].as_str().unwrap_or_default().encode_utf16().count();
        if !(1..=MAX_TEXT).contains(&length) {
            return Err(Refusal::new(400, "A text has no characters, or more than 5000"));
        }
    }
    let quick_replies = message["quickReply"]["items"].as_array();
    if quick_replies.is_some_and(|items| !(1..=MAX_QUICK_REPLIES).contains(&items.len())) {
        return Err(Refusal::new(400, "Size must be between 1 and 13: quickReply/items"));
    }
    Ok(())
}

fn text<'a>(headers: &'a HeaderMap, name: &str) -> &'a str {
    headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default()
}
