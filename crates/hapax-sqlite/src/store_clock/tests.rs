//! Steps of the wall clock, and reboots, on clocks of the test's own.

use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use hapax_conformance::{StoreUnderTest, WallClock};
use hapax_core::{ClaimRequest, Claimed, Claims, Expect, Key, Operation, Records, Store, Tenant};
use tempfile::TempDir;

use super::*;
use crate::{HapaxTransaction, SqliteStore};

const HOUR_MS: i64 = 3_600_000;
const HOUR: Duration = Duration::from_secs(3600);
const MINUTE: Duration = Duration::from_secs(60);

#[derive(Debug)]
struct FakeTime {
    wall: AtomicI64,
    boot: i64,
    elapsed: AtomicI64,
}

impl FakeTime {
    fn new(boot: i64, wall: i64) -> Arc<Self> {
        let (wall, elapsed) = (AtomicI64::new(wall), AtomicI64::new(5000));
        Arc::new(Self { wall, boot, elapsed })
    }

    fn step_wall(&self, ms: i64) {
        self.wall.fetch_add(ms, Ordering::SeqCst);
    }

    /// Time passes, on both clocks.
    fn pass(&self, ms: i64) {
        self.elapsed.fetch_add(ms, Ordering::SeqCst);
        self.step_wall(ms);
    }
}

impl TimeSource for FakeTime {
    fn wall(&self) -> Timestamp {
        Timestamp(self.wall.load(Ordering::SeqCst).try_into().unwrap())
    }

    fn since_boot(&self) -> Option<BootTime> {
        Some(BootTime { boot: self.boot, elapsed: self.elapsed.load(Ordering::SeqCst) })
    }
}

const NOON: i64 = 1_700_000_000_000;

fn open(folder: &TempDir, time: &Arc<FakeTime>) -> SqliteStore {
    let time: Arc<dyn TimeSource> = time.clone();
    let config = SqliteConfig::new(folder.path().join("hapax.db")).timeout(MINUTE);
    SqliteStore::open(SqliteConfig { time, ..config }).unwrap()
}

fn lock(name: &str) -> Key {
    Key::lock(&Tenant::default(), name).unwrap()
}

fn record() -> Key {
    Key::record(&Tenant::default(), "r").unwrap()
}

async fn is_granted(store: &SqliteStore, key: &Key, lease: Duration) -> bool {
    let answer = store.claim(key, &ClaimRequest::new(lease)).await.unwrap();
    matches!(answer, Claimed::Granted { .. })
}

#[tokio::test]
async fn fault_13_processes_with_different_wall_clocks_share_a_lock() {
    let folder = tempfile::tempdir().unwrap();
    let (one, two) = (FakeTime::new(1, NOON), FakeTime::new(1, NOON + HOUR_MS / 6));
    let (first, second) = (open(&folder, &one), open(&folder, &two));
    assert!(is_granted(&first, &lock("a"), MINUTE).await);
    assert!(!is_granted(&second, &lock("a"), MINUTE).await);
    one.pass(60_000);
    two.pass(60_000);
    assert!(is_granted(&second, &lock("a"), MINUTE).await);
}

#[tokio::test]
async fn fault_13_step_forward_ends_no_lease_and_no_retention() {
    let folder = tempfile::tempdir().unwrap();
    let time = FakeTime::new(1, NOON);
    let store = open(&folder, &time);
    let done = Key::command(&Tenant::default(), Operation("pay"), "a").unwrap();
    let ask = ClaimRequest::new(MINUTE).retention(MINUTE * 30);
    let Claimed::Granted { ticket, .. } = store.claim(&done, &ask).await.unwrap() else { panic!() };
    let _ = store.settle(&done, &ticket.token, "paid".into()).await.unwrap();
    assert!(is_granted(&store, &lock("a"), MINUTE).await);
    time.step_wall(HOUR_MS);
    assert!(!is_granted(&store, &lock("a"), MINUTE).await);
    let again = store.claim(&done, &ClaimRequest::new(MINUTE).retention(MINUTE)).await.unwrap();
    assert!(matches!(again, Claimed::Settled { .. }), "{again:?}");
}

#[tokio::test]
async fn fault_13_step_back_prolongs_no_lease() {
    let folder = tempfile::tempdir().unwrap();
    let time = FakeTime::new(1, NOON);
    let store = open(&folder, &time);
    assert!(is_granted(&store, &lock("a"), Duration::from_millis(300)).await);
    time.step_wall(-HOUR_MS);
    time.pass(400);
    assert!(is_granted(&store, &lock("a"), MINUTE).await);
}

#[tokio::test]
async fn fault_13_expired_record_never_returns() {
    let folder = tempfile::tempdir().unwrap();
    let time = FakeTime::new(1, NOON);
    let store = open(&folder, &time);
    let _ = store.put(&record(), "1".into(), &Expect::Any, Some(MINUTE)).await.unwrap();
    time.pass(61_000);
    assert!(store.get(&record()).await.unwrap().is_none());
    time.step_wall(-HOUR_MS);
    assert!(store.get(&record()).await.unwrap().is_none());
}

