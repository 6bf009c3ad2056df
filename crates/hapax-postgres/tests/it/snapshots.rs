//! A statement that stalls between its snapshot and its look at the clock: what is renewed meanwhile is alive.

use std::future::Future;
use std::time::{Duration, Instant};

use hapax_core::claims::ClaimState;
use hapax_core::log::{LogRetention, PageRequest};
use hapax_core::{
    ClaimQuery, ClaimRequest, ClaimStatus, Claimed, Claims, Deleted, Expect, Key, KeyKind, Log,
    OpenClaims, Oversight, Records, Step, Store, Tenant, Ticket,
};
use hapax_postgres::{HapaxTransaction, PostgresConfig, PostgresStore};
use tokio_postgres::Client;

use crate::logs::{event, job};
use crate::{LONG, SERVER, client, granted, key, open};

/// Longer than a test takes, and shorter than the stall.
const LIFETIME: Duration = Duration::from_secs(15 * 60);

/// A session whose `clock_timestamp()` waits for an advisory lock, and then returns a time half an hour later. The other
/// clocks of a statement stay as they are: they tell when it arrived.
struct Stalling {
    database: &'static str,
    url: String,
    owner: PostgresStore,
    rival: PostgresStore,
    gate: Client,
}

impl Stalling {
    async fn new(database: &'static str) -> Self {
        let url = SERVER.database(database);
        let owner = open(&url);
        owner.ping().await.unwrap();
        SERVER.psql_in(
            database,
            "CREATE SCHEMA stalling; \
             CREATE FUNCTION stalling.clock_timestamp() RETURNS timestamptz LANGUAGE plpgsql VOLATILE AS $$ \
             BEGIN PERFORM pg_advisory_lock_shared(14); PERFORM pg_advisory_unlock_shared(14); \
             RETURN pg_catalog.clock_timestamp() + interval '30 minutes'; END $$",
        );
        let options = "options=-csearch_path%3Dstalling%2Cpublic%2Cpg_catalog";
        let config = PostgresConfig::new(format!("{url}?{options}"));
        let rival = PostgresStore::open(config.timeout(Duration::from_secs(120))).unwrap();
        rival.ping().await.unwrap();
        let gate = client(&url).await;
        Self { database, url, owner, rival, gate }
    }

