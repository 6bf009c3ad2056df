//! The audit log of a tenant: a job that no caller of the API can name, because its domain is empty.

use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use hapax::activity::keys;
use hapax::log::{Appended, LogEvent, PageRequest};
use hapax::{Clock, Fingerprint, Store, StoreError, StoreResult, SystemClock, Tenant};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// How many entries are read at once.
const CHUNK: u64 = 500;
/// How many times an entry is appended under another number, if a node with the same name took it.
const MAX_CONFLICTS: usize = 10;

/// The subject of an action: its kind, and what identifies it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub(crate) struct AuditSubject {
    /// `command`, `commands`, `lock`, `locks`, `dead-letter`, `dead-letters` or `queue`.
    #[schema(example = "command")]
    pub(crate) kind: String,
    /// The operation of a command.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub(crate) operation: Option<String>,
    /// The key of a command, or the name of a lock; null if there is none, or it is masked.
    #[schema(required)]
    pub(crate) key: Option<String>,
    /// The hash of the caller whose command it is.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub(crate) scope: Option<String>,
    /// The fence of the command or lock.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub(crate) fence: Option<u64>,
    /// The queue.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub(crate) queue: Option<String>,
    /// The id of a dead letter.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub(crate) item: Option<String>,
    /// Of a task: only dead letters with this reason.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub(crate) reason: Option<String>,
    /// Of a task: only dead letters with this topic.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub(crate) topic: Option<String>,
    /// Of a task: only commands in this state.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub(crate) state: Option<String>,
    /// Of a task: only commands that began so long ago.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub(crate) older_than_ms: Option<u64>,
    /// The id of a task.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub(crate) task: Option<String>,
    /// How many rows a task changed.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub(crate) done: Option<u64>,
    /// How many rows a task could not change.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub(crate) failed: Option<u64>,
}

impl AuditSubject {
    pub(crate) fn new(kind: &str) -> Self {
        Self { kind: kind.to_owned(), ..Self::default() }
    }

    pub(crate) fn of_queue(kind: &str, queue: &str) -> Self {
        Self { queue: Some(queue.to_owned()), ..Self::new(kind) }
    }
}

/// One entry of the log. An action has two: one before it is done, and one with its result.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct AuditEntry {
    /// The id of the action; both entries have it.
    pub(crate) id: String,
    /// When the action began, in milliseconds since 1970.
    pub(crate) at: u64,
    pub(crate) who: String,
    pub(crate) action: String,
    /// `begun`, `done`, or the code of the problem.
    pub(crate) result: String,
    pub(crate) subject: AuditSubject,
    pub(crate) note: Option<String>,
    pub(crate) node: String,
    /// Of the entry with the result: the offset of the first entry.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) begun: Option<u64>,
}

/// A position in the list, newest first: before an offset, without the first entries of actions that
/// were listed with their result.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct AuditPosition {
    before: u64,
    listed: Vec<u64>,
}

impl std::fmt::Display for AuditPosition {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "audit {}", self.before)?;
        self.listed.iter().try_for_each(|offset| write!(f, " {offset}"))
    }
}

impl FromStr for AuditPosition {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let numbers = text.strip_prefix("audit ").ok_or(())?.split(' ');
        let numbers: Result<Vec<u64>, _> = numbers.map(str::parse).collect();
        let numbers = numbers.map_err(|_| ())?;
        let (before, listed) = numbers.split_first().ok_or(())?;
        Ok(Self { before: *before, listed: listed.to_vec() })
    }
}

/// Appends to the audit logs of all tenants, and reads them.
pub(crate) struct AuditLog {
    store: Arc<dyn Store>,
    node: Arc<str>,
    last: AtomicU64,
}

impl AuditLog {
    pub(crate) fn new(store: Arc<dyn Store>, node: Arc<str>) -> Self {
        Self { store, node, last: AtomicU64::new(0) }
    }

    pub(crate) fn node(&self) -> &str {
        &self.node
    }

    /// A number that this node has not given before: microseconds since 1970, or one more than the last.
    fn next_number(&self) -> u64 {
        let now = SystemClock.now().0.saturating_mul(1000);
        let next = |last: u64| Some(now.max(last + 1));
        let last = self.last.fetch_update(Ordering::SeqCst, Ordering::SeqCst, next);
        now.max(last.unwrap_or_default() + 1)
    }

    pub(crate) fn next_id(&self) -> String {
        format!("{}-{}", self.node, self.next_number())
    }

    /// Appends an entry; its offset.
    pub(crate) async fn append(&self, tenant: &Tenant, entry: &AuditEntry) -> StoreResult<u64> {
        let payload = serde_json::to_vec(entry).map_err(|error| internal(error.to_string()))?;
        for _ in 0..MAX_CONFLICTS {
            let event = LogEvent {
                job: keys::audit_job(tenant),
                stage: self.node.clone(),
                seq: self.next_number(),
                fingerprint: Fingerprint::of(&[&payload]),
                payload: payload.clone().into(),
                closes: false,
            };
            match self.store.append(&[event], &keys::AUDIT_RETENTION).await?.first() {
                Some(Appended::Published(at) | Appended::Duplicate(at)) => return Ok(at.offset),
                Some(Appended::Conflict) => {}
                other => return Err(internal(format!("the audit log answered {other:?}"))),
            }
        }
        Err(internal("several nodes have the same name".into()))
    }

