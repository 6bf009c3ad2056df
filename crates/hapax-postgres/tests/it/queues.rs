//! Queues: late commits, backlogs, poison, many relays.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use hapax_core::queue::{
    DeadQuery, Enqueued, ItemId, ItemOutcome, LeaseRequest, LeasedItem, MAX_EXAMINED, Queue,
    QueueDepth, QueueItem, QueueName, Resolved,
};
use hapax_core::{Store, StoreError, Tenant};
use hapax_postgres::{PostgresConfig, PostgresStore};
use tokio::task::JoinSet;

use crate::{LONG, SERVER, client, open, pages_of, retry_timeouts};

fn outbox() -> QueueName {
    QueueName::outbox()
}

async fn leased(store: &PostgresStore, at_most: usize) -> (LeaseRequest, Vec<LeasedItem>) {
    let take = LeaseRequest::new(at_most, LONG);
    let leased = store.lease(&outbox(), &take).await.unwrap();
    (take, leased)
}

async fn ack(store: &PostgresStore, take: &LeaseRequest, leased: &[LeasedItem]) {
    let ids: Vec<ItemId> = leased.iter().map(|leased| leased.item.id).collect();
    let done = store.ack(&outbox(), &take.token, &ids, Duration::ZERO).await.unwrap();
    assert!(done.iter().all(|done| *done == Resolved::Done));
}

fn text(leased: &[LeasedItem]) -> Vec<&str> {
    leased.iter().map(|leased| std::str::from_utf8(&leased.item.payload).unwrap()).collect()
}

/// A poller that remembers the highest id it saw never comes back for a row whose transaction took
/// its number earlier and committed later.
#[tokio::test]
async fn hole_26_a_row_that_commits_late_is_delivered() {
    let url = SERVER.database("hole_26");
    let store = open(&url);
    store.ping().await.unwrap();
    let (late, early) = (client(&url).await, client(&url).await);
    let insert = "INSERT INTO hapax_outbox (topic, key, payload) VALUES ('t', $1, $2)";
    late.batch_execute("BEGIN").await.unwrap();
    late.execute(insert, &[&"a", &&b"late"[..]]).await.unwrap();
    early.execute(insert, &[&"b", &&b"early"[..]]).await.unwrap();

    // The usual design's poller, and ours.
    let poll = "SELECT seq, payload FROM hapax_outbox WHERE seq > $1 ORDER BY seq";
    let seen = early.query(poll, &[&0_i64]).await.unwrap();
    let last: i64 = seen.last().unwrap().get("seq");
    let (take, first) = leased(&store, 10).await;
    assert_eq!(text(&first), ["early"]);
    ack(&store, &take, &first).await;

    late.batch_execute("COMMIT").await.unwrap();
    assert!(
        early.query(poll, &[&last]).await.unwrap().is_empty(),
        "`id > last` misses it for ever"
    );
    let (_, second) = leased(&store, 10).await;
    assert_eq!(text(&second), ["late"]);
}

#[tokio::test]
async fn outbox_plain_insert_has_defaults_and_checks() {
    let url = SERVER.database("plain_sql");
    let store = open(&url);
    store.ping().await.unwrap();
    let own = client(&url).await;
    own.batch_execute(
        "INSERT INTO hapax_outbox (topic, key, payload) VALUES ('orders', 'order-1', '{\"n\":1}'::bytea);
         INSERT INTO hapax_outbox (id, tenant, topic, payload, content_type, headers, deliver_after)
         VALUES ('00000000-0000-0000-0000-000000000007', 'acme', 'mail', 'x', 'text/plain',
                 '{\"traceparent\":\"00-1\",\"n\":7}', now() - interval '1 s')",
    )
    .await
    .unwrap();
    let (_, rows) = leased(&store, 10).await;
    let [order, mail] = &rows[..] else { panic!("{rows:?}") };
    assert_eq!((&*order.item.topic, order.item.key.as_deref()), ("orders", Some("order-1")));
    assert_eq!((&order.item.tenant, order.attempt), (&Tenant::default(), 1));
    assert!(order.item.headers.is_empty() && order.item.content_type.is_none());
    assert_eq!(mail.item.tenant.as_str(), "acme");
    assert_eq!(mail.item.id.to_string(), "00000000-0000-0000-0000-000000000007");
    assert_eq!(mail.item.headers["traceparent"], "00-1");
    assert_eq!(mail.item.headers["n"], "7");
    let nonsense = "INSERT INTO hapax_outbox (topic, payload, headers) VALUES ('t', 'x', '[]')";
    assert!(own.batch_execute(nonsense).await.is_err());
    let again = QueueItem::new(&Tenant::default(), "mail", "y").id(mail.item.id);
    let answer = store.enqueue(&outbox(), &[again]).await.unwrap();
    assert_eq!(answer, [hapax_core::queue::Enqueued::Duplicate]);
}

