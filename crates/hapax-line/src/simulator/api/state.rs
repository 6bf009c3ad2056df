//! The calls that the simulated API recorded, and the faults that a test injects.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde_json::Value;
use tokio::sync::Semaphore;
use uuid::Uuid;

use super::check::{ApiRefusal, SimulatedApiRequest};
use super::{AcceptedCall, ApiEndpoint, ApiFault};

pub(super) struct ApiState {
    pub(super) access_token: String,
    calls: Mutex<Calls>,
    /// One permit for each accepted call that `SimulatedApi::next` has not returned yet.
    pub(super) unreturned: Semaphore,
}

#[derive(Default)]
pub(super) struct Calls {
    pub(super) accepted: Vec<AcceptedCall>,
    pub(super) returned: usize,
    used_tokens: HashSet<String>,
    doubtful_tokens: HashSet<String>,
    pushes: HashMap<Uuid, Push>,
    pub(super) violations: Vec<String>,
    pub(super) faults: HashMap<ApiEndpoint, VecDeque<ApiFault>>,
    pub(super) monthly_limit: Option<u64>,
}

/// The push that a retry key belongs to.
struct Push {
    request_id: String,
    to: Option<String>,
    messages: Vec<Value>,
}

impl ApiState {
    pub(super) fn new(access_token: &str) -> Self {
        Self {
            access_token: access_token.to_owned(),
            calls: Mutex::default(),
            unreturned: Semaphore::new(0),
        }
    }

    pub(super) fn calls(&self) -> MutexGuard<'_, Calls> {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records that the caller cannot know whether its reply was accepted, and so must not repeat
    /// it.
    pub(super) fn doubt(&self, body: &[u8]) {
        let body: Value = serde_json::from_slice(body).unwrap_or_default();
        if let Some(token) = body["replyToken"].as_str() {
            self.calls().doubtful_tokens.insert(token.to_owned());
        }
    }

    /// Records a call as accepted, unless its retry key was accepted before; then the id of that request.
    pub(super) fn accept(
        &self,
        request: SimulatedApiRequest,
        request_id: &str,
    ) -> Result<Option<String>, ApiRefusal> {
        let SimulatedApiRequest { call, retry_key } = request;
        let mut calls = self.calls();
        if let Some(token) = &call.reply_token {
            calls.use_token(token)?;
        }
        if let Some(key) = retry_key
            && let Some(first) = calls.push_before(key, &call, request_id)
        {
            return Ok(Some(first));
        }
        calls.accepted.push(call);
        self.unreturned.add_permits(1);
        Ok(None)
    }
}

impl Calls {
    fn use_token(&mut self, token: &str) -> Result<(), ApiRefusal> {
        if !self.used_tokens.insert(token.to_owned()) {
            return Err(ApiRefusal::new(400, "Invalid reply token"));
        }
        if self.doubtful_tokens.contains(token) {
            let why = "A reply was repeated although nobody knew what became of it";
            self.violations.push(why.to_owned());
        }
        Ok(())
    }

    /// The id of the request in which this key was accepted; records this request if there is none.
    fn push_before(&mut self, key: Uuid, call: &AcceptedCall, request_id: &str) -> Option<String> {
        match self.pushes.entry(key) {
            Entry::Vacant(free) => {
                let (to, messages) = (call.to.clone(), call.messages.clone());
                free.insert(Push { request_id: request_id.to_owned(), to, messages });
                None
            }
            Entry::Occupied(push) => {
                let push = push.get();
                if push.to != call.to || push.messages != call.messages {
                    self.violations.push("A retry key came again with another message".to_owned());
                }
                Some(push.request_id.clone())
            }
        }
    }
}