    /// Reads up to `limit` actions from `from` (`None` for the newest) to older ones.
    pub(crate) async fn page(
        &self,
        tenant: &Tenant,
        from: Option<AuditPosition>,
        limit: usize,
    ) -> StoreResult<(Vec<AuditEntry>, Option<AuditPosition>)> {
        let job = keys::audit_job(tenant);
        let mut actions = Vec::new();
        let Some(attached) = self.store.attach(&job, &PageRequest::state_only()).await? else {
            return Ok((actions, None));
        };
        let (first, last) = (attached.head.first, attached.head.last);
        let AuditPosition { before, mut listed } =
            from.unwrap_or(AuditPosition { before: u64::MAX, listed: Vec::new() });
        let mut end = last.min(before.saturating_sub(1));
        'pages: while end >= first.max(1) {
            let after = end.saturating_sub(CHUNK);
            let count = usize::try_from(end - after).unwrap_or_default();
            let read = self.store.attach(&job, &PageRequest::new(after, count)).await?;
            let entries = read.map(|read| read.entries).unwrap_or_default();
            for entry in entries.iter().rev() {
                if actions.len() == limit {
                    break 'pages;
                }
                end = entry.at.offset - 1;
                if let Some(at) = listed.iter().position(|listed| *listed == entry.at.offset) {
                    listed.swap_remove(at);
                } else if let Ok(action) = serde_json::from_slice::<AuditEntry>(&entry.payload) {
                    listed.extend(action.begun);
                    actions.push(action);
                }
            }
            end = end.min(after);
        }
        listed.retain(|offset| (first..=end).contains(offset));
        let left = (end + 1).saturating_sub(first.max(1));
        let next =
            (left > listed.len() as u64).then_some(AuditPosition { before: end + 1, listed });
        Ok((actions, next))
    }
}

fn internal(reason: String) -> StoreError {
    StoreError::Internal { reason, source: None }
}

#[cfg(test)]
mod tests {
    use hapax::memory::MemoryStore;

    use super::*;

    fn entry(log: &AuditLog, action: &str) -> AuditEntry {
        AuditEntry {
            id: log.next_id(),
            at: 1,
            who: "ops".into(),
            action: action.into(),
            result: "begun".into(),
            subject: AuditSubject::new("queue"),
            note: None,
            node: "n".into(),
            begun: None,
        }
    }

    /// Every page of the log, as the actions and results on it.
    async fn pages(log: &AuditLog, limit: usize) -> Vec<Vec<String>> {
        let (mut pages, mut from) = (Vec::new(), None);
        loop {
            let (page, next) = log.page(&Tenant::default(), from, limit).await.unwrap();
            pages.push(page.iter().map(|one| format!("{} {}", one.action, one.result)).collect());
            match next {
                Some(next) => from = Some(next.to_string().parse().unwrap()),
                None => return pages,
            }
        }
    }

    #[tokio::test]
    async fn audit_log_lists_each_action_once() {
        let log = AuditLog::new(Arc::new(MemoryStore::default()), "n".into());
        assert_eq!(pages(&log, 10).await, [Vec::<String>::new()]);
        let tenant = Tenant::default();
        // A long action begins before all others and ends after them.
        let mut begun = Vec::new();
        for action in ["long", "a", "lost", "b"] {
            let entry = entry(&log, action);
            let offset = log.append(&tenant, &entry).await.unwrap();
            if action != "lost" {
                begun.push((entry, offset));
            }
        }
        begun.rotate_left(1);
        for (entry, offset) in begun {
            let done = AuditEntry { result: "done".into(), begun: Some(offset), ..entry };
            log.append(&tenant, &done).await.unwrap();
        }
        let all = ["long done", "b done", "a done", "lost begun"];
        for limit in 1..6 {
            let pages = pages(&log, limit).await;
            assert_eq!(pages.concat(), all, "{limit}");
            assert!(pages.iter().all(|page| page.len() <= limit) && pages.len() <= 4, "{limit}");
        }
        let other = Tenant::new("other").unwrap();
        assert!(log.page(&other, None, 10).await.unwrap().0.is_empty());
    }

    #[test]
    fn audit_log_numbers_never_repeat() {
        let log = AuditLog::new(Arc::new(MemoryStore::default()), "n".into());
        let numbers: std::collections::BTreeSet<_> =
            (0..10_000).map(|_| log.next_number()).collect();
        assert_eq!(numbers.len(), 10_000);
        assert!(numbers.iter().all(|number| *number <= hapax::log::MAX_NUMBER));
    }
}