/// A row that could not be read would stop the whole queue.
#[tokio::test]
async fn outbox_hands_out_unusual_headers() {
    let url = SERVER.database("odd_headers");
    let store = open(&url);
    store.ping().await.unwrap();
    let own = client(&url).await;
    own.batch_execute(
        "INSERT INTO hapax_outbox (topic, payload, headers)
         SELECT 't', 'deep', ('{\"ok\":\"1\",\"n\":' || repeat('[', 200) || repeat(']', 200) || '}')::jsonb;
         INSERT INTO hapax_outbox (topic, payload, headers)
         VALUES ('t', 'huge', '{\"ok\":\"1\",\"n\":1e999,\"b\":null}');
         INSERT INTO hapax_outbox (topic, payload) VALUES ('t', 'neighbour')",
    )
    .await
    .unwrap();
    // Counting on from here would stop the queue.
    let full =
        "INSERT INTO hapax_outbox (topic, payload, attempts) VALUES ('t', 'full', 2147483647)";
    assert!(own.batch_execute(full).await.is_err());
    let (_, rows) = leased(&store, 10).await;
    assert_eq!(text(&rows), ["deep", "huge", "neighbour"]);
    assert!(rows[..2].iter().all(|row| row.item.headers["ok"] == "1"), "{rows:?}");
    assert_eq!(rows[1].item.headers["b"], "null");
}

/// How many pages a lease of 100 looks at.
async fn pages_of_a_lease(own: &tokio_postgres::Client, token: &str) -> i64 {
    let lease =
        format!("SELECT * FROM hapax_lease('outbox', convert_to('{token}', 'UTF8'), 100, 60000)");
    pages_of(own, &lease).await
}

/// Counted in pages, not in time: 100,000 rows that are done, in a backlog, or behind a dead letter
/// of their key cost a lease no more than a few do.
#[tokio::test(flavor = "multi_thread")]
async fn lease_cost_is_independent_of_backlog_and_dead_rows() {
    let url = SERVER.database("backlog");
    let store = open(&url);
    store.ping().await.unwrap();
    let own = client(&url).await;
    let fill = |rows: u32| {
        format!(
            "INSERT INTO hapax_outbox (topic, key, payload) \
             SELECT 't', 'k' || n % 5000, convert_to('row ' || n, 'UTF8') FROM generate_series(1, {rows}) n"
        )
    };
    own.batch_execute(&fill(2000)).await.unwrap();
    leased(&store, 1).await;
    let few = pages_of_a_lease(&own, "few").await;

    own.batch_execute("TRUNCATE hapax_outbox, hapax_leases").await.unwrap();
    own.batch_execute(
        "INSERT INTO hapax_outbox (topic, payload, phase, due_at) \
         SELECT 't', 'done', 5, now() + interval '1 day' FROM generate_series(1, 20000);
         INSERT INTO hapax_outbox (topic, key, payload) VALUES ('t', 'poison', 'dead');
         INSERT INTO hapax_outbox (topic, key, payload) \
         SELECT 't', 'poison', convert_to(n::text, 'UTF8') FROM generate_series(1, 50000) n",
    )
    .await
    .unwrap();
    let (take, first) = leased(&store, 1).await;
    let bury = ItemOutcome::Bury { reason: "poison".into(), blocks: true };
    let dead = first[0].item.id;
    assert_eq!(
        store.resolve(&outbox(), &take.token, &[(dead, bury)]).await.unwrap(),
        [Resolved::Done]
    );
    own.batch_execute(&fill(20_000)).await.unwrap();

    // The first ones have to get past it; then it is out of the way.
    let (take, rows) = leased(&store, 2000).await;
    assert!(!rows.is_empty() && rows.iter().all(|row| row.item.key.as_deref() != Some("poison")));
    ack(&store, &take, &rows).await;
    for _ in 0..40 {
        let (take, rows) = leased(&store, 100).await;
        assert_eq!(rows.len(), 100);
        ack(&store, &take, &rows).await;
    }
    let many = pages_of_a_lease(&own, "many").await;
    assert!(many < 3 * few + 1500, "{many} pages instead of {few}");
    let waiting = store.depth(&outbox(), None).await.unwrap();
    assert_eq!((waiting.dead, waiting.in_flight), (1, 101 - 1));

    // An operator helps; everything comes, the key in its order.
    assert!(store.discard(&outbox(), None, dead).await.unwrap());
    own.batch_execute("DELETE FROM hapax_leases").await.unwrap();
    let (mut poison, mut others) = (Vec::new(), 0);
    loop {
        let (take, rows) = leased(&store, 1000).await;
        if rows.is_empty() {
            break;
        }
        let (of_key, rest): (Vec<_>, Vec<_>) =
            rows.iter().cloned().partition(|row| row.item.key.as_deref() == Some("poison"));
        poison.extend(text(&of_key).iter().map(|n| n.parse::<u32>().unwrap()));
        others += rest.len();
        ack(&store, &take, &rows).await;
    }
    assert_eq!(poison, (1..=50_000).collect::<Vec<_>>());
    assert!(others > 10_000);
    assert_eq!(store.depth(&outbox(), None).await.unwrap(), QueueDepth::default());
}

