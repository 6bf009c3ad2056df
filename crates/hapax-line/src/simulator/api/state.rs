//! The calls that the simulated API recorded, and the faults that a test injects.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde_json::Value;
use tokio::sync::Semaphore;
use uuid::Uuid;

use super::check::{ApiRefusal, SimulatedApiRequest};
use super::{AcceptedCall, ApiEndpoint, ApiFault};

pub(super) struct ApiState {
    access_token: String,
    recorded: Mutex<Calls>,
    /// One permit for each accepted call that `next` has not returned yet.
    unreturned: Semaphore,
}

#[derive(Default)]
struct Calls {
    calls: Vec<AcceptedCall>,
    returned: usize,
    used_tokens: HashSet<String>,
    doubtful_tokens: HashSet<String>,
    pushes: HashMap<Uuid, Push>,
    violations: Vec<String>,
    faults: HashMap<ApiEndpoint, VecDeque<ApiFault>>,
}

/// The push that a retry key belongs to.
struct Push {
    request_id: String,
    to: Option<String>,
    messages: Vec<Value>,
}

pub(super) enum AcceptResult {
    New,
    /// The same retry key was accepted before, in the request with this id.
    Repeated(String),
}

impl ApiState {
    pub(super) fn new(access_token: &str) -> Self {
        Self {
            access_token: access_token.to_owned(),
            recorded: Mutex::default(),
            unreturned: Semaphore::new(0),
        }
    }

    pub(super) fn access_token(&self) -> &str {
        &self.access_token
    }

    pub(super) fn accepted_calls(&self) -> Vec<AcceptedCall> {
        self.recorded().calls.clone()
    }

    pub(super) async fn next(&self, within: Duration) -> Option<AcceptedCall> {
        let permit = tokio::time::timeout(within, self.unreturned.acquire()).await.ok()?.ok()?;
        permit.forget();
        let mut recorded = self.recorded();
        recorded.returned += 1;
        recorded.calls.get(recorded.returned - 1).cloned()
    }

    pub(super) fn violations(&self) -> Vec<String> {
        self.recorded().violations.clone()
    }

    pub(super) fn violated(&self, why: &str) {
        self.recorded().violations.push(why.to_owned());
    }

    pub(super) fn plan(&self, endpoint: ApiEndpoint, fault: ApiFault) {
        self.recorded().faults.entry(endpoint).or_default().push_back(fault);
    }

    pub(super) fn next_fault(&self, endpoint: ApiEndpoint) -> Option<ApiFault> {
        self.recorded().faults.get_mut(&endpoint)?.pop_front()
    }

    /// Records that the caller cannot know whether its reply was accepted, and so must not repeat
    /// it.
    pub(super) fn doubt(&self, body: &[u8]) {
        let body: Value = serde_json::from_slice(body).unwrap_or_default();
        if let Some(token) = body["replyToken"].as_str() {
            self.recorded().doubtful_tokens.insert(token.to_owned());
        }
    }

    pub(super) fn accept(
        &self,
        request: SimulatedApiRequest,
        request_id: &str,
    ) -> Result<AcceptResult, ApiRefusal> {
        let SimulatedApiRequest { call, retry_key } = request;
        let mut recorded = self.recorded();
        if let Some(token) = &call.reply_token {
            recorded.use_token(token)?;
        }
        if let Some(key) = retry_key
            && let Some(first) = recorded.push_before(key, &call, request_id)
        {
            return Ok(AcceptResult::Repeated(first));
        }
        recorded.calls.push(call);
        self.unreturned.add_permits(1);
        Ok(AcceptResult::New)
    }

    fn recorded(&self) -> MutexGuard<'_, Calls> {
        self.recorded.lock().unwrap_or_else(PoisonError::into_inner)
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
