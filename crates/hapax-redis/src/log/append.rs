use std::collections::HashMap;

use futures_util::future::join_all;
use hapax_core::log::{Appended, Epochs, LogEvent, LogRetention};
use hapax_core::{Key, StoreResult};

use super::cursor;
use crate::client::{ScriptCall, unexpected_reply};
use crate::script::{APPEND, script_millis};
use crate::store::RedisStore;

/// More entries than fit into any memory, and exact in Lua's numbers.
const MAX_ENTRIES: u64 = 1_000_000_000_000;
/// The index of the script's argument that takes the replication id.
const REPLICATION_ID_ARG: usize = 5;

/// Runs one script per job, all of them concurrently.
pub(super) async fn append(
    store: &RedisStore,
    events: &[LogEvent],
    keep: &LogRetention,
) -> StoreResult<Vec<Appended>> {
    if let [event] = events {
        return append_to_job(store, &event.job, &[event], keep).await;
    }
    let mut jobs: HashMap<&Key, (Vec<usize>, Vec<&LogEvent>)> = HashMap::new();
    for (index, event) in events.iter().enumerate() {
        let (indexes, of_job) = jobs.entry(&event.job).or_default();
        indexes.push(index);
        of_job.push(event);
    }
    let calls = jobs.into_iter().map(|(job, (indexes, of_job))| async move {
        let answers = append_to_job(store, job, &of_job, keep).await?;
        Ok(indexes.into_iter().zip(answers).collect::<Vec<_>>())
    });
    let mut answers = vec![Appended::Conflict; events.len()];
    for of_job in join_all(calls).await {
        for (index, answer) in of_job? {
            answers[index] = answer;
        }
    }
    Ok(answers)
}

async fn append_to_job(
    store: &RedisStore,
    job: &Key,
    events: &[&LogEvent],
    keep: &LogRetention,
) -> StoreResult<Vec<Appended>> {
    let (partition, canonical, digest) = (store.partition(job), job.canonical(), job.digest());
    let [head, tail, barrier, name] =
        ["head", "tail", "barrier", &canonical].map(|part| store.names.partition(partition, part));
    let keys = [&*head, &tail, &name];
    let (channel, wake_message) = store.wake_message(digest);
    let retention = script_millis(keep.retention).to_string();
    let entries = keep.max_entries.clamp(1, MAX_ENTRIES).to_string();
    let stored: Vec<_> = events.iter().map(|event| StoredEvent::of(event)).collect();
    let mut args: Vec<&[u8]> = Vec::with_capacity(6 + 5 * events.len());
    args.extend([canonical.as_bytes(), retention.as_bytes(), entries.as_bytes()]);
    args.extend([channel, wake_message.as_bytes(), b""]);
    for (event, stored) in events.iter().zip(&stored) {
        args.extend([stored.identity.as_bytes(), event.fingerprint.as_str().as_bytes()]);
        args.extend([stored.seq(), closes(event).as_bytes(), &stored.entry]);
    }
    let call = ScriptCall {
        replication_id_arg: Some(REPLICATION_ID_ARG),
        barrier_key: Some(&barrier),
        ..ScriptCall::new(&APPEND, &keys, &args)
    };
    let reply = store.client.call(call).await;
    store.wake_local(digest);
    parse_reply(&reply?.read::<Vec<String>>()?, events.len()).ok_or_else(unexpected_reply)
}

/// An event as `lua/append.lua` stores it.
struct StoredEvent {
    identity: String,
    entry: Vec<u8>,
}

impl StoredEvent {
    fn of(event: &LogEvent) -> Self {
        let identity = format!("{}:{}", event.seq, event.stage);
        let mut entry = format!("{} {} {}\n", event.seq, closes(event), event.stage).into_bytes();
        entry.extend_from_slice(&event.payload);
        Self { identity, entry }
    }

    fn seq(&self) -> &[u8] {
        self.identity.split(':').next().unwrap_or_default().as_bytes()
    }
}

fn closes(event: &LogEvent) -> &'static str {
    if event.closes { "1" } else { "0" }
}

/// Parses the epochs of the job, then one answer per event: `+` or `=` and an offset, `!` or `.`.
fn parse_reply(reply: &[String], events: usize) -> Option<Vec<Appended>> {
    let (epochs, answers) = reply.split_first().filter(|(_, answers)| answers.len() == events)?;
    // The short path of the script returns more of the job's `now`, which ends with the epochs.
    let epochs = epochs.rsplit(' ').next()?.parse::<Epochs>();
    let at = |offset: &str| Some(cursor(epochs.as_ref().ok()?, offset.parse().ok()?));
    let answers = answers.iter().map(|answer| match answer.split_at_checked(1)? {
        ("+", offset) => at(offset).map(Appended::Published),
        ("=", offset) => at(offset).map(Appended::Duplicate),
        ("!", "") => Some(Appended::Conflict),
        (".", "") => Some(Appended::Closed),
        _ => None,
    });
    answers.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use hapax_core::log::{Cursor, Epoch};

    fn parsed(reply: &[&str]) -> Option<Vec<Appended>> {
        let reply: Vec<_> = reply.iter().map(|part| (*part).to_owned()).collect();
        parse_reply(&reply, reply.len() - 1)
    }

    #[test]
    fn append_reply_gives_offsets_with_their_epochs() {
        let at = |epoch, offset| Cursor { epoch: Epoch(epoch), offset };
        let expected = [Appended::Duplicate(at(7, 41)), Appended::Published(at(9, 42))];
        assert_eq!(parsed(&["7@1,9@42", "=41", "+42"]).unwrap(), expected);
        assert_eq!(parsed(&["7@1,9!42", "=41", "+42"]).unwrap(), expected);
        assert_eq!(parsed(&["0 replid:ab 1 7@1,9@42", "=41", "+42"]).unwrap(), expected);
        assert_eq!(parsed(&["7@1", "!", "."]).unwrap(), [Appended::Conflict, Appended::Closed]);
    }

    #[test]
    fn append_reply_of_another_form_is_refused() {
        for wrong in ["", "+", "+x", "?1", "!1", "\u{e9}"] {
            assert_eq!(parsed(&["7@1", wrong]), None, "{wrong}");
        }
        assert_eq!(parsed(&["", "+1"]), None);
        assert_eq!(parse_reply(&[], 0), None);
    }
}
