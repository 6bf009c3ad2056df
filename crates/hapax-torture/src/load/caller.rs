//! One caller of a tenant: its calls, what was acknowledged, and whether it still holds.

use std::io;

use serde_json::json;

use super::raw_http::{LoadConnection, RawAnswer, request};

/// A kind of call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CallKind {
    /// A lock is taken and released.
    Lock,
    /// A command is begun and completed.
    Command,
    /// A record is written.
    Record,
    /// An event is published.
    Event,
    /// A keyed request through the proxy.
    Proxied,
}

/// How a call ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CallEnd {
    Served,
    /// The server said that it has no room now (429, 503).
    Refused,
    /// Cut, timed out, or another answer than those.
    Failed,
}

/// A write that was acknowledged, and what was answered.
pub(crate) struct AcknowledgedWrite {
    kind: CallKind,
    key: String,
    answer: String,
}

impl AcknowledgedWrite {
    /// The number of the caller among those of the generator with this name.
    pub(crate) fn caller_number(&self, generator: &str) -> usize {
        let rest = self.key.strip_prefix(generator).unwrap_or_default();
        rest.split('-').nth(1).and_then(|number| number.parse().ok()).unwrap_or(0)
    }
}

/// One connection to a server, with a tenant's token.
pub(crate) struct LoadCaller {
    connection: LoadConnection,
    token: String,
    prefix: String,
    calls: u64,
    /// How long the server keeps what is written, in milliseconds; then it is not asked for again.
    retention: Option<u64>,
    pub(crate) acknowledged: Vec<AcknowledgedWrite>,
}

impl LoadCaller {
    /// `prefix` is for keys, and different for each caller of a tenant.
    pub(crate) fn new(address: &str, token: &str, prefix: String, retention: Option<u64>) -> Self {
        Self {
            connection: LoadConnection::to(address),
            token: token.to_owned(),
            prefix,
            calls: 0,
            retention,
            acknowledged: Vec::new(),
        }
    }

    /// Makes a call with a new key.
    pub(crate) async fn call(&mut self, kind: CallKind) -> CallEnd {
        self.calls += 1;
        let key = format!("{}-{}", self.prefix, self.calls);
        let end = match kind {
            CallKind::Lock => self.take_and_release(&key).await,
            CallKind::Command => self.begin_and_complete(&key).await,
            CallKind::Record | CallKind::Event | CallKind::Proxied => self.write(kind, &key).await,
        };
        match end {
            Ok(Ok(())) => CallEnd::Served,
            Ok(Err(answer)) if [429, 503].contains(&answer.status) => CallEnd::Refused,
            Ok(Err(_)) | Err(_) => CallEnd::Failed,
        }
    }

    async fn send(
        &mut self,
        method: &str,
        path: &str,
        headers: &str,
        body: &str,
    ) -> io::Result<RawAnswer> {
        let request = request(method, path, &self.token, headers, body);
        self.connection.exchange(&request).await
    }

