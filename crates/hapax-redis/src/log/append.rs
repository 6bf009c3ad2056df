use std::collections::HashMap;

use futures_util::future::join_all;
use hapax_core::log::{Appended, Epochs, Event, Keep};
use hapax_core::{Key, StoreError, millis};

use super::cursor;
use crate::calls::{Call, unexpected};
use crate::script::APPEND;
use crate::store::RedisStore;

/// Three hundred years: longer than anybody means, and still exact in Lua's numbers.
const LONGEST: u64 = 10_000_000_000_000;
/// More entries than fit into any memory.
const MOST: u64 = 1_000_000_000_000;
/// Which argument of the script tells the server's history.
const HISTORY: usize = 5;

/// One script for each job, all of them under way at once.
pub(super) async fn append(
    store: &RedisStore,
    events: &[Event],
    keep: &Keep,
) -> Result<Vec<Appended>, StoreError> {
    if let [event] = events {
        return append_to_job(store, &event.job, &[event], keep).await;
    }
    let mut jobs: HashMap<&Key, (Vec<usize>, Vec<&Event>)> = HashMap::new();
    for (place, event) in events.iter().enumerate() {
        let (places, of_job) = jobs.entry(&event.job).or_default();
        places.push(place);
        of_job.push(event);
    }
    let calls = jobs.into_iter().map(|(job, (places, of_job))| async move {
        let answers = append_to_job(store, job, &of_job, keep).await?;
        Ok(places.into_iter().zip(answers).collect::<Vec<_>>())
    });
    let mut answers = vec![Appended::Conflict; events.len()];
    for of_job in join_all(calls).await {
        for (place, answer) in of_job? {
            answers[place] = answer;
        }
    }
    Ok(answers)
}

async fn append_to_job(
    store: &RedisStore,
    job: &Key,
    events: &[&Event],
    keep: &Keep,
) -> Result<Vec<Appended>, StoreError> {
    let (partition, canonical, digest) = (store.partition(job), job.canonical(), job.digest());
    let [head, tail, barrier, name] =
        ["head", "tail", "barrier", &canonical].map(|what| store.naming.partition(partition, what));
    let (channel, wake_up) = store.wake_up(digest);
    let lifetime = millis(keep.lifetime).min(LONGEST).to_string();
    let entries = keep.entries.clamp(1, MOST).to_string();
    let texts: Vec<_> = events.iter().map(|event| Texts::of(event)).collect();
    let mut args: Vec<&[u8]> = Vec::with_capacity(6 + 5 * events.len());
    args.extend([canonical.as_bytes(), lifetime.as_bytes(), entries.as_bytes()]);
    args.extend([channel, wake_up.as_bytes(), b""]);
    for (event, texts) in events.iter().zip(&texts) {
        args.extend([texts.identity.as_bytes(), event.fingerprint.as_str().as_bytes()]);
        args.extend([texts.seq(), closes(event).as_bytes(), &texts.entry]);
    }
    let call = Call {
        script: &APPEND,
        keys: &[&head, &tail, &name],
        args: &args,
        history: Some(HISTORY),
        barrier: Some(&barrier),
    };
    let answer = store.calls.make(call).await;
    store.wake(digest);
    appended(&answer?.read::<Vec<String>>()?, events.len()).ok_or_else(unexpected)
}

/// An event as it is stored.
struct Texts {
    identity: String,
    entry: Vec<u8>,
}

impl Texts {
    fn of(event: &Event) -> Self {
        let identity = format!("{}:{}", event.seq, event.stage);
        let mut entry = format!("{} {} {}\n", event.seq, closes(event), event.stage).into_bytes();
        entry.extend_from_slice(&event.payload);
        Self { identity, entry }
    }

    fn seq(&self) -> &[u8] {
        self.identity.split(':').next().unwrap_or_default().as_bytes()
    }
}

fn closes(event: &Event) -> &'static str {
    if event.closes { "1" } else { "0" }
}

/// Where the log stands, then one answer for each event: `+` or `=` and an offset, `!` or `.`.
fn appended(answer: &[String], events: usize) -> Option<Vec<Appended>> {
    let (now, answers) = answer.split_first().filter(|(_, answers)| answers.len() == events)?;
    // The epochs are the last thing that a script tells of a job.
    let epochs = now.rsplit(' ').next()?.parse::<Epochs>();
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

    fn answered(parts: &[&str]) -> Option<Vec<Appended>> {
        let parts: Vec<_> = parts.iter().map(|part| (*part).to_owned()).collect();
        appended(&parts, parts.len() - 1)
    }

    #[test]
    fn offsets_are_told_with_the_epoch_that_they_have() {
        let at = |epoch, offset| Cursor { epoch: Epoch(epoch), offset };
        let expected = [Appended::Duplicate(at(7, 41)), Appended::Published(at(9, 42))];
        assert_eq!(answered(&["7@1,9@42", "=41", "+42"]).unwrap(), expected);
        assert_eq!(answered(&["0 replid:ab 1 7@1,9@42", "=41", "+42"]).unwrap(), expected);
        assert_eq!(answered(&["7@1", "!", "."]).unwrap(), [Appended::Conflict, Appended::Closed]);
    }

    #[test]
    fn what_no_script_says_is_not_believed() {
        for wrong in ["", "+", "+x", "?1", "!1", "\u{e9}"] {
            assert_eq!(answered(&["7@1", wrong]), None, "{wrong}");
        }
        assert_eq!(answered(&["", "+1"]), None);
        assert_eq!(appended(&[], 0), None);
    }
}