/// Four relays on two nodes, keys that are hot and keys that are not, failures and lapsed leases:
/// every row is done once, those of a key in their order.
#[tokio::test(flavor = "multi_thread")]
async fn relays_keep_key_order_and_do_nothing_twice() {
    const ROWS: u32 = 3000;
    let url = SERVER.database("relays");
    let stores = [open(&url), open(&url)];
    let items: Vec<QueueItem> = (0..ROWS)
        .map(|n| {
            let key = if n % 3 == 0 { "hot".to_owned() } else { format!("k{}", n % 97) };
            QueueItem::new(&Tenant::default(), "t", n.to_string()).key(&key)
        })
        .collect();
    for chunk in items.chunks(500) {
        stores[0].enqueue(&outbox(), chunk).await.unwrap();
    }
    let done = Arc::new(std::sync::Mutex::new(Vec::new()));
    let mut relays = JoinSet::new();
    for relay in 0..4_usize {
        let (store, done) = (stores[relay % 2].clone(), done.clone());
        relays.spawn(async move {
            for round in 0.. {
                let lapses = round % 7 == relay % 7;
                let lease = if lapses { Duration::from_millis(1) } else { LONG };
                let take = LeaseRequest::new(50 + 37 * relay, lease);
                let rows = store.lease(&outbox(), &take).await.unwrap();
                if rows.is_empty()
                    && store.depth(&outbox(), None).await.unwrap() == QueueDepth::default()
                {
                    return;
                }
                if lapses {
                    continue;
                }
                // The first half is delivered; what fails after it takes the rest back with it.
                let half = rows.len().div_ceil(2);
                let mut outcomes = Vec::new();
                for (i, row) in rows.iter().enumerate() {
                    outcomes.push((
                        row.item.id,
                        match i < half {
                            true => ItemOutcome::Ack { retention: Duration::ZERO },
                            false => ItemOutcome::Retry {
                                after: Duration::ZERO,
                                counts: false,
                                reason: "".into(),
                                keeps_place: true,
                            },
                        },
                    ));
                }
                // Noted before the ack: after it another relay could note a later item first.
                let told: Vec<_> = rows[..half].iter().map(|row| row.item.clone()).collect();
                done.lock().unwrap().extend(told);
                let answers = store.resolve(&outbox(), &take.token, &outcomes).await.unwrap();
                assert!(answers.iter().all(|answer| *answer == Resolved::Done));
            }
        });
    }
    relays.join_all().await;
    let done = done.lock().unwrap();
    assert_eq!(done.iter().map(|item| item.id).collect::<HashSet<_>>().len(), ROWS as usize);
    assert_eq!(done.len(), ROWS as usize);
    let mut last: HashMap<Arc<str>, u32> = HashMap::new();
    for item in done.iter() {
        let n: u32 = std::str::from_utf8(&item.payload).unwrap().parse().unwrap();
        let before = last.insert(item.key.clone().unwrap(), n);
        assert!(before.is_none_or(|before| before < n), "{before:?} and then {n}");
    }
}