    async fn take_and_release(&mut self, key: &str) -> io::Result<Result<(), RawAnswer>> {
        let path = format!("/v1/locks/{key}");
        let answer = self.send("POST", &path, "", r#"{"ttl_ms":2000}"#).await?;
        if !answer.is_success() {
            return Ok(Err(answer));
        }
        let token = answer.json()["token"].as_str().unwrap_or_default().to_owned();
        let answer = self.send("DELETE", &path, &format!("Hapax-Token: {token}\r\n"), "").await?;
        Ok(if answer.is_success() { Ok(()) } else { Err(answer) })
    }

    async fn begin_and_complete(&mut self, key: &str) -> io::Result<Result<(), RawAnswer>> {
        let answer = self.begin(key).await?;
        if !answer.is_success() {
            return Ok(Err(answer));
        }
        let token = answer.json()["token"].as_str().unwrap_or_default().to_owned();
        let body = json!({"token": token, "status": 201, "body": format!("answer of {key}")});
        let path = format!("/v1/commands/load/{key}");
        let answer = self.send("PUT", &path, "", &body.to_string()).await?;
        if !answer.is_success() {
            return Ok(Err(answer));
        }
        self.acknowledge(CallKind::Command, key, format!("answer of {key}"));
        Ok(Ok(()))
    }

    async fn begin(&mut self, key: &str) -> io::Result<RawAnswer> {
        let path = format!("/v1/commands/load/{key}");
        let mut body = json!({"fingerprint": "load", "lease_ms": 60_000});
        if let Some(retention) = self.retention {
            body["retention_ms"] = retention.into();
        }
        self.send("POST", &path, "", &body.to_string()).await
    }

    async fn write(&mut self, kind: CallKind, key: &str) -> io::Result<Result<(), RawAnswer>> {
        let answer = self.send_write(kind, key).await?;
        if !answer.is_success() {
            return Ok(Err(answer));
        }
        if let Some(text) = answer_text(kind, key, &answer) {
            self.acknowledge(kind, key, text);
        }
        Ok(Ok(()))
    }

    async fn send_write(&mut self, kind: CallKind, key: &str) -> io::Result<RawAnswer> {
        match kind {
            CallKind::Record => {
                let body = json!({"key": key}).to_string();
                let ttl = self.retention.map_or_else(String::new, |ttl| format!("?ttl_ms={ttl}"));
                self.send("PUT", &format!("/v1/records/{key}{ttl}"), "", &body).await
            }
            CallKind::Event => {
                let seq = key.rsplit('-').next().and_then(|seq| seq.parse::<u64>().ok());
                // A job that goes on for ever would never be forgotten.
                let job = match self.retention {
                    Some(_) => format!("{}-{}", self.prefix, self.calls / 50),
                    None => self.prefix.clone(),
                };
                let event = json!({
                    "domain": "load", "job_id": job, "stage": "run", "seq": seq, "data": {},
                });
                self.send("POST", "/v1/events", "", &event.to_string()).await
            }
            _ => {
                let key = format!("Idempotency-Key: \"{key}\"\r\n");
                self.send("POST", "/orders", &key, r#"{"item":"tea"}"#).await
            }
        }
    }

    fn acknowledge(&mut self, kind: CallKind, key: &str, answer: String) {
        if self.retention.is_some() {
            return;
        }
        self.acknowledged.push(AcknowledgedWrite { kind, key: key.to_owned(), answer });
    }

    /// Asks for what was acknowledged, with a few tries; what is wrong with it, or `None`.
    pub(crate) async fn ask_again(&mut self, write: &AcknowledgedWrite) -> Option<String> {
        let mut wrong = None;
        for _ in 0..10 {
            match self.ask_once(write).await {
                Ok(answer) if ![429, 503].contains(&answer.status) => {
                    let said = repeated_text(write, &answer);
                    let is_right = said.as_ref() == Some(&write.answer);
                    return (!is_right).then(|| {
                        format!(
                            "{}: {:?} was acknowledged, {} {said:?} is answered",
                            write.key, write.answer, answer.status
                        )
                    });
                }
                Ok(answer) => wrong = Some(format!("{}: {}", write.key, answer.status)),
                Err(error) => wrong = Some(format!("{}: {error}", write.key)),
            }
            tokio::time::sleep(std::time::Duration::from_millis(200)).await;
        }
        wrong
    }

    async fn ask_once(&mut self, write: &AcknowledgedWrite) -> io::Result<RawAnswer> {
        match write.kind {
            CallKind::Command => self.begin(&write.key).await,
            CallKind::Record => {
                self.send("GET", &format!("/v1/records/{}", write.key), "", "").await
            }
            kind => self.send_write(kind, &write.key).await,
        }
    }
}

/// What a first answer says.
fn answer_text(kind: CallKind, key: &str, answer: &RawAnswer) -> Option<String> {
    match kind {
        CallKind::Record => Some(key.to_owned()),
        CallKind::Event => Some(answer.json()["offset"].as_u64()?.to_string()),
        _ => String::from_utf8(answer.body.clone()).ok(),
    }
}

/// What a repeated answer says; `None` if the call was not known any more.
fn repeated_text(write: &AcknowledgedWrite, answer: &RawAnswer) -> Option<String> {
    let json = answer.json();
    match write.kind {
        CallKind::Command => Some(json["body"].as_str()?.to_owned()),
        CallKind::Record => Some(json["key"].as_str()?.to_owned()),
        CallKind::Event if json["published"] == true => None,
        CallKind::Event => Some(json["offset"].as_u64()?.to_string()),
        _ if answer.is_replayed => String::from_utf8(answer.body.clone()).ok(),
        _ => None,
    }
}
