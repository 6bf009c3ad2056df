//! `kill -9` in the middle of appends and of queue steps: what was acknowledged is there, once and in
//! its order.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use hapax_conformance::scale;
use hapax_core::Tenant;
use hapax_core::log::{Appended, Log, PageRequest, TailPosition};
use hapax_core::queue::{
    Enqueued, ItemId, ItemOutcome, LeaseRequest, Queue, QueueItem, QueueName, Resolved,
};
use hapax_postgres::PostgresStore;
use hapax_testkit::Postgres;

use crate::kills::{Worker, acknowledge, run_worker};
use crate::logs::{KEEP, event, job};
use crate::{LONG, open};

fn queue() -> QueueName {
    QueueName::new("flow").unwrap()
}

/// The child's work; does nothing unless it is started as the child.
#[test]
fn worker() {
    run_worker(|store, name, tasks| {
        for task in 0..6 {
            let own = format!("{name}-{task}");
            tasks.spawn(publish(store.clone(), own.clone()));
            tasks.spawn(enqueue(store.clone(), own));
            if task < 2 {
                tasks.spawn(relay(store.clone()));
            }
        }
    });
}

/// Asks again until it knows, as a producer does.
async fn publish(store: PostgresStore, name: String) {
    for seq in 1.. {
        let event = event(&job(&name), seq);
        let at = loop {
            match store.append(std::slice::from_ref(&event), &KEEP).await.as_deref() {
                Ok([Appended::Published(at) | Appended::Duplicate(at)]) => break *at,
                Ok(other) => panic!("{other:?}"),
                Err(_) => tokio::task::yield_now().await,
            }
        };
        acknowledge(&format!("event {name} {seq} {}", at.offset));
    }
}

async fn enqueue(store: PostgresStore, name: String) {
    for n in 1.. {
        let item = QueueItem::new(&Tenant::default(), "t", format!("{name} {n}")).key(&name);
        while store.enqueue(&queue(), std::slice::from_ref(&item)).await.is_err() {
            tokio::task::yield_now().await;
        }
        acknowledge(&format!("enqueued {name} {n} {}", item.id));
    }
}

/// A dead relay's leases lapse soon.
async fn relay(store: PostgresStore) {
    let lease = Duration::from_secs(3);
    loop {
        let take = LeaseRequest::new(20, lease);
        let Ok(rows) = store.lease(&queue(), &take).await else { continue };
        if rows.is_empty() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let ids: Vec<ItemId> = rows.iter().map(|row| row.item.id).collect();
        let Ok(answers) = store.ack(&queue(), &take.token, &ids, LONG).await else { continue };
        for (row, answer) in rows.iter().zip(answers) {
            if answer == Resolved::Done {
                let text = std::str::from_utf8(&row.item.payload).unwrap();
                acknowledge(&format!("done {text}"));
            }
        }
    }
}

/// The steps that were acknowledged to the workers.
#[derive(Default)]
struct Ledger {
    events: BTreeMap<String, Vec<(u64, u64)>>,
    enqueued: HashMap<(String, u32), ItemId>,
    done: HashMap<String, Vec<u32>>,
}

impl Ledger {
    fn enter(&mut self, lines: Vec<String>) {
        for line in lines {
            let words: Vec<_> = line.split(' ').collect();
            let (name, number) = (words[1].to_owned(), words[2]);
            match words[0] {
                "event" => {
                    let at = (number.parse().unwrap(), words[3].parse().unwrap());
                    self.events.entry(name).or_default().push(at);
                }
                "enqueued" => {
                    let id = ItemId(words[3].parse().unwrap());
                    self.enqueued.insert((name, number.parse().unwrap()), id);
                }
                "done" => self.done.entry(name).or_default().push(number.parse().unwrap()),
                other => panic!("{other}"),
            }
        }
    }

    /// The workers are dead; what they had sent is decided before anything is read, or the tail
    /// and the logs would be read of two states.
    fn check(self, server: &Postgres) {
        server.wait_until_alone();
        let runtime = tokio::runtime::Runtime::new().unwrap();
        runtime.block_on(self.compare(&open(&server.url())));
    }