/// An id that an open transaction has inserted once made all concurrent enqueues of the node wait, and
/// fail with it.
#[tokio::test]
async fn fault_15_locked_id_fails_no_neighbour() {
    let url = SERVER.database("locked_id");
    open(&url).ping().await.unwrap();
    let brief = PostgresConfig::new(&url).timeout(Duration::from_secs(2));
    let store = PostgresStore::open(brief).unwrap();
    let own = client(&url).await;
    let locked = QueueItem::new(&Tenant::default(), "t", "locked");
    own.batch_execute("BEGIN").await.unwrap();
    let insert = "INSERT INTO hapax_outbox (id, topic, payload) VALUES ($1, 't', 'first')";
    own.execute(insert, &[&locked.id.0]).await.unwrap();

    let enqueue = |item: QueueItem| {
        let store = store.clone();
        let call = async move || store.enqueue(&outbox(), std::slice::from_ref(&item)).await;
        tokio::spawn(async move { retry_timeouts(call).await })
    };
    let held_up = enqueue(locked.clone());
    let neighbours: Vec<_> =
        (0..20).map(|n| enqueue(QueueItem::new(&Tenant::default(), "t", n.to_string()))).collect();
    for neighbour in neighbours {
        neighbour.await.unwrap().unwrap();
    }
    let held_up = held_up.await.unwrap();
    assert!(matches!(held_up, Err(StoreError::Locked { .. })), "{held_up:?}");
    own.batch_execute("COMMIT").await.unwrap();
    assert_eq!(enqueue(locked).await.unwrap().unwrap(), [Enqueued::Duplicate]);
    assert_eq!(store.depth(&outbox(), None).await.unwrap().waiting, 21);
}

#[tokio::test]
async fn fault_29_depth_reads_no_payloads() {
    let url = SERVER.database("depth_pages");
    let store = open(&url);
    store.ping().await.unwrap();
    let own = client(&url).await;
    own.batch_execute(
        "INSERT INTO hapax_outbox (topic, payload) \
         SELECT 't', convert_to(repeat(md5(n::text), 40), 'UTF8') FROM generate_series(1, 10000) n",
    )
    .await
    .unwrap();
    own.batch_execute("VACUUM (ANALYZE) hapax_outbox").await.unwrap();
    let depth = include_str!("../../src/sql/depth.sql").replace("$1", "'outbox'");
    let pages = pages_of(&own, &depth.replace("$2", "100000")).await;
    assert!(pages < 600, "{pages} pages for 10,000 rows");
    let take = LeaseRequest::new(30, LONG);
    assert_eq!(store.lease(&outbox(), &take).await.unwrap().len(), 30);
    let depth = store.depth(&outbox(), None).await.unwrap();
    assert_eq!((depth.waiting, depth.in_flight, depth.dead), (9970, 30, 0));
    assert!(depth.oldest_age.is_some());
}

/// How many pages the depth of the outbox looks at that counts so many rows.
async fn pages_of_depth(own: &tokio_postgres::Client, counted: u32) -> i64 {
    let depth = include_str!("../../src/sql/depth.sql");
    pages_as_in_the_store(own, depth, "text, bigint", &format!("'outbox', {counted}")).await
}

/// How many pages a statement looks at with the settings of the store's connections.
async fn pages_as_in_the_store(
    own: &tokio_postgres::Client,
    sql: &str,
    types: &str,
    values: &str,
) -> i64 {
    own.batch_execute(&format!(
        "DEALLOCATE ALL; SET plan_cache_mode = force_generic_plan; SET enable_seqscan = off; \
         SET enable_hashjoin = off; SET enable_mergejoin = off; SET jit = off; \
         PREPARE asked ({types}) AS {sql}"
    ))
    .await
    .unwrap();
    let execute = format!("EXECUTE asked({values})");
    // The first call of a session reads the catalog.
    pages_of(own, &execute).await;
    pages_of(own, &execute).await
}

