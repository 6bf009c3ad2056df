//! The server's replication id as the client knows it, so that the append script need not ask for it each time.
//!
//! Redis changes the replication id whenever a server starts or becomes a master. A connection ends with its
//! server, and sentinels close the connections of a master that they demote, so an id that was read over a
//! connection holds for as long as that is open. It is read again every second all the same, in case an
//! operator demotes and promotes a server by hand.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use redis::{Value, cmd};
use tokio::time::Instant;

use crate::client::read;
use crate::connect::RedisConnection;

const MAX_AGE: Duration = Duration::from_secs(1);
/// The scripts compare `replid:` and sixteen digits.
const LENGTH: usize = 23;

#[derive(Default)]
pub(crate) struct ReplicationIdCache(Mutex<Option<CachedId>>);

struct CachedId {
    generation: u64,
    /// When the question was sent.
    asked: Instant,
    /// `0 <replication id>`, or `None` until the reply is there.
    open_job_prefix: Option<Arc<str>>,
}

impl ReplicationIdCache {
    /// The text `0 <replication id>`, which an open job of the present epoch contains; `None` if it is not
    /// known. One call in a second reads it; calls that come meanwhile do without.
    pub(crate) async fn open_job_prefix(
        &self,
        connection: &mut RedisConnection,
        generation: u64,
    ) -> Option<Arc<str>> {
        if connection.reconnects_itself() {
            // A Cluster's client may switch to another server unnoticed.
            return None;
        }
        let asked = Instant::now();
        {
            let mut cached = self.cached();
            match &*cached {
                Some(c) if c.generation == generation && asked - c.asked < MAX_AGE => {
                    return c.open_job_prefix.clone();
                }
                _ => *cached = Some(CachedId { generation, asked, open_job_prefix: None }),
            }
        }
        let info = connection.send(cmd("INFO").arg("replication")).await.ok()?;
        let prefix = replication_id(info).map(|id| Arc::from(format!("0 {id}")));
        if let Some(cached) = self.cached().as_mut().filter(|cached| cached.asked == asked) {
            cached.open_job_prefix.clone_from(&prefix);
        }
        prefix
    }

    fn cached(&self) -> MutexGuard<'_, Option<CachedId>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// `None` for a replica, whose INFO contains the id of its master.
fn replication_id(info: Value) -> Option<String> {
    let info: String = read(info).ok()?;
    info.lines().find(|line| line.trim_end() == "role:master")?;
    let id = info.split("master_").find(|part| part.starts_with("replid:"))?;
    id.get(..LENGTH).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replication_id_is_read_from_masters_only() {
        let read = |info: &str| replication_id(Value::BulkString(info.into()));
        let id = "0123456789abcdef0123456789abcdef01234567";
        let info = format!("role:master\r\nmaster_replid:{id}\r\nmaster_replid2:ffff\r\n");
        assert_eq!(read(&info).as_deref(), Some("replid:0123456789abcdef"));
        assert_eq!(read(&info.replace("role:master", "role:slave")), None);
        assert_eq!(read("role:master\r\n"), None);
    }
}
