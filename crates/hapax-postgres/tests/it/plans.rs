//! The plans of the batched statements in a new database, whose tables have no statistics yet: a plan is kept for as
//! long as its connection, and must not turn into a scan when the table grows.

use crate::{application, pages_of};

/// As `connect::url` sets them.
const SETTINGS: &str = "SET plan_cache_mode = force_generic_plan; SET jit = off; SET enable_seqscan = off; \
     SET enable_hashjoin = off; SET enable_mergejoin = off";

const STATEMENTS: [(&str, &str, &str); 6] = [
    (
        "claim",
        include_str!("../../src/sql/claim.sql"),
        "text[], text[], text[], text[], bigint[], bytea[], bytea[], bigint[], bigint[]",
    ),
    (
        "regrant",
        include_str!("../../src/sql/regrant.sql"),
        "text[], text[], text[], text[], bigint[], smallint[], bigint[], bigint[], boolean[], integer[], \
         bytea[], bytea[], bigint[], bigint[]",
    ),
    (
        "step",
        include_str!("../../src/sql/step.sql"),
        "text[], text[], text[], text[], bigint[], bytea[], smallint[], bigint[], bytea[]",
    ),
    ("step_found", include_str!("../../src/sql/step_found.sql"), "text[], text[], text[], text[]"),
    ("get_many", include_str!("../../src/sql/get_many.sql"), "text[], text[], text[], text[]"),
    (
        "put_many",
        include_str!("../../src/sql/put_many.sql"),
        "text[], text[], text[], text[], bigint[], bigint[], bigint[], boolean[], bytea[]",
    ),
];

#[tokio::test]
async fn batched_statements_find_rows_by_key_and_place_alone() {
    let (_, client) = application("plans").await;
    client.batch_execute(SETTINGS).await.unwrap();
    for (name, sql, types) in STATEMENTS {
        let empty = vec!["'{}'"; types.split(',').count()].join(", ");
        client.batch_execute(&format!("PREPARE {name} ({types}) AS {sql}")).await.unwrap();
        let plan = client.simple_query(&format!("EXPLAIN EXECUTE {name} ({empty})")).await.unwrap();
        let lines = plan.iter().filter_map(|message| match message {
            tokio_postgres::SimpleQueryMessage::Row(row) => row.get(0),
            _ => None,
        });
        let scans: Vec<_> = lines
            .filter(|line| line.contains(" on hapax_claims") || line.contains(" on hapax_records"))
            .filter(|line| line.contains("Scan"))
            .collect();
        assert!(!scans.is_empty(), "{name}");
        for scan in scans {
            let by_key = [
                "Tid Scan",
                "Index Scan using hapax_claims_pkey",
                "Index Scan using hapax_records_pkey",
            ];
            assert!(by_key.iter().any(|by_key| scan.contains(by_key)), "{name}: {scan}");
        }
    }
}

/// Statements for operators, and steps that their plans have.
const OPERATOR_STATEMENTS: [(&str, &str, &str, &[&str]); 6] = [
    (
        "depth",
        include_str!("../../src/sql/depth.sql"),
        "text, bigint",
        &["Index Only Scan using hapax_outbox_waiting", "Index Only Scan using hapax_outbox_dead"],
    ),
    (
        "depth_of_tenant",
        include_str!("../../src/sql/depth_of_tenant.sql"),
        "text, text, bigint",
        &["Merge Append", "Index Scan using hapax_outbox_waiting"],
    ),
    (
        "waiting",
        include_str!("../../src/sql/waiting.sql"),
        "text, text, bigint, bigint",
        &["Merge Append", "Index Scan using hapax_outbox_waiting", "Tid Scan on hapax_outbox"],
    ),
    (
        "dead",
        include_str!("../../src/sql/dead.sql"),
        "text, text, uuid, bigint, text, bigint",
        &["Index Scan using hapax_outbox_dead"],
    ),
    (
        "dead_reasons",
        include_str!("../../src/sql/dead_reasons.sql"),
        "text, text, bigint, bigint",
        &["Index Scan using hapax_outbox_dead"],
    ),
    (
        "resolve",
        include_str!("../../src/sql/resolve.sql"),
        "text, bytea, uuid[], smallint[], bigint[], text[]",
        &["Index Scan using hapax_outbox_pkey"],
    ),
];

#[tokio::test]
async fn operator_statements_read_along_their_indexes() {
    let (_, client) = application("operator_plans").await;
    client.batch_execute(SETTINGS).await.unwrap();
    for (name, sql, types, expected) in OPERATOR_STATEMENTS {
        let nulls = vec!["NULL"; types.split(',').count()].join(", ");
        client.batch_execute(&format!("PREPARE {name} ({types}) AS {sql}")).await.unwrap();
        let plan = client.simple_query(&format!("EXPLAIN EXECUTE {name} ({nulls})")).await.unwrap();
        let lines: Vec<_> = plan
            .iter()
            .filter_map(|message| match message {
                tokio_postgres::SimpleQueryMessage::Row(row) => row.get(0),
                _ => None,
            })
            .collect();
        assert!(!lines.iter().any(|line| line.contains("Seq Scan")), "{name}: {lines:#?}");
        for part in expected {
            assert!(lines.iter().any(|line| line.contains(part)), "{name}, {part}: {lines:#?}");
        }
    }
}

/// The calls of a queue, for an item that is new: `?` is its number.
const QUEUE_CALLS: [&str; 3] = [
    "SELECT hapax_add_items('{q}', ARRAY['00000000-0000-0000-0000-00000000000?']::uuid[], '{default}', '{t}', \
     '{NULL}', ARRAY['x'::bytea], '{NULL}', ARRAY['{}'], '{NULL}')",
    "SELECT count(*) FROM hapax_lease('q', 'token?', 10, 60000)",
    "SELECT hapax_resolve('q', 'token?', ARRAY['00000000-0000-0000-0000-00000000000?']::uuid[], '{1}', '{60000}', '{NULL}')",
];

/// Until the tables were analysed, each enqueue once read all done items, and each outcome all items of the queue.
#[tokio::test]
async fn queue_calls_read_as_little_after_the_table_grew() {
    let (_, client) = application("queue_plans").await;
    let off = "ALTER TABLE hapax_outbox SET (autovacuum_enabled = off)";
    client.batch_execute(off).await.unwrap();
    let pages = async |item: usize| {
        let mut pages = 0;
        for call in QUEUE_CALLS {
            pages += pages_of(&client, &call.replace('?', &item.to_string())).await;
        }
        pages
    };
    // From the sixth call on the session keeps one plan for each statement.
    let mut before = 0;
    for item in 0..9 {
        before = pages(item).await;
    }
    let done = "INSERT INTO hapax_outbox (queue, topic, payload, phase, due_at) \
                SELECT 'q', 't', 'x', 5, now() + interval '1 day' FROM generate_series(1, 10000)";
    client.batch_execute(done).await.unwrap();
    let after = pages(9).await;
    assert!(after < before + 100, "{before} pages before, {after} after");
}
