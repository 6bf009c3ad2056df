//! Sessions of the console: a browser signs in with a token once, and then has a cookie.
//!
//! A session is a record in the store, so that all nodes know it; the record names the token by its
//! hash, so that a token which is taken out of the settings ends its sessions too. The store knows only
//! the hash of the cookie.

pub(crate) mod cookie;
pub(crate) mod csrf;

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use hapax::activity::keys;
use hapax::{Clock, Expect, Key, SystemClock};
use serde::{Deserialize, Serialize};
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::Instant;

use super::auth::unauthorized;
use crate::api::app::AppState;
use crate::daemon::ReadinessState;
use crate::problem::{Problem, ProblemKind};
use crate::settings::TokenRule;
use cookie::SessionId;

/// How long a session lasts.
pub(crate) const SESSION_TTL: Duration = Duration::from_secs(12 * 3600);
/// How long a session that was found in the store is not looked up again. After signing out on one
/// node, other nodes accept the cookie for this long.
const CACHE_TIME: Duration = Duration::from_secs(30);
/// How many sessions are remembered; further ones are looked up each time.
const MAX_CACHED: usize = 1000;
/// How many sign-ins are checked at once, and how long a wrong token takes: together they bound how
/// many tokens can be tried.
const MAX_SIGN_INS: usize = 8;
pub(crate) const WRONG_TOKEN_DELAY: Duration = Duration::from_millis(500);

/// The sessions that this node has seen, and the limit of sign-ins.
pub(crate) struct ConsoleSessions {
    seen: Mutex<HashMap<[u8; 32], SeenSession>>,
    sign_ins: Semaphore,
}

#[derive(Clone, Copy)]
struct SeenSession {
    token_sha256: [u8; 32],
    verified: Instant,
    expires: Instant,
}

/// The stored record of a session.
#[derive(Serialize, Deserialize)]
struct SessionRecord {
    /// The SHA-256 of the token, in hexadecimal.
    token_sha256: String,
    /// When the session began, in milliseconds since 1970.
    at: u64,
}

impl Default for ConsoleSessions {
    fn default() -> Self {
        Self { seen: Mutex::default(), sign_ins: Semaphore::new(MAX_SIGN_INS) }
    }
}

impl ConsoleSessions {
    /// Takes one of the few places of sign-ins that are being checked.
    pub(crate) fn begin_sign_in(&self) -> Result<SemaphorePermit<'_>, Problem> {
        self.sign_ins.try_acquire().map_err(|_| {
            let text = format!("{MAX_SIGN_INS} sign-ins are being checked; try again in a second");
            let problem = Problem::new(ProblemKind::TooManyRequests, text);
            problem.retry_after(Duration::from_secs(1))
        })
    }

    /// Stores a new session of this token.
    pub(crate) async fn open(
        &self,
        app: &AppState,
        rule: &TokenRule,
    ) -> Result<SessionId, Problem> {
        let id = SessionId::random()?;
        let at = SystemClock.now().0;
        let record = SessionRecord { token_sha256: hex(&rule.sha256), at };
        let json = serde_json::to_vec(&record).expect("texts and numbers become JSON");
        let key = record_key(&id);
        let stored = app.store.put(&key, json.into(), &Expect::Absent, Some(SESSION_TTL));
        let _ = app.call_store(stored).await?;
        self.remember(&id, rule.sha256, SESSION_TTL);
        Ok(id)
    }

    /// The token of a session that has not ended. While the store is away, sessions that this node has
    /// seen go on.
    pub(crate) async fn find<'a>(
        &self,
        app: &'a AppState,
        id: &SessionId,
    ) -> Result<&'a TokenRule, Problem> {
        let seen = self.seen(id);
        let is_store_away = matches!(app.readiness.state(), ReadinessState::Down(_));
        let found = match seen {
            Some(seen) if is_store_away || seen.verified.elapsed() < CACHE_TIME => Some(seen),
            _ => match app.call_store(app.store.get(&record_key(id))).await {
                Ok(None) => None,
                Ok(Some(record)) => {
                    let parsed: Option<SessionRecord> = serde_json::from_slice(&record.value).ok();
                    let hash = parsed.and_then(|record| unhex(&record.token_sha256));
                    let left = record.expires_in.unwrap_or(SESSION_TTL);
                    hash.map(|hash| self.remember(id, hash, left))
                }
                Err(problem) => match seen {
                    // Not asked again for a while, so that calls are not slow one by one.
                    Some(seen) => {
                        let left = seen.expires.saturating_duration_since(Instant::now());
                        Some(self.remember(id, seen.token_sha256, left))
                    }
                    None => return Err(problem),
                },
            },
        };
        let rule = found.and_then(|found| app.access.find_token_hash(&found.token_sha256));
        rule.ok_or_else(|| {
            self.forget(id);
            unauthorized("the session has ended; sign in again with POST /v1/session")
        })
    }

    /// Ends a session.
    pub(crate) async fn close(&self, app: &AppState, id: &SessionId) -> Result<(), Problem> {
        self.forget(id);
        let key = record_key(id);
        let _ = app.call_store(app.store.delete(&key, &Expect::Any)).await?;
        Ok(())
    }

    fn seen(&self, id: &SessionId) -> Option<SeenSession> {
        let sessions = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        sessions.get(&id.hash()).copied().filter(|seen| seen.expires > Instant::now())
    }

    fn remember(&self, id: &SessionId, token_sha256: [u8; 32], left: Duration) -> SeenSession {
        let now = Instant::now();
        let seen = SeenSession { token_sha256, verified: now, expires: now + left };
        let mut sessions = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        if sessions.len() >= MAX_CACHED {
            sessions.retain(|_, seen| seen.verified.elapsed() < CACHE_TIME);
        }
        if sessions.len() < MAX_CACHED {
            sessions.insert(id.hash(), seen);
        }
        seen
    }

    fn forget(&self, id: &SessionId) {
        let mut sessions = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        sessions.remove(&id.hash());
    }
}

