//! What a client knows of a server's history, so that the append script need not ask each time.
//!
//! A history has a name (Redis calls it the replication id) that changes whenever the server starts,
//! or becomes a master. A connection ends with its server, and sentinels end those of a master that
//! they demote: a name that was heard over a connection holds for as long as that is open. It is asked
//! for again every second all the same, in case somebody demotes and promotes a server by hand.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use redis::{Value, cmd};
use tokio::time::Instant;

use crate::calls::read;
use crate::connect::Connection;

const TRUSTED: Duration = Duration::from_secs(1);
/// What scripts compare: `replid:` and sixteen digits.
const LENGTH: usize = 23;

/// What was heard last.
#[derive(Default)]
pub(crate) struct History(Mutex<Option<Heard>>);

struct Heard {
    generation: u64,
    /// Before the question was sent.
    asked: Instant,
    /// `None` until the answer is there.
    open: Option<Arc<str>>,
}

impl History {
    /// How an open job under this history begins, where the name is known well enough. One call in a second asks for it; those that come
    /// meanwhile do without.
    pub(crate) async fn open_job(
        &self,
        connection: &mut Connection,
        generation: u64,
    ) -> Option<Arc<str>> {
        if connection.heals() {
            // A Cluster's client may change the server under our hands.
            return None;
        }
        let asked = Instant::now();
        {
            let mut heard = self.heard();
            match &*heard {
                Some(h) if h.generation == generation && asked - h.asked < TRUSTED => {
                    return h.open.clone();
                }
                _ => *heard = Some(Heard { generation, asked, open: None }),
            }
        }
        let info = connection.ask(cmd("INFO").arg("replication")).await.ok()?;
        let open = named(info).map(|name| Arc::from(format!("0 {name}")));
        if let Some(heard) = self.heard().as_mut().filter(|heard| heard.asked == asked) {
            heard.open.clone_from(&open);
        }
        open
    }

    fn heard(&self) -> MutexGuard<'_, Option<Heard>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A replica tells its master's name.
fn named(info: Value) -> Option<String> {
    let info: String = read(info).ok()?;
    info.lines().find(|line| line.trim_end() == "role:master")?;
    let name = info.split("master_").find(|part| part.starts_with("replid:"))?;
    name.get(..LENGTH).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn heard(info: &str) -> Option<String> {
        named(Value::BulkString(info.into()))
    }

    #[test]
    fn only_a_masters_history_is_its_own() {
        let id = "0123456789abcdef0123456789abcdef01234567";
        let info = format!("role:master\r\nmaster_replid:{id}\r\nmaster_replid2:ffff\r\n");
        assert_eq!(heard(&info).as_deref(), Some("replid:0123456789abcdef"));
        assert_eq!(heard(&info.replace("role:master", "role:slave")), None);
        assert_eq!(heard("role:master\r\n"), None);
    }
}