/// So many rows without a key, and every tenth of them another tenant's.
fn fill_outbox(rows: u32) -> String {
    format!(
        "INSERT INTO hapax_outbox (topic, tenant, payload) \
         SELECT 't', CASE n % 10 WHEN 0 THEN 'guest' ELSE 'default' END, '' \
         FROM generate_series(1, {rows}) n"
    )
}

/// Whether a number is within so many per cent of another one.
fn is_close(number: u64, truth: u64, percent: u64) -> bool {
    number.abs_diff(truth) * 100 <= truth * percent
}

/// The depth once counted every row: 147 ms for a million.
#[tokio::test]
async fn depth_costs_the_same_for_longer_backlogs() {
    let outbox = BusyOutbox::start("depth_cost").await;
    // Behind a vacuum an index is read without the pages of its rows, and only the first half would be behind it.
    let no_vacuum = "ALTER TABLE hapax_outbox SET (autovacuum_enabled = off)";
    outbox.own.batch_execute(no_vacuum).await.unwrap();
    // With a lower limit than the store's, so that the backlog need not be so long.
    outbox.own.batch_execute(&fill_outbox(75_000)).await.unwrap();
    let shorter = pages_of_depth(&outbox.own, 10_000).await;
    outbox.own.batch_execute(&fill_outbox(75_000)).await.unwrap();
    let longer = pages_of_depth(&outbox.own, 10_000).await;
    assert!(longer < shorter + shorter / 5, "{longer} pages, and {shorter} for half of the rows");
}

/// Where rows were taken from the front, or all of them have one key and so one shard, or other queues draw
/// from the same numbers, too.
#[tokio::test]
async fn depth_of_a_long_backlog_is_a_close_estimate() {
    let outbox = BusyOutbox::start("depth_estimate").await;
    let (store, own) = (&outbox.store, &outbox.own);
    let (queue, guest) = (QueueName::outbox(), Tenant::new("guest").unwrap());
    let waiting = async |whose| store.depth(&queue, whose).await.unwrap().waiting;
    own.batch_execute(&fill_outbox(100_000)).await.unwrap();
    assert_eq!(waiting(None).await, 100_000, "counted up to the limit");
    assert_eq!(waiting(Some(&guest)).await, 10_000, "counted up to the limit");

    own.batch_execute(&fill_outbox(100_000)).await.unwrap();
    let (all, theirs) = (waiting(None).await, waiting(Some(&guest)).await);
    assert!(all > 100_000 && is_close(all, 200_000, 2), "{all} of 200000");
    assert!(is_close(theirs, 20_000, 10), "{theirs} of 20000");
    let depth = store.depth(&queue, Some(&guest)).await.unwrap();
    assert!(depth.oldest_age.is_some());
    assert_eq!(leased(store, 500).await.1.len(), 500);
    let depth = store.depth(&queue, None).await.unwrap();
    assert_eq!(depth.in_flight, 500);
    assert!(is_close(depth.waiting, 199_500, 2), "{} of 199500", depth.waiting);
    own.batch_execute("DELETE FROM hapax_leases").await.unwrap();

    // Most of the first half is gone; between the halves another queue had as many rows.
    own.batch_execute(
        "DELETE FROM hapax_outbox WHERE seq <= 100000 AND seq % 10 <> 1; \
         SELECT setval(pg_get_serial_sequence('hapax_outbox', 'seq'), 400000)",
    )
    .await
    .unwrap();
    own.batch_execute(&fill_outbox(50_000)).await.unwrap();
    let all = waiting(None).await;
    assert!(is_close(all, 160_000, 5), "{all} of 160000, with holes");

    own.batch_execute("TRUNCATE hapax_outbox, hapax_shards").await.unwrap();
    let one_key = "INSERT INTO hapax_outbox (topic, key, payload) \
                   SELECT 't', 'hot', '' FROM generate_series(1, 99000)";
    own.batch_execute(one_key).await.unwrap();
    assert_eq!(waiting(None).await, 99_000, "counted, although all are in one shard");
    own.batch_execute(one_key).await.unwrap();
    let all = waiting(None).await;
    assert!(is_close(all, 198_000, 2), "{all} of 198000 in one shard");
}

