//! A failover to a standby that lacks what was acknowledged last.

use std::time::{Duration, Instant};

use bytes::Bytes;
use hapax_core::{Claimed, Claims, Expect, GiveBack, OpenMode, Put, Records};
use hapax_postgres::{PostgresConfig, PostgresStore};
use hapax_testkit::{PostgresStandby, wait_for};

use crate::{ask, granted, key, open};

/// More than the number of values by which a standby's copy of a sequence is ahead.
const LOST: usize = 100;
const PATIENT: Duration = Duration::from_secs(60);

/// Repeats a call until the store has found the new primary.
async fn repeated<T>(mut call: impl AsyncFnMut() -> Result<T, hapax_core::StoreError>) -> T {
    let deadline = Instant::now() + PATIENT;
    loop {
        match call().await {
            Ok(answer) => return answer,
            Err(error) if Instant::now() > deadline => panic!("{error}"),
            Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn failover_that_lost_grants_goes_on_with_greater_fences() {
    let servers = PostgresStandby::start(false);
    let store: PostgresStore = open(&servers.url());
    granted(&store, &key("first"), &ask()).await;
    // Nothing more reaches the standby.
    wait_for("the standby has the tables", PATIENT, || {
        let count =
            servers.standby().psql("SELECT count(*) FROM pg_class WHERE relname = 'hapax_claims'");
        (count == "1").then_some(())
    });
    // The address leads to the standby, which becomes a primary while the connection stays open.
    let config = PostgresConfig::new(servers.standby().url()).timeout(PATIENT);
    let early = PostgresStore::open(config.mode(OpenMode::Existing)).unwrap();
    early.look(&key("first")).await.unwrap();
    servers.standby().stop();
    servers.primary().psql("SELECT pg_terminate_backend(pid) FROM pg_stat_replication");
    wait_for("nothing is sent to the standby any more", PATIENT, || {
        (servers.primary().psql("SELECT count(*) FROM pg_stat_replication") == "0").then_some(())
    });
    let mut last = granted(&store, &key("a"), &ask()).await;
    for _ in 0..LOST {
        let _ = store.give_back(&key("a"), &last.token, GiveBack::Forget).await.unwrap();
        last = granted(&store, &key("a"), &ask()).await;
    }
    let put = store.put(&key("r"), Bytes::from_static(b"lost"), &Expect::Absent, None).await;
    let Ok(Put::Stored { version: lost_version, .. }) = put else { panic!("{put:?}") };
    servers.primary().kill();
    servers.standby().cont();
    servers.promote_standby();

    let first = granted(&early, &key("c"), &ask()).await;
    assert!(first.fence > last.fence, "{:?} after {:?}", first.fence, last.fence);
    let again = repeated(async || store.claim(&key("a"), &ask()).await).await;
    let Claimed::Granted { ticket, .. } = again else { panic!("{again:?}: the grant was lost") };
    assert!(ticket.fence > last.fence, "{:?} after {:?}", ticket.fence, last.fence);
    let put = repeated(async || {
        store.put(&key("r"), Bytes::from_static(b"new"), &Expect::Absent, None).await
    })
    .await;
    let Put::Stored { version, .. } = put else { panic!("{put:?}: the record was lost") };
    assert_ne!(version, lost_version);

    // A node that starts later draws from the same sequence.
    let other = PostgresStore::open(PostgresConfig::new(servers.url()).timeout(PATIENT)).unwrap();
    let later = granted(&other, &key("b"), &ask()).await;
    assert!(later.fence > ticket.fence);
}
