//! Leases and TTLs are measured by the server's clock, whatever it says.

use std::time::Duration;

use hapax_core::claims::ClaimState;
use hapax_core::{ClaimRequest, Claims, Expect, Key, Records, Store, Tenant};

use crate::{LONG, SERVER, granted, key, open};

/// Longer than the test takes, and shorter than each step of the clock.
const LIFETIME: Duration = Duration::from_secs(30 * 60);
const DATABASE: &str = "stepped";

fn set_clock(minutes: u32) {
    SERVER.psql_in(DATABASE, &format!("UPDATE clock.step SET by = '{minutes} minutes'"));
}

#[tokio::test]
async fn lease_and_ttl_follow_the_servers_clock() {
    let url = SERVER.database(DATABASE);
    // Every clock of a statement, shifted by the step.
    let clocks = ["clock_timestamp", "statement_timestamp", "transaction_timestamp"].map(|name| {
        format!(
            "CREATE FUNCTION clock.{name}() RETURNS timestamptz LANGUAGE sql AS \
             'SELECT pg_catalog.{name}() + by FROM clock.step';"
        )
    });
    let sql = format!(
        "CREATE SCHEMA clock; CREATE TABLE clock.step (by interval); \
         INSERT INTO clock.step VALUES ('0'); {} \
         ALTER DATABASE {DATABASE} SET search_path = public, clock, pg_catalog",
        clocks.concat()
    );
    SERVER.psql_in(DATABASE, &sql);
    let store = open(&url);
    store.ping().await.unwrap();
    let ask = ClaimRequest::new(LIFETIME).retention(LONG * 10);
    let is_held = async |name: &str| {
        let state = store.look(&key(name)).await.unwrap().unwrap().state;
        matches!(state, ClaimState::Pending { .. })
    };

    granted(&store, &key("early"), &ask).await;
    let record = Key::record(&Tenant::default(), "r").unwrap();
    let _ = store.put(&record, "v".into(), &Expect::Any, Some(LIFETIME)).await.unwrap();
    assert!(is_held("early").await && store.get(&record).await.unwrap().is_some());
    set_clock(60);
    assert!(!is_held("early").await, "a step forward ends it early");
    assert!(store.get(&record).await.unwrap().is_none(), "a step forward ends it early");

    granted(&store, &key("late"), &ask).await;
    set_clock(0);
    assert!(is_held("late").await);
    set_clock(80);
    assert!(is_held("late").await, "a step back prolongs it: 80 minutes are longer than it lives");
    set_clock(100);
    assert!(!is_held("late").await);
}
