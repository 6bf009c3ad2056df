//! The cost of a lease, counted in steps of the engine, because times depend on the machine.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use hapax_core::queue::{
    DeadQuery, ItemOutcome, LeaseRequest, LeasedItem, MAX_EXAMINED, QueueItem, QueueName,
};
use hapax_core::{Clock, ManualClock, Tenant};
use rusqlite::Connection;

use super::{dead, enqueue, lease, oversee, resolve};
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
        let (connection, clock) = (&self.connection, SessionClock::Chosen(&self.clock));
        Session { connection, clock, sequence: None }
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

/// The steps of a call, the second time.
fn steps<T>(bench: &Bench, call: impl Fn() -> T) -> (T, u64) {
    call();
    let before = bench.steps.load(Ordering::Relaxed);
    let answer = call();
    let calls = bench.steps.load(Ordering::Relaxed) - before;
    (answer, calls * u64::try_from(GRAIN).unwrap())
}

#[test]
fn waiting_cost_is_independent_of_the_backlog() {
    let cost = |rows| {
        let bench = Bench::new();
        bench.fill(rows, "CASE i % 2 WHEN 0 THEN 'k' || (i % 1000) END");
        bench.take(10);
        let call = || oversee::waiting(bench.session(), &bench.queue, None, 50).unwrap();
        let (found, steps) = steps(&bench, call);
        assert_eq!((found.len(), found.iter().filter(|item| item.in_flight).count()), (50, 10));
        steps
    };
    let (few, many) = (cost(2000), cost(100_000));
    assert!(many < few * 2, "{many} steps, {few} in a short queue");
}

#[test]
fn waiting_of_a_tenant_looks_at_a_limited_number() {
    let guest = Tenant::new("guest").unwrap();
    let cost = |rows: u32| {
        let bench = Bench::new();
        bench.fill(rows, "NULL");
        enqueue(bench.session(), &bench.queue, &[QueueItem::new(&guest, "t", "x")]).unwrap();
        let call = || oversee::waiting(bench.session(), &bench.queue, Some(&guest), 50).unwrap();
        let (found, steps) = steps(&bench, call);
        (found.len(), steps)
    };
    let ((found, within), (too_far, beyond)) = (cost(MAX_EXAMINED - 1), cost(MAX_EXAMINED * 2));
    assert_eq!((found, too_far), (1, 0));
    assert!(beyond < within + within / 10, "{beyond} steps, {within} for all of them");
}

/// The depth once counted every item.
#[test]
fn depth_cost_of_a_long_backlog_is_limited() {
    let bench = Bench::new();
    let tenant = Tenant::default();
    let costs = |added: u32, expected: u32| {
        bench.fill(added, "NULL");
        [None, Some(&tenant)].map(|tenant| {
            let call = || oversee::depth(bench.session(), &bench.queue, tenant).unwrap();
            let (depth, steps) = steps(&bench, call);
            assert_eq!(depth.waiting, u64::from(expected), "no seq is missing");
            steps
        })
    };
    let within = costs(MAX_EXAMINED, MAX_EXAMINED);
    let beyond = costs(50_000, MAX_EXAMINED + 50_000);
    let far_beyond = costs(100_000, MAX_EXAMINED + 150_000);
    for (within, (beyond, far_beyond)) in within.into_iter().zip(beyond.into_iter().zip(far_beyond))
    {
        assert!(beyond < within * 2, "{beyond} steps, {within} up to the limit");
        assert!(far_beyond < beyond + beyond / 10, "{far_beyond} steps, {beyond} for fewer items");
    }
}

/// Where most items are gone from some places, and some are another tenant's.
#[test]
fn depth_of_a_long_backlog_is_a_close_estimate() {
    let bench = Bench::new();
    bench.fill(250_000, "NULL");
    let holes = "DELETE FROM hapax_outbox WHERE seq > 100000 AND seq % 10 >= 2 AND seq / 1000 % 3 <> 1; \
                 UPDATE hapax_outbox SET tenant = 'guest' WHERE seq % 20 = 0";
    bench.connection.execute_batch(holes).unwrap();
    let depth = |tenant| oversee::depth(bench.session(), &bench.queue, tenant).unwrap();
    let guest = Tenant::new("guest").unwrap();
    for (tenant, condition) in [(None, "1"), (Some(&guest), "tenant = 'guest'")] {
        let count = format!("SELECT count(*) FROM hapax_outbox WHERE {condition}");
        let truth: u32 = bench.connection.query_row(&count, [], |row| row.get(0)).unwrap();
        let estimate = depth(tenant).waiting as f64;
        let error = (estimate - f64::from(truth)).abs() / f64::from(truth);
        assert!(error < 0.05, "{estimate} of {truth} where {condition}");
    }
    assert!(depth(Some(&guest)).oldest_age.is_some());
}

#[test]
fn dead_reasons_look_at_a_limited_number() {
    let cost = |rows: u32| {
        let bench = Bench::new();
        bench.fill(rows, "NULL");
        bench.connection.execute_batch("UPDATE hapax_outbox SET state = 5, reason = 'r'").unwrap();
        let call = || dead::dead_reasons(bench.session(), &bench.queue, None, 10).unwrap();
        let (found, steps) = steps(&bench, call);
        (found[0].count, steps)
    };
    let ((counted, within), (limited, beyond)) = (cost(MAX_EXAMINED), cost(MAX_EXAMINED * 2));
    assert_eq!((counted, limited), (MAX_EXAMINED.into(), MAX_EXAMINED.into()));
    assert!(beyond < within + within / 10, "{beyond} steps, {within} for all of them");
}

fn is_statement(text: &str) -> bool {
    ["SELECT", "UPDATE", "DELETE", "INSERT"].iter().any(|word| text.starts_with(word))
}