fn record_key(id: &SessionId) -> Key {
    keys::session_record(&hex(&id.hash()))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &str) -> Option<[u8; 32]> {
    let mut bytes = [0; 32];
    for (i, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::from_str_radix(text.get(2 * i..2 * i + 2)?, 16).ok()?;
    }
    (text.len() == 64).then_some(bytes)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

    use async_trait::async_trait;
    use hapax::memory::MemoryStore;
    use hapax::{Record, Records, Store, StoreError, StoreResult, Tenant};
    use hapax_conformance::{StoreWrapper, WrappedStore};
    use metrics_exporter_prometheus::PrometheusBuilder;
    use tokio::time::advance;

    use super::*;
    use crate::api::AccessPolicy;
    use crate::daemon::Readiness;
    use crate::settings::{CommandSettings, ServeSettings, SettingSources, TokenScope};

    /// A store that counts reads of records, and fails them while it is away.
    #[derive(Default)]
    struct CountedReads {
        store: MemoryStore,
        reads: AtomicU32,
        is_away: AtomicBool,
    }

    #[async_trait]
    impl StoreWrapper for CountedReads {
        fn inner(&self) -> &dyn Store {
            &self.store
        }

        async fn get(&self, key: &Key) -> StoreResult<Option<Record>> {
            self.reads.fetch_add(1, Ordering::SeqCst);
            match self.is_away.load(Ordering::SeqCst) {
                true => Err(StoreError::Timeout { timeout: Duration::ZERO }),
                false => self.inner().get(key).await,
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn session_is_looked_up_every_30_s_and_outlives_the_store() {
        let store = Arc::new(WrappedStore(CountedReads::default()));
        let (sha256, scopes) = ([7; 32], vec![TokenScope::Admin]);
        let rule = TokenRule { name: "ana".into(), sha256, tenant: Tenant::default(), scopes };
        let settings = ServeSettings::read(&SettingSources::defaults().unwrap()).unwrap();
        let access = AccessPolicy::Tokens(vec![rule.clone()]);
        let metrics = PrometheusBuilder::new().build_recorder().handle();
        let (readiness, node) = (Readiness::ready(), "node".into());
        let app = AppState::new(settings, access, store.clone(), metrics, readiness, node);
        let id = app.sessions.open(&app, &rule).await.unwrap();
        let find = async |id| app.sessions.find(&app, id).await.map(|rule| rule.name.to_string());
        let reads = || store.0.reads.load(Ordering::SeqCst);
        let wait = async |seconds| advance(Duration::from_secs(seconds)).await;

        for (seconds, expected) in [(0, 0), (29, 0), (2, 1), (29, 1), (2, 2)] {
            wait(seconds).await;
            assert_eq!(find(&id).await.unwrap(), "ana");
            assert_eq!(reads(), expected, "after {seconds} s");
        }
        store.0.is_away.store(true, Ordering::SeqCst);
        // Asked once in 30 s, so that calls are not slow one by one.
        for (seconds, expected) in [(29, 2), (2, 3), (0, 3), (29, 3), (2, 4)] {
            wait(seconds).await;
            assert_eq!(find(&id).await.unwrap(), "ana", "the store is away");
            assert_eq!(reads(), expected, "after {seconds} s");
        }
        let unseen = SessionId::random().unwrap();
        let unseen = find(&unseen).await.unwrap_err();
        assert_eq!(unseen.kind(), ProblemKind::StoreUnavailable);
        store.0.is_away.store(false, Ordering::SeqCst);
        // Another node signs out.
        let _ = store.0.store.delete(&record_key(&id), &Expect::Any).await.unwrap();
        assert!(find(&id).await.is_ok(), "for up to 30 s");
        wait(31).await;
        assert_eq!(find(&id).await.unwrap_err().kind(), ProblemKind::Unauthorized);
    }
}