/// The depth of a drained queue once timed out beside an old snapshot: it walked over a million index entries
/// of rows that were done. So did the list of what waits.
#[tokio::test]
async fn depth_and_waiting_skip_delivered_rows() {
    let outbox = BusyOutbox::start("depth_snapshot").await;
    let backup = client(&outbox.url).await;
    backup.batch_execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1").await.unwrap();
    outbox.pass(20, 2000).await;
    outbox.insert("topic, payload", "'t', 'last'").await;
    let pages = pages_of_depth(&outbox.own, MAX_EXAMINED).await;
    assert!(pages < 6000, "{pages} pages to count one row");
    let (waiting, types) =
        (include_str!("../../src/sql/waiting.sql"), "text, text, bigint, bigint");
    let values = format!("'outbox', NULL, 50, {MAX_EXAMINED}");
    let pages = pages_as_in_the_store(&outbox.own, waiting, types, &values).await;
    assert!(pages < 6000, "{pages} pages to list one row");
    let queue = QueueName::outbox();
    assert_eq!(outbox.store.depth(&queue, None).await.unwrap().waiting, 1);
    assert_eq!(outbox.store.waiting(&queue, None, 50).await.unwrap().len(), 1);
    backup.batch_execute("ROLLBACK").await.unwrap();
}

/// Queues of every kind are found: those that were leased from, and others before, between and behind them.
#[tokio::test]
async fn queues_are_found_before_and_behind_leased_ones() {
    let outbox = BusyOutbox::start("queue_names").await;
    let insert = |queue: &str, rest: &str| {
        format!(
            "INSERT INTO hapax_outbox (queue, topic, payload, deliver_after) VALUES ('{queue}', 't', '', {rest});"
        )
    };
    let later = "now() + interval '1 day'";
    let rows =
        [("a", "NULL"), ("b", later), ("n", "NULL"), ("p", "NULL"), ("q", later), ("z", later)];
    let rows: String = rows.iter().map(|(queue, after)| insert(queue, after)).collect();
    outbox.own.batch_execute(&rows).await.unwrap();
    let names = async || -> Vec<String> {
        let queues = outbox.store.queues().await.unwrap();
        queues.iter().map(|queue| queue.as_str().to_owned()).collect()
    };
    assert_eq!(names().await, ["a", "b", "n", "p", "q", "z"]);
    for leased in ["b", "outbox", "p"] {
        let (queue, take) = (QueueName::new(leased).unwrap(), LeaseRequest::new(10, LONG));
        outbox.store.lease(&queue, &take).await.unwrap();
    }
    assert_eq!(names().await, ["a", "b", "n", "outbox", "p", "q", "z"]);
}

/// A row that somebody's own UPDATE puts back is counted although no relay is at work to find it.
#[tokio::test]
async fn depth_counts_rows_that_were_put_back_by_hand() {
    let outbox = BusyOutbox::start("depth_put_back").await;
    outbox.insert("topic, payload, phase, due_at", "'t', 'back', 4, now()").await;
    outbox.pass(5, 160).await;
    let back = "UPDATE hapax_outbox SET phase = 0, due_at = NULL WHERE payload = 'back'; \
                UPDATE hapax_shards SET full_at = full_at - interval '2 minutes'";
    outbox.own.batch_execute(back).await.unwrap();
    assert_eq!(outbox.store.depth(&QueueName::outbox(), None).await.unwrap().waiting, 1);
}

/// Rows that go through the queue while somebody has an old snapshot.
struct BusyOutbox {
    url: String,
    store: PostgresStore,
    own: tokio_postgres::Client,
}

impl BusyOutbox {
    async fn start(database: &str) -> Self {
        let url = SERVER.database(database);
        let store = open(&url);
        store.ping().await.unwrap();
        let own = client(&url).await;
        Self { url, store, own }
    }

    async fn insert(&self, columns: &str, values: &str) -> i64 {
        let insert =
            format!("INSERT INTO hapax_outbox ({columns}) VALUES ({values}) RETURNING seq");
        self.own.query_one(&insert, &[]).await.unwrap().get(0)
    }

    /// Delivers everything, as a relay does. Returns the payloads.
    async fn drain(&self) -> Vec<String> {
        let mut all = Vec::new();
        loop {
            let (take, rows) = leased(&self.store, 1000).await;
            if rows.is_empty() {
                return all;
            }
            ack(&self.store, &take, &rows).await;
            all.extend(text(&rows).into_iter().map(str::to_owned));
        }
    }