    async fn compare(mut self, store: &PostgresStore) {
        assert!(!self.events.is_empty() && !self.done.is_empty());
        let tails: Vec<_> = (0..store.partitions()).map(|p| (p, TailPosition::start())).collect();
        let mut pointers: HashMap<String, Vec<u64>> = HashMap::new();
        for tail in store.tail(&tails, 1_000_000).await.unwrap() {
            assert!(!tail.lost);
            for change in tail.changes {
                pointers.entry(change.job.name().to_owned()).or_default().push(change.offset);
            }
        }
        for (name, acknowledged) in &self.events {
            let log = store
                .attach(&job(name), &PageRequest::new(0, 1_000_000).with_state())
                .await
                .unwrap()
                .expect("a log was lost");
            let offsets: Vec<_> = log.entries.iter().map(|entry| entry.at.offset).collect();
            assert_eq!(offsets, (1..=log.head.last).collect::<Vec<_>>());
            assert_eq!(pointers[name], offsets, "the tail shows each once, in order");
            for (seq, offset) in acknowledged {
                assert_eq!(log.entries[*offset as usize - 1].seq, *seq, "an event was lost");
            }
        }
        self.drain(store).await;
        for ((name, n), id) in &self.enqueued {
            // A relay may have died before it could say so; then the queue remembers it.
            if !self.done.get(name).is_some_and(|done| done.contains(n)) {
                let item = QueueItem::new(&Tenant::default(), "t", "again").id(*id);
                let answer = store.enqueue(&queue(), &[item]).await.unwrap();
                assert_eq!(answer, [Enqueued::Duplicate], "{name} {n} was lost");
            }
        }
    }

    /// Takes what the dead left behind: what they were told is done does not come again.
    async fn drain(&mut self, store: &PostgresStore) {
        let deadline = tokio::time::Instant::now() + Duration::from_secs(120);
        loop {
            let take = LeaseRequest::new(500, LONG);
            let rows = store.lease(&queue(), &take).await.unwrap();
            for row in &rows {
                let text = std::str::from_utf8(&row.item.payload).unwrap();
                let (name, n) = text.split_once(' ').unwrap();
                let (n, done): (u32, _) =
                    (n.parse().unwrap(), self.done.entry(name.into()).or_default());
                assert!(!done.contains(&n), "{text} was done before");
                assert!(done.last().is_none_or(|last| *last < n), "{text} comes after {done:?}");
                done.push(n);
            }
            let ack = ItemOutcome::Ack { retention: LONG };
            let acks: Vec<_> = rows.iter().map(|row| (row.item.id, ack.clone())).collect();
            let answers = store.resolve(&queue(), &take.token, &acks).await.unwrap();
            assert!(answers.iter().all(|answer| *answer == Resolved::Done));
            let depth = store.depth(&queue(), None).await.unwrap();
            if depth.waiting + depth.in_flight == 0 {
                return;
            }
            assert!(tokio::time::Instant::now() < deadline, "{depth:?}");
            if rows.is_empty() {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
    }
}

#[test]
fn killed_client_loses_no_event_and_no_item() {
    let server = Postgres::start();
    let mut ledger = Ledger::default();
    for kill in 0..scale(8) {
        let worker = Worker::start("flows::worker", &server.url(), &format!("c{kill}"));
        worker.wait_for_a("done ");
        worker.wait_for(80 + kill as usize % 5 * 31);
        ledger.enter(worker.kill());
    }
    ledger.check(&server);
}

#[test]
fn killed_server_loses_no_event_and_no_item() {
    let server = Postgres::start();
    let mut ledger = Ledger::default();
    let worker = Worker::start("flows::worker", &server.url(), "s");
    worker.wait_for_a("done ");
    for _ in 0..scale(3) {
        worker.wait_for(worker.acknowledged() + 150);
        server.kill();
        server.restart();
    }
    worker.wait_for(worker.acknowledged() + 150);
    ledger.enter(worker.kill());
    ledger.check(&server);
}
