//! Tables of the version before the functions, with data and with a node that still runs on them.

use std::sync::Arc;

use hapax_core::command::{Begun, CommandConfig, Commands, StoredResponse};
use hapax_core::{Operation, Token};
use hapax_postgres::{SCHEMA_VERSION, migrate};

use super::{begin, is_true};
use crate::{SERVER, client, open};

const VERSION_4: [&str; 4] = [
    include_str!("../../../migrations/0001_claims_and_records.sql"),
    include_str!("../../../migrations/0002_log.sql"),
    include_str!("../../../migrations/0003_queue.sql"),
    include_str!("../../../migrations/0004_sweep_and_queue.sql"),
];

#[tokio::test]
async fn sql_functions_are_added_to_older_tables() {
    let url = SERVER.database("sql_upgrade");
    let mut own = client(&url).await;
    for migration in VERSION_4 {
        own.batch_execute(migration).await.unwrap();
    }
    let response = StoredResponse { status: 201, headers: vec![], body: "kept".into() };
    let stored = response.encode();
    let pending = "SELECT floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint + 3600000";
    own.batch_execute("INSERT INTO hapax_meta VALUES ('schema', '4')").await.unwrap();
    let row = "INSERT INTO hapax_claims SELECT 'default', 'command', 'o', $1, $2, 1, \
               nextval('hapax_fence'), 0, later, 86400000, later + 86400000, 'token', NULL, $3";
    for (name, phase, value) in
        [("done", 1_i16, &stored[..]), ("pending", 0, b""), ("failed", 2, b"")]
    {
        let sql = format!("{row} FROM ({pending}) p (later)");
        own.execute(&sql, &[&name, &phase, &value]).await.unwrap();
    }
    own.batch_execute("INSERT INTO hapax_outbox (topic, payload) VALUES ('t', 'x')").await.unwrap();

    migrate(&mut own).await.unwrap();
    let version = format!("value = '{SCHEMA_VERSION}' FROM hapax_meta WHERE name = 'schema'");
    assert!(is_true(&own, &version).await);
    let done = begin(&own, "'o', 'done'").await;
    assert_eq!((&*done.state, done.body.as_deref()), ("completed", Some(&b"kept"[..])));
    assert_eq!(begin(&own, "'o', 'pending'").await.state, "in-progress");
    assert!(is_true(&own, "hapax_complete('o', 'pending', 'token', 200)").await);
    assert_eq!(begin(&own, "'o', 'failed'").await.attempt, Some(2));
    assert!(is_true(&own, "count(*) = 1 FROM hapax_outbox").await);
    // Back to a backup of version 4, and forward again.
    own.batch_execute("UPDATE hapax_meta SET value = '4' WHERE name = 'schema'").await.unwrap();
    migrate(&mut own).await.unwrap();
    assert_eq!(begin(&own, "'o', 'done'").await.state, "completed");
    let commands = Commands::new(Arc::new(open(&url)));
    let again = commands.begin(Operation("o"), "pending", &CommandConfig::default()).await.unwrap();
    assert!(matches!(again, Begun::Completed { .. }), "{again:?}");
    assert!(commands.fail(Operation("o"), "pending", &Token::presented("token")).await.is_err());
}
