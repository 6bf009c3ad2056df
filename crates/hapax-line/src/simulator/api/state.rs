//! What LINE remembers, and what a test plans.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde_json::Value;
use tokio::sync::Semaphore;
use uuid::Uuid;

use super::check::{Refusal, Wanted};
use super::{Endpoint, Fault, Said};

pub(super) struct State {
    access_token: String,
    books: Mutex<Books>,
    /// As many permits as there are accepted ones that `next` has not given out.
    untaken: Semaphore,
}

#[derive(Default)]
struct Books {
    said: Vec<Said>,
    taken: usize,
    used_tokens: HashSet<String>,
    doubtful_tokens: HashSet<String>,
    pushes: HashMap<Uuid, Push>,
    violations: Vec<String>,
    faults: HashMap<Endpoint, VecDeque<Fault>>,
}

/// The push that a retry key belongs to.
struct Push {
    request_id: String,
    to: Option<String>,
    messages: Vec<Value>,
}

pub(super) enum Accepted {
    Now,
    /// The same retry key was accepted in this request.
    Before(String),
}

impl State {
    pub(super) fn new(access_token: &str) -> Self {
        Self {
            access_token: access_token.to_owned(),
            books: Mutex::default(),
            untaken: Semaphore::new(0),
        }
    }

    pub(super) fn access_token(&self) -> &str {
        &self.access_token
    }

    pub(super) fn said(&self) -> Vec<Said> {
        self.books().said.clone()
    }

    pub(super) async fn next(&self, within: Duration) -> Option<Said> {
        let permit = tokio::time::timeout(within, self.untaken.acquire()).await.ok()?.ok()?;
        permit.forget();
        let mut books = self.books();
        books.taken += 1;
        books.said.get(books.taken - 1).cloned()
    }

    pub(super) fn violations(&self) -> Vec<String> {
        self.books().violations.clone()
    }

    pub(super) fn violated(&self, why: &str) {
        self.books().violations.push(why.to_owned());
    }

    pub(super) fn plan(&self, endpoint: Endpoint, fault: Fault) {
        self.books().faults.entry(endpoint).or_default().push_back(fault);
    }

    pub(super) fn next_fault(&self, endpoint: Endpoint) -> Option<Fault> {
        self.books().faults.get_mut(&endpoint)?.pop_front()
    }

    /// Nothing is accepted, but who sent this cannot know: a reply must not come again.
    pub(super) fn doubt(&self, body: &[u8]) {
        let body: Value = serde_json::from_slice(body).unwrap_or_default();
        if let Some(token) = body["replyToken"].as_str() {
            self.books().doubtful_tokens.insert(token.to_owned());
        }
    }

    pub(super) fn accept(&self, wanted: Wanted, request_id: &str) -> Result<Accepted, Refusal> {
        let Wanted { said, retry_key } = wanted;
        let mut books = self.books();
        if let Some(token) = &said.reply_token {
            books.use_token(token)?;
        }
        if let Some(key) = retry_key
            && let Some(first) = books.push_before(key, &said, request_id)
        {
            return Ok(Accepted::Before(first));
        }
        books.said.push(said);
        self.untaken.add_permits(1);
        Ok(Accepted::Now)
    }

    fn books(&self) -> MutexGuard<'_, Books> {
        self.books.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Books {
    fn use_token(&mut self, token: &str) -> Result<(), Refusal> {
        if !self.used_tokens.insert(token.to_owned()) {
            return Err(Refusal::new(400, "Invalid reply token"));
        }
        if self.doubtful_tokens.contains(token) {
            let why = "A reply was repeated although nobody knew what became of it";
            self.violations.push(why.to_owned());
        }
        Ok(())
    }

    /// The request that this key was accepted in; otherwise it is remembered for this one.
    fn push_before(&mut self, key: Uuid, said: &Said, request_id: &str) -> Option<String> {
        match self.pushes.entry(key) {
            Entry::Vacant(free) => {
                let (to, messages) = (said.to.clone(), said.messages.clone());
                free.insert(Push { request_id: request_id.to_owned(), to, messages });
                None
            }
            Entry::Occupied(push) => {
                let push = push.get();
                if push.to != said.to || push.messages != said.messages {
                    self.violations.push("A retry key came again with another message".to_owned());
                }
                Some(push.request_id.clone())
            }
        }
    }
}
