//! The cost of a lease, counted in steps of the engine, because times depend on the machine.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use hapax_core::queue::{DeadQuery, ItemOutcome, LeaseRequest, LeasedItem, QueueItem, QueueName};
use hapax_core::{Clock, ManualClock, Tenant};
use rusqlite::Connection;

use super::{dead, enqueue, lease, resolve};
use crate::session::{Session, SessionClock};

const HOUR: Duration = Duration::from_secs(3600);
/// The engine calls the counter once for so many steps.
const GRAIN: i32 = 10;

struct Bench {
    connection: Connection,
    clock: ManualClock,
    queue: QueueName,
    steps: Arc<AtomicU64>,
}

impl Bench {
    fn new() -> Self {
        let mut connection = Connection::open_in_memory().unwrap();
        crate::migrate(&connection).unwrap();
        let steps = Arc::<AtomicU64>::default();
        let counter = steps.clone();
        let count = move || {
            counter.fetch_add(1, Ordering::Relaxed);
            false
        };
        let raw: &mut Connection = &mut connection;
        let _ = raw.progress_handler(GRAIN, Some(count));
        Self { connection, clock: ManualClock::default(), queue: QueueName::outbox(), steps }
    }

    fn session(&self) -> Session<'_> {
        Session { connection: &self.connection, clock: SessionClock::Chosen(&self.clock) }
    }

    /// Many rows by plain SQL, as any language would add them.
    fn fill(&self, rows: u32, key: &str) {
        let sql = format!(
            "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {rows}) \
             INSERT INTO hapax_outbox (topic, key, payload) SELECT 't', {key}, 'x' FROM n"
        );
        self.connection.execute_batch(&sql).unwrap();
    }

    fn item(&self, key: &str) {
        let item = QueueItem::new(&Tenant::default(), "t", "x").key(key);
        enqueue(self.session(), &self.queue, &[item]).unwrap();
    }

    fn take(&self, at_most: usize) -> (LeaseRequest, Vec<LeasedItem>) {
        let take = LeaseRequest::new(at_most, HOUR);
        let leased = lease::lease(self.session(), &self.queue, &take).unwrap();
        (take, leased)
    }

    fn end_all(&self, (take, leased): &(LeaseRequest, Vec<LeasedItem>), how: &ItemOutcome) {
        let outcomes: Vec<_> = leased.iter().map(|l| (l.item.id, how.clone())).collect();
        let done = resolve::resolve(self.session(), &self.queue, &take.token, &outcomes).unwrap();
        assert_eq!(done.len(), leased.len());
    }

    /// The steps of one lease of ten and its acks.
    fn round(&self, expected: usize) -> u64 {
        let before = self.steps.load(Ordering::Relaxed);
        let taken = self.take(10);
        assert_eq!(taken.1.len(), expected);
        self.end_all(&taken, &ItemOutcome::Ack { retention: HOUR });
        (self.steps.load(Ordering::Relaxed) - before) * u64::try_from(GRAIN).unwrap()
    }
}

/// The cost of ten items in an otherwise empty queue.
fn alone() -> u64 {
    let bench = Bench::new();
    (0..10).for_each(|n| bench.item(&format!("k{n}")));
    // The first call compiles its statements.
    bench.round(10);
    (0..10).for_each(|n| bench.item(&format!("k{n}")));
    bench.round(10)
}

#[test]
fn lease_cost_is_independent_of_the_backlog() {
    let bench = Bench::new();
    bench.fill(100_000, "'k' || (i % 1000)");
    bench.round(10);
    let (here, alone) = (bench.round(10), alone());
    assert!(here < alone * 2, "{here} steps, {alone} with nothing else there");
}

#[test]
fn lease_skips_rows_behind_a_dead_letter() {
    let bench = Bench::new();
    bench.fill(50_000, "'poison'");
    let dead = bench.take(1);
    bench.end_all(&dead, &ItemOutcome::Bury { reason: "broken".into(), blocks: true });
    bench.round(0);
    let empty = bench.round(0);
    assert!(empty < 300, "{empty} steps for nothing");
    (0..10).for_each(|n| bench.item(&format!("k{n}")));
    let (here, alone) = (bench.round(10), alone());
    assert!(here < alone * 2, "{here} steps, {alone} with nothing else there");
}

#[test]
fn lease_skips_rows_that_wait_for_their_retry() {
    let bench = Bench::new();
    bench.fill(20_000, "CASE WHEN i % 2 THEN 'k' || i END");
    let all = bench.take(20_000);
    assert_eq!(all.1.len(), 20_000);
    let later =
        ItemOutcome::Retry { after: HOUR, counts: true, reason: "down".into(), keeps_place: true };
    bench.end_all(&all, &later);
    bench.fill(20_000, "CASE WHEN i % 2 THEN 'k' || i END");
    // Half of them have a key, and wait behind what waits.
    bench.round(10);
    let (here, alone) = (bench.round(10), alone());
    assert!(here < alone * 2, "{here} steps, {alone} with nothing else there");
    // When their time has come they are the oldest again.
    bench.clock.advance(HOUR);
    let (_, ripe) = bench.take(10);
    assert!(ripe.iter().all(|leased| leased.attempt == 2), "{:?}", bench.clock.now());
}

#[test]
fn lease_hands_out_a_hot_key_in_runs() {
    let bench = Bench::new();
    bench.fill(10_000, "'hot'");
    bench.round(10);
    let (here, alone) = (bench.round(10), alone());
    assert!(here < alone * 2, "{here} steps, {alone} with nothing else there");
}

#[test]
fn queue_statements_never_scan_the_table() {
    let bench = Bench::new();
    let statements = include_str!("lease.rs").to_owned()
        + include_str!("resolve.rs")
        + include_str!("oversee.rs")
        + include_str!("dead.rs")
        + include_str!("enqueue.rs");
    let mut plans = 0;
    for literal in statements.split('"').filter(|literal| is_statement(literal)) {
        let sql = literal.replace("\\\n", " ").replace("{}", "id");
        let mut query = bench.connection.prepare(&format!("EXPLAIN QUERY PLAN {sql}")).unwrap();
        let parameters = query.parameter_count();
        let nulls = vec![rusqlite::types::Null; parameters];
        let plan: Vec<String> = query
            .query_map(rusqlite::params_from_iter(nulls), |row| row.get(3))
            .unwrap()
            .collect::<Result<_, _>>()
            .unwrap();
        // Scans of what another step of the plan searched for are no scans of a table.
        let is_searched = |name: &str| plan.contains(&format!("CO-ROUTINE {name}"));
        let mut scans = plan.iter().filter_map(|step| step.strip_prefix("SCAN "));
        assert!(
            scans.all(|name| name.contains("json_each") || is_searched(name)),
            "{sql}\n{plan:?}"
        );
        plans += 1;
    }
    assert!(plans > 15, "only {plans} statements were found");
}

#[test]
fn dead_letters_are_read_from_their_own_index() {
    let bench = Bench::new();
    bench.fill(10_000, "NULL");
    let taken = bench.take(3);
    bench.end_all(&taken, &ItemOutcome::Bury { reason: "broken".into(), blocks: false });
    let query = DeadQuery::new(100);
    let letters = || dead::dead(bench.session(), &bench.queue, None, &query).unwrap();
    letters();
    let before = bench.steps.load(Ordering::Relaxed);
    assert_eq!(letters().len(), 3);
    assert!(bench.steps.load(Ordering::Relaxed) - before < 20, "looked at the living");
}

fn is_statement(text: &str) -> bool {
    ["SELECT", "UPDATE", "DELETE", "INSERT"].iter().any(|word| text.starts_with(word))
}
