//! `kill -9` at any moment, to logs and queues: what was acknowledged is there, offsets have no holes,
//! the state fits the log, a reader of the tail sees each entry once, and no key goes out of order.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use crate::common::victim::{kill_one, say};
use crate::common::*;
use hapax_conformance::scale;
use hapax_core::log::{Appended, LogEntry, LogEvent, LogRetention, PageRequest, TailPosition};
use hapax_core::queue::{ItemOutcome, LeaseRequest, QueueItem, QueueName, Resolved};
use hapax_core::{Log, Queue, Tenant, Token};
use hapax_sqlite::SqliteStore;
use tokio::time::Instant;

const JOBS: u64 = 3;
const KEYS: u64 = 24;
/// The lease after which the items of a killed process are handed out again.
const LEASE: Duration = Duration::from_secs(15);

fn work() -> QueueName {
    QueueName::new("work").unwrap()
}

/// The process that is killed: works for ever and says what was acknowledged.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "the process that the test below kills"]
async fn victim() {
    let store = crate::common::inherited();
    let life = Token::random();
    let mut tasks = Vec::new();
    for task in 0..4 {
        let stage = format!("{}-{task}", life.as_str());
        tasks.push(tokio::spawn(append(store.clone(), task, stage)));
        tasks.push(tokio::spawn(enqueue(store.clone(), task)));
        tasks.push(tokio::spawn(take(store.clone())));
    }
    for task in tasks {
        task.await.unwrap();
    }
}

async fn append(store: SqliteStore, task: u64, stage: String) {
    let name = (task % JOBS).to_string();
    let one = |seq| LogEvent { stage: stage.as_str().into(), ..event(&name, seq) };
    for n in 0_u64.. {
        let events: Vec<_> = (0..=n % 3).map(|i| one(n * 3 + i)).collect();
        let answers = store.append(&events, &LogRetention::default()).await.unwrap();
        for (event, answer) in events.iter().zip(answers) {
            let Appended::Published(at) = answer else { panic!("{answer:?}") };
            say(format_args!("appended {name} {stage} {} {}", event.seq, at.offset));
        }
    }
}

async fn enqueue(store: SqliteStore, task: u64) {
    for n in 0_u64.. {
        let item = QueueItem::new(&Tenant::default(), "t", "x");
        let item = if task == 0 { item } else { item.key(&format!("k{}", (task + n) % KEYS)) };
        let _ = store.enqueue(&work(), std::slice::from_ref(&item)).await.unwrap();
        say(format_args!("queued {}", item.id));
        // The takers should be able to follow.
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// Acks the first of what it holds, gives up the rest, and sometimes just lets the lease lapse.
async fn take(store: SqliteStore) {
    for n in 1_u64.. {
        let (asked, take) = (Instant::now(), LeaseRequest::new(5, LEASE));
        let leased = store.lease(&work(), &take).await.unwrap();
        // A late ack counts until the item is leased again, and may then be out of order.
        if n % 7 == 0 || asked.elapsed() > LEASE / 10 {
            continue;
        }
        let outcomes: Vec<_> = leased
            .iter()
            .enumerate()
            .map(|(place, leased)| match place {
                0..3 => (leased.item.id, ItemOutcome::Ack { retention: HOUR }),
                _ => (leased.item.id, give_up()),
            })
            .collect();
        let answers = store.resolve(&work(), &take.token, &outcomes).await.unwrap();
        for ((id, outcome), answer) in outcomes.iter().zip(answers) {
            if matches!(outcome, ItemOutcome::Ack { .. }) && answer == Resolved::Done {
                say(format_args!("acked {id}"));
            }
        }
    }
}

fn give_up() -> ItemOutcome {
    ItemOutcome::Retry {
        after: Duration::ZERO,
        counts: false,
        reason: "".into(),
        keeps_place: true,
    }
}

/// A reader that lives on while the writers are killed.
#[derive(Default)]
struct Reader {
    positions: HashMap<u16, TailPosition>,
    seen: HashMap<String, Vec<u64>>,
}

impl Reader {
    async fn read_on(&mut self, store: &SqliteStore) {
        for partition in 0..store.partitions() {
            let place = self.positions.entry(partition).or_insert_with(TailPosition::start);
            loop {
                let tail = store.tail(&[(partition, place.clone())], 100).await.unwrap().remove(0);
                assert!(!tail.lost);
                for change in &tail.changes {
                    let job = change.job.name().to_owned();
                    self.seen.entry(job).or_default().push(change.offset);
                }
                *place = tail.next;
                if tail.changes.is_empty() {
                    break;
                }
            }
        }
    }
}

async fn log_of(store: &SqliteStore, name: &str) -> Vec<LogEntry> {
    let Some(log) =
        store.attach(&job(name), &PageRequest::new(0, usize::MAX).with_state()).await.unwrap()
    else {
        return Vec::new();
    };
    let offsets: Vec<_> = log.entries.iter().map(|entry| entry.at.offset).collect();
    assert_eq!(offsets, (1..=log.head.last).collect::<Vec<_>>(), "offsets have no holes");
    let highest = log.entries.iter().max_by_key(|entry| (entry.seq, entry.at.offset));
    assert_eq!(log.head.state.as_ref(), highest, "the state fits the log");
    log.entries
}

async fn check_logs(store: &SqliteStore, said: &[String], reader: &mut Reader) -> usize {
    let mut logs = HashMap::new();
    reader.read_on(store).await;
    for name in (0..JOBS).map(|n| n.to_string()) {
        let entries = log_of(store, &name).await;
        let seen = reader.seen.remove(&name).unwrap_or_default();
        assert_eq!(seen, (1..=entries.len() as u64).collect::<Vec<_>>(), "each once, in order");
        reader.seen.insert(name.clone(), seen);
        logs.insert(name, entries);
    }
    let mut heard = 0;
    for line in said {
        let words: Vec<_> = line.split(' ').collect();
        let ["appended", name, stage, seq, offset] = words[..] else { continue };
        let entry = &logs[name][offset.parse::<usize>().unwrap() - 1];
        assert_eq!((&*entry.stage, entry.seq.to_string().as_str()), (stage, seq));
        // A worker that got no answer retries.
        let again = LogEvent { stage: stage.into(), ..event(name, entry.seq) };
        let answer = store.append(&[again], &LogRetention::default()).await.unwrap();
        assert_eq!(answer, [Appended::Duplicate(entry.at)]);
        heard += 1;
    }
    heard
}

/// The rows of the table in the order of enqueueing: id, key, state.
fn rows(place: &Place) -> Vec<(String, Option<String>, i64)> {
    let connection = place.stranger();
    let mut query =
        connection.prepare("SELECT id, key, state FROM hapax_outbox ORDER BY seq").unwrap();
    let rows = query.query_map([], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?))).unwrap();
    rows.collect::<Result<_, _>>().unwrap()
}