    /// Waits until a session of the database is as the condition says, or `is_over`.
    async fn until(&self, condition: &str, is_over: impl Fn() -> bool) {
        let count = format!(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = '{}' AND {condition}",
            self.database
        );
        let deadline = Instant::now() + Duration::from_secs(120);
        while !is_over() && SERVER.psql(&count).trim() == "0" {
            assert!(Instant::now() < deadline, "never seen: {condition}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Runs the rival's call, and `renew` once the call waits for the clock, if it does.
    async fn meanwhile<T: Send + 'static, F>(
        &self,
        call: impl FnOnce(PostgresStore) -> F,
        renew: impl Future<Output = ()>,
    ) -> T
    where
        F: Future<Output = T> + Send + 'static,
    {
        self.gate.batch_execute("SELECT pg_advisory_lock(14)").await.unwrap();
        let call = tokio::spawn(call(self.rival.clone()));
        self.until("wait_event = 'advisory'", || call.is_finished()).await;
        renew.await;
        self.gate.batch_execute("SELECT pg_advisory_unlock(14)").await.unwrap();
        call.await.unwrap()
    }
}

#[tokio::test]
async fn fault_14_lease_renewed_after_the_snapshot_is_not_unknown() {
    let stalling = Stalling::new("stalling_claims").await;
    let owner = &stalling.owner;
    let ask = ClaimRequest::new(LIFETIME).retention(LONG);
    let hold = async |name: &str| (key(name), granted(owner, &key(name), &ask).await);
    let renew = async |(key, ticket): &(Key, Ticket)| {
        let renewed = owner.extend(key, &ticket.token, LONG * 2).await.unwrap();
        assert_eq!(renewed, Step::Done(ticket.fence));
    };

    let held = hold("claimed").await;
    let again = ask.with_fresh_token();
    let claim =
        |rival: PostgresStore| async move { rival.claim(&key("claimed"), &again).await.unwrap() };
    let claimed = stalling.meanwhile(claim, renew(&held)).await;
    assert!(matches!(claimed, Claimed::Busy { .. }), "{claimed:?}");

    let held = hold("looked-at").await;
    let look = |rival: PostgresStore| async move {
        rival.look(&key("looked-at")).await.unwrap().unwrap().state
    };
    let state = stalling.meanwhile(look, renew(&held)).await;
    assert!(matches!(state, ClaimState::Pending { .. }), "{state:?}");

    let held = hold("listed").await;
    let list = |rival: PostgresStore| async move {
        let (tenant, kind) = (Tenant::default(), KeyKind::Command);
        let query =
            ClaimQuery { tenant, kind, status: None, scope: None, after: None, max_claims: 10 };
        rival.list(&query).await.unwrap().claims
    };
    let listed = stalling.meanwhile(list, renew(&held)).await;
    assert_eq!(listed.len(), 3);
    assert!(listed.iter().all(|claim| claim.status == ClaimStatus::Pending), "{listed:?}");

    let held = hold("counted").await;
    let count =
        |rival: PostgresStore| async move { rival.count_open(None, KeyKind::Command).await };
    let counted = stalling.meanwhile(count, renew(&held)).await.unwrap();
    assert_eq!(counted, Some(OpenClaims { pending: 4, ..OpenClaims::default() }));
}

#[tokio::test]
async fn fault_14_record_renewed_after_the_snapshot_is_not_gone() {
    let stalling = Stalling::new("stalling_records").await;
    let owner = &stalling.owner;
    let record = |name: &str| Key::record(&Tenant::default(), name).unwrap();
    let put = async |name: &str, ttl| {
        let _ = owner.put(&record(name), "v".into(), &Expect::Any, Some(ttl)).await.unwrap();
    };

    put("read", LIFETIME).await;
    let read = record("read");
    let get = |rival: PostgresStore| async move { rival.get(&read).await.unwrap() };
    let found = stalling.meanwhile(get, put("read", LONG * 2)).await;
    assert!(found.is_some(), "a record that never expired");

    // The put has the lock of the key when the delete begins.
    put("deleted", LIFETIME).await;
    let mut own = client(&stalling.url).await;
    let mut tx = own.transaction().await.unwrap();
    let deleted = record("deleted");
    let _ = tx.hapax().put(&deleted, "w".into(), &Expect::Any, Some(LONG * 2)).await.unwrap();
    stalling.gate.batch_execute("SELECT pg_advisory_lock(14)").await.unwrap();
    let rival = stalling.rival.clone();
    let delete = tokio::spawn(async move { rival.delete(&deleted, &Expect::Any).await.unwrap() });
    stalling.until("query LIKE '%DELETE FROM hapax_records%'", || delete.is_finished()).await;
    tx.commit().await.unwrap();
    stalling.gate.batch_execute("SELECT pg_advisory_unlock(14)").await.unwrap();
    assert_eq!(delete.await.unwrap(), Deleted::Done);
}

#[tokio::test]
async fn fault_14_job_renewed_after_the_snapshot_is_not_forgotten() {
    let stalling = Stalling::new("stalling_jobs").await;
    let owner = &stalling.owner;
    let append = async |name: &str, seq, retention| {
        let keep = LogRetention { retention, ..LogRetention::default() };
        let _ = owner.append(&[event(&job(name), seq)], &keep).await.unwrap();
    };
    append("attached", 1, LIFETIME).await;
    let attach = |rival: PostgresStore| async move {
        rival.attach(&job("attached"), &PageRequest::new(0, 10)).await.unwrap()
    };
    let attached = stalling.meanwhile(attach, append("attached", 2, LONG * 2)).await;
    assert!(attached.is_some(), "a job that was never forgotten");

    append("searched", 1, LIFETIME).await;
    let find = |rival: PostgresStore| async move { rival.find_seq(&job("searched"), 9).await };
    let found = stalling.meanwhile(find, append("searched", 2, LONG * 2)).await.unwrap();
    assert!(found.is_some(), "a job that was never forgotten");
}
