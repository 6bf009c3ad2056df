//! Asks for everything that was acknowledged once more, when the faults are over.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::bail;
use tokio::task::JoinSet;

use crate::history::{CallOutcome, CommandAnswer, Observation};
use crate::recorder::HistoryRecorder;
use crate::workload::{TortureClient, WorkloadKind, commands, proxy, records};

/// How many clients ask for the keys of a workload at once.
const CLIENTS: usize = 8;
/// How long there may be no answer at all.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(120);
const PROGRESS_INTERVAL: Duration = Duration::from_secs(5);

/// The keys to ask for: records that were written, commands and proxied requests that were answered.
pub(crate) struct AcknowledgedKeys {
    records: BTreeSet<String>,
    commands: BTreeSet<String>,
    proxied: BTreeSet<String>,
}

impl AcknowledgedKeys {
    pub(crate) fn of(recorder: &HistoryRecorder) -> Self {
        Self {
            records: recorder.find(|what| match what {
                Observation::RecordPut { key, .. } => Some(key.clone()),
                _ => None,
            }),
            commands: recorder.find(|what| match what {
                Observation::CommandComplete { key, outcome: CallOutcome::Done(()), .. }
                | Observation::CommandBegin {
                    key,
                    outcome: CallOutcome::Done(CommandAnswer::Replayed(_)),
                    ..
                } => Some(key.clone()),
                _ => None,
            }),
            proxied: recorder.find(|what| match what {
                Observation::ProxyRequest { key, outcome: CallOutcome::Done(_), .. } => {
                    Some(key.clone())
                }
                _ => None,
            }),
        }
    }

    /// The keys of each workload, and the beginning of the names of the nodes that know them.
    fn by_workload(self) -> [(WorkloadKind, &'static str, BTreeSet<String>); 3] {
        [
            (WorkloadKind::Records, "serve", self.records),
            (WorkloadKind::Commands, "serve", self.commands),
            (WorkloadKind::Proxy, "proxy", self.proxied),
        ]
    }
}

/// Asks for every key until it is answered, and records how many there were; the checker compares the answers.
pub(crate) async fn ask_again(
    keys: AcknowledgedKeys,
    recorder: &HistoryRecorder,
    new_client: impl Fn(&str) -> TortureClient,
    progress: &impl Fn(&str),
) -> anyhow::Result<()> {
    let from = recorder.now();
    let answered = Arc::new(AtomicUsize::new(0));
    let mut clients = JoinSet::new();
    let mut counts = Vec::new();
    for (workload, prefix, keys) in keys.by_workload() {
        if keys.is_empty() {
            continue;
        }
        counts.push((workload, keys.len()));
        let clients_needed = CLIENTS.min(keys.len());
        let keys = Arc::new(Mutex::new(keys.into_iter()));
        for _ in 0..clients_needed {
            let (mut client, keys, answered) = (new_client(prefix), keys.clone(), answered.clone());
            clients.spawn(async move {
                let next = || keys.lock().unwrap_or_else(PoisonError::into_inner).next();
                while let Some(key) = next() {
                    ask_until_answered(&mut client, workload, &key).await;
                    answered.fetch_add(1, Ordering::SeqCst);
                }
            });
        }
    }
    let total: usize = counts.iter().map(|(_, count)| count).sum();
    progress(&format!("asking for {total} keys again"));
    let (mut last_count, mut last_progress) = (0, Instant::now());
    loop {
        match tokio::time::timeout(PROGRESS_INTERVAL, clients.join_next()).await {
            Ok(None) => break,
            Ok(Some(ended)) => ended?,
            Err(_) => {
                let count = answered.load(Ordering::SeqCst);
                progress(&format!("{count:>8} of {total} keys answered"));
                if count > last_count {
                    (last_count, last_progress) = (count, Instant::now());
                } else if last_progress.elapsed() > ANSWER_TIMEOUT {
                    bail!("{count} of {total} keys were answered, none for {ANSWER_TIMEOUT:?}");
                }
            }
        }
    }
    for (workload, count) in counts {
        let (workload, keys) = (workload.name().to_owned(), count as u64);
        recorder.record(0, from, Observation::AskedAgain { workload, keys });
    }
    Ok(())
}

async fn ask_until_answered(client: &mut TortureClient, workload: WorkloadKind, key: &str) {
    loop {
        client.prepare_call().await;
        let is_answered = match workload {
            WorkloadKind::Records => records::read_again(client, key).await,
            WorkloadKind::Commands => commands::ask_again(client, key).await,
            _ => proxy::order(client, key.to_owned()).await,
        };
        if is_answered {
            return;
        }
        client.wait_for_node().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::ProxyAnswer;

    #[test]
    fn every_acknowledged_key_is_asked_for_again() {
        let recorder = HistoryRecorder::new();
        for number in 0..1000 {
            let key = format!("key-{number}");
            let text = || "text".to_owned();
            let outcome = CallOutcome::Done(text());
            let (expected, value) = (None, number);
            let put = Observation::RecordPut { key: key.clone(), expected, value, outcome };
            let (body, outcome) = (text(), CallOutcome::Done(()));
            let complete =
                Observation::CommandComplete { key: key.clone(), attempt: 1, body, outcome };
            let outcome = CallOutcome::Done(ProxyAnswer { body: text(), replayed: false });
            let request = Observation::ProxyRequest { key, outcome };
            for what in [put, complete, request] {
                recorder.record_now(1, what);
            }
        }
        let keys = AcknowledgedKeys::of(&recorder).by_workload();
        assert_eq!(keys.map(|(_, _, keys)| keys.len()), [1000; 3]);
    }
}