fn check_queue(place: &Place, said: &[String]) -> usize {
    const BEHIND: i64 = 2;
    const DONE: i64 = 6;
    let rows = rows(place);
    let mut fronts = HashSet::new();
    for (id, key, state) in &rows {
        let Some(key) = key else { continue };
        let done = *state == DONE;
        assert!(!(done && fronts.contains(key)), "{id} is done before an earlier one of its key");
        if !done {
            let first = fronts.insert(key.clone());
            assert!(!first || *state != BEHIND, "{id} waits behind nobody");
            assert!(first || *state > 1, "{id} may be handed out before an earlier one");
        }
    }
    let known: HashMap<_, _> = rows.iter().map(|(id, _, state)| (id.as_str(), *state)).collect();
    let mut acked = 0;
    for line in said {
        match line.split_once(' ') {
            Some(("queued", id)) => assert!(known.contains_key(id), "an acknowledged item is lost"),
            Some(("acked", id)) => {
                assert_eq!(known[id], DONE, "an acknowledged ack is lost");
                acked += 1;
            }
            _ => {}
        }
    }
    acked
}

#[tokio::test]
async fn killed_process_loses_no_event_and_no_item() {
    let (place, mut reader) = (Place::new(), Reader::default());
    let (mut appended, mut acked) = (0, 0);
    for round in 0..scale(40) as usize {
        let said = kill_one("crash_streams::victim", &place, round);
        let store = place.store();
        appended += check_logs(&store, &said, &mut reader).await;
        acked += check_queue(&place, &said);
    }
    assert!(appended > 0 && acked > 0, "no victim acknowledged anything");
    drain(&place.store()).await;
}

/// Hands out the remaining items, each once.
async fn drain(store: &SqliteStore) {
    let mut done = HashSet::new();
    let limit = Instant::now() + crate::common::PATIENT;
    while store.depth(&work(), None).await.unwrap() != hapax_core::queue::QueueDepth::default() {
        assert!(Instant::now() < limit, "something is stuck");
        let take = LeaseRequest::new(1000, HOUR);
        let leased = store.lease(&work(), &take).await.unwrap();
        let ids: Vec<_> = leased.iter().map(|leased| leased.item.id).collect();
        assert!(ids.iter().all(|id| done.insert(*id)), "handed out twice");
        let _ = store.ack(&work(), &take.token, &ids, HOUR).await.unwrap();
        if ids.is_empty() {
            // A lease of the last victim has to end first.
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}