    /// Enqueues and delivers so many rows, in several steps. The numbers skip some between them, as if
    /// many more had passed through.
    async fn pass(&self, steps: u32, rows: u32) {
        for _ in 0..steps {
            let step = format!(
                "INSERT INTO hapax_outbox (topic, payload) \
                 SELECT 't', 'passed' FROM generate_series(1, {rows}); \
                 SELECT setval(pg_get_serial_sequence('hapax_outbox', 'seq'), \
                               20000 + nextval(pg_get_serial_sequence('hapax_outbox', 'seq')))"
            );
            self.own.batch_execute(&step).await.unwrap();
            assert_eq!(self.drain().await.len(), rows as usize);
        }
    }
}

/// A backup beside a busy outbox once made every lease walk over all rows delivered since it began.
#[tokio::test]
async fn fault_30_lease_does_not_walk_over_delivered_rows() {
    let outbox = BusyOutbox::start("old_snapshot").await;
    let backup = client(&outbox.url).await;
    backup.batch_execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1").await.unwrap();
    outbox.pass(20, 1000).await;
    outbox.insert("topic, payload", "'t', 'last'").await;
    let pages = pages_of_a_lease(&outbox.own, "busy").await;
    assert!(pages < 3000, "{pages} pages for one row");
    backup.batch_execute("ROLLBACK").await.unwrap();
}

/// Rows that appear behind those that were delivered already: of a transaction that commits late, of a
/// delay, a retry, an operator, and of somebody's own UPDATE.
#[tokio::test]
async fn fault_30_rows_that_appear_late_are_delivered() {
    let outbox = BusyOutbox::start("late_rows").await;
    let lows = "SELECT min(low), max(low) FROM hapax_shards";
    let late = client(&outbox.url).await;
    late.batch_execute("BEGIN").await.unwrap();
    let insert = "INSERT INTO hapax_outbox (topic, payload) VALUES ('t', 'late') RETURNING seq";
    let late_seq: i64 = late.query_one(insert, &[]).await.unwrap().get(0);
    outbox
        .insert("topic, payload, deliver_after", "'t', 'delayed', now() + interval '1 day'")
        .await;
    outbox.insert("topic, payload, phase, due_at", "'t', 'dead', 4, now()").await;
    outbox.insert("topic, payload, phase, due_at", "'t', 'updated', 4, now()").await;
    outbox.pass(5, 160).await;
    let highest: i64 = outbox.own.query_one(lows, &[]).await.unwrap().get(1);
    assert!(highest <= late_seq, "{highest} is beyond a row that may still appear");
    late.batch_execute("COMMIT").await.unwrap();
    assert_eq!(outbox.drain().await, ["late"]);

    outbox.pass(5, 160).await;
    let lowest: i64 = outbox.own.query_one(lows, &[]).await.unwrap().get(0);
    assert!(lowest > late_seq + 3, "{lowest} did not move");
    let due = "UPDATE hapax_outbox SET deliver_after = now() WHERE payload = 'delayed'";
    outbox.own.batch_execute(due).await.unwrap();
    assert_eq!(outbox.drain().await, ["delayed"]);
    let dead = outbox.store.dead(&QueueName::outbox(), None, &DeadQuery::new(10)).await.unwrap();
    let dead_id = "SELECT id FROM hapax_outbox WHERE payload = 'dead'";
    let dead_id = ItemId(outbox.own.query_one(dead_id, &[]).await.unwrap().get(0));
    assert!(dead.len() == 2 && dead.iter().any(|dead| dead.id == dead_id));
    assert!(outbox.store.requeue(&QueueName::outbox(), None, dead_id).await.unwrap());
    assert_eq!(outbox.drain().await, ["dead"]);

    outbox.pass(5, 160).await;
    let updated = "UPDATE hapax_outbox SET phase = 0, due_at = NULL WHERE payload = 'updated'";
    outbox.own.batch_execute(updated).await.unwrap();
    let a_minute_later = "UPDATE hapax_shards SET full_at = full_at - interval '1 minute'";
    outbox.own.batch_execute(a_minute_later).await.unwrap();
    assert_eq!(outbox.drain().await, ["updated"]);
}
