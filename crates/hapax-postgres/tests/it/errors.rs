//! Errors of the server as store errors. A trigger raises them, so that no disk has to be filled.

use std::time::Duration;

use hapax_core::{Claimed, Claims, StoreError};
use hapax_postgres::{PostgresConfig, PostgresStore};
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::{SERVER, ask, client, granted, key, open, retry_timeouts};

/// Makes every insert of a claim whose name begins with `e-` fail with the SQLSTATE behind it.
const TRIGGER: &str = "
    CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        IF new.name LIKE 'e-%' THEN
            RAISE EXCEPTION 'as told' USING ERRCODE = substr(new.name, 3, 5), DETAIL = new.name;
        END IF;
        RETURN new;
    END $$;
    CREATE TRIGGER fail BEFORE INSERT ON hapax_claims FOR EACH ROW EXECUTE FUNCTION fail();";

#[tokio::test]
async fn sqlstates_map_to_store_errors() {
    let url = SERVER.database("states");
    let store = open(&url);
    granted(&store, &key("before"), &ask()).await;
    client(&url).await.batch_execute(TRIGGER).await.unwrap();
    for (state, label) in [
        ("53100", "full"),
        ("53200", "full"),
        ("53300", "unavailable"),
        ("25006", "read_only"),
        ("55P03", "locked"),
        ("40001", "locked"),
        ("40P01", "locked"),
        ("57014", "timeout"),
        ("57P01", "unavailable"),
        ("57P03", "unavailable"),
        ("08006", "unavailable"),
        ("58030", "unavailable"),
        ("28P01", "refused"),
        ("42501", "refused"),
        ("3D000", "incompatible"),
        ("XX001", "corrupt"),
        ("22000", "internal"),
    ] {
        let error = store.claim(&key(&format!("e-{state}")), &ask()).await.unwrap_err();
        assert_eq!(error.label(), label, "{state}: {error}");
        // The detail quotes the row.
        assert!(!format!("{error} {error:?}").contains("e-"), "{error:?}");
    }
    granted(&store, &key("after"), &ask()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn batch_with_a_bad_item_fails_only_that_item() {
    let url = SERVER.database("poison");
    let store = open(&url);
    granted(&store, &key("before"), &ask()).await;
    client(&url).await.batch_execute(TRIGGER).await.unwrap();
    let mut claims = JoinSet::new();
    for n in 0..40 {
        let store = store.clone();
        claims.spawn(async move {
            let name = if n % 10 == 3 { format!("e-22000{n}") } else { format!("k{n}") };
            (n, store.claim(&key(&name), &ask()).await)
        });
    }
    for (n, answer) in claims.join_all().await {
        match answer {
            Ok(Claimed::Granted { .. }) => assert_ne!(n % 10, 3),
            Err(StoreError::Internal { .. }) => assert_eq!(n % 10, 3),
            other => panic!("{n}: {other:?}"),
        }
    }
}

#[tokio::test]
async fn locked_table_is_reported_within_the_timeout() {
    let url = SERVER.database("locked");
    let limit = Duration::from_secs(6);
    let store = PostgresStore::open(PostgresConfig::new(&url).timeout(limit)).unwrap();
    granted(&open(&url), &key("before"), &ask()).await;
    let mut other = client(&url).await;
    let tx = other.transaction().await.unwrap();
    tx.batch_execute("LOCK TABLE hapax_claims IN ACCESS EXCLUSIVE MODE").await.unwrap();
    let (key, ask) = (key("k"), ask());
    // The lock is not given up: without a limit it would wait for ever.
    let locked = timeout(20 * limit, retry_timeouts(async || store.claim(&key, &ask).await)).await;
    let locked = locked.expect("an answer in time");
    assert!(matches!(locked, Err(StoreError::Locked { .. })), "{locked:?}");
    tx.rollback().await.unwrap();
    let freed = retry_timeouts(async || store.claim(&key, &ask).await).await.unwrap();
    assert!(matches!(freed, Claimed::Granted { .. }), "{freed:?}");
}