/// A file on a machine whose wall clock can be set.
struct OnMachine {
    folder: TempDir,
    time: Arc<FakeTime>,
}

#[async_trait]
impl StoreUnderTest for OnMachine {
    async fn open(&self) -> Arc<dyn Store> {
        Arc::new(open(&self.folder, &self.time))
    }

    async fn advance(&self, time: Duration) {
        self.time.pass(to_i64(hapax_core::millis(time)));
    }

    fn wall_clock(&self) -> Option<Arc<dyn WallClock>> {
        Some(self.time.clone())
    }
}

impl WallClock for FakeTime {
    fn set_back(&self, time: Duration) {
        self.step_wall(-to_i64(hapax_core::millis(time)));
    }

    fn set_forward(&self, time: Duration) {
        self.step_wall(to_i64(hapax_core::millis(time)));
    }
}

/// The integration tests run the suite on a clock of the user's choice; this is the machine's.
#[tokio::test(flavor = "multi_thread")]
async fn fault_38_laws_hold_while_the_wall_clock_goes_back() {
    let laws = [
        "lease_lasts_while_the_clock_goes_back_and_returns",
        "lapsed_lease_stays_lapsed_when_the_clock_goes_back",
        "expired_record_stays_gone_when_the_clock_goes_back",
        "forgotten_job_stays_gone_when_the_clock_goes_back",
    ];
    let subject = || async {
        let (folder, time) = (tempfile::tempdir().unwrap(), FakeTime::new(1, NOON));
        Arc::new(OnMachine { folder, time }) as Arc<dyn StoreUnderTest>
    };
    hapax_conformance::check_only(&laws, subject).await;
}

/// How long the record lives on after half an hour, a reboot, and this change of the wall clock.
async fn left_after_reboot(wall_change: i64) -> Option<Duration> {
    let folder = tempfile::tempdir().unwrap();
    let time = FakeTime::new(1, NOON);
    let store = open(&folder, &time);
    let _ = store.put(&record(), "1".into(), &Expect::Any, Some(HOUR)).await.unwrap();
    time.pass(HOUR_MS / 2);
    store.ping().await.unwrap();
    drop(store);
    let booted = FakeTime::new(2, NOON + HOUR_MS / 2 + wall_change);
    let store = open(&folder, &booted);
    let found = store.get(&record()).await.unwrap();
    booted.pass(HOUR_MS);
    assert!(store.get(&record()).await.unwrap().is_none());
    Some(found?.expires_in.unwrap())
}

#[tokio::test]
async fn fault_13_reboot_goes_on_from_the_last_known_time() {
    // A dead battery: the wall clock says yesterday.
    assert_eq!(left_after_reboot(-24 * HOUR_MS).await, Some(HOUR / 2));
    // The wall clock counts while the machine is off.
    assert_eq!(left_after_reboot(HOUR_MS / 4).await, Some(HOUR / 4));
    assert_eq!(left_after_reboot(HOUR_MS).await, None);
}

/// A restored snapshot of the machine: the same boot, at an earlier time.
#[tokio::test]
async fn restored_machine_does_not_go_back_in_time() {
    let folder = tempfile::tempdir().unwrap();
    let time = FakeTime::new(1, NOON);
    let store = open(&folder, &time);
    time.pass(HOUR_MS);
    let _ = store.put(&record(), "1".into(), &Expect::Any, Some(MINUTE)).await.unwrap();
    drop(store);
    let store = open(&folder, &FakeTime::new(1, NOON));
    let left = store.get(&record()).await.unwrap().unwrap().expires_in.unwrap();
    assert!(left <= MINUTE, "{left:?}");
}

/// The file's clock is an hour ahead of the wall clock, as after a step back.
#[tokio::test]
async fn fault_13_transaction_goes_by_the_clock_of_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("hapax.db");
    drop(SqliteStore::open(&*path).unwrap());
    let mut shop = Connection::open(&path).unwrap();
    shop.busy_timeout(MINUTE).unwrap();
    let ahead = "UPDATE hapax_meta SET value = value + 3600000 WHERE name = 'clock_base'";
    shop.execute(ahead, []).unwrap();
    let tx = shop.transaction().unwrap();
    let _ = tx.hapax().put(&record(), "1".into(), &Expect::Any, Some(HOUR)).unwrap();
    tx.commit().unwrap();
    let store = SqliteStore::open(SqliteConfig::new(&path).timeout(MINUTE)).unwrap();
    let left = store.get(&record()).await.unwrap().expect("a live record").expires_in.unwrap();
    assert!(left > HOUR / 2 && left <= HOUR, "{left:?}");

    // The first transaction after a boot stores the new base.
    shop.execute("UPDATE hapax_meta SET value = -1 WHERE name = 'clock_boot'", []).unwrap();
    let tx = shop.transaction().unwrap();
    let _ = tx.hapax().put(&record(), "2".into(), &Expect::Any, None).unwrap();
    tx.commit().unwrap();
    let boot = "SELECT value FROM hapax_meta WHERE name = 'clock_boot'";
    let boot: i64 = shop.query_row(boot, [], |row| row.get(0)).unwrap();
    assert_ne!(boot, -1);
}
