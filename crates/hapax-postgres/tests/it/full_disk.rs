//! A PostgreSQL whose disk is full: writes are refused in time, nothing acknowledged is lost, and it goes on
//! when there is room.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use bytes::Bytes;
use hapax_core::{Claims, Expect, Key, Records, Step, Store, StoreError, Tenant};
use hapax_postgres::{PostgresConfig, PostgresStore};
use hapax_testkit::Postgres;

use crate::{ask, client, granted, key};

const LIMIT: Duration = Duration::from_secs(2);
/// The delay that a busy machine may add.
const SLACK: Duration = Duration::from_secs(30);
const WAIT_TIMEOUT: Duration = Duration::from_secs(120);

fn record(name: &str) -> Key {
    Key::record(&Tenant::default(), name).unwrap()
}

/// Takes the rest of the disk.
fn fill_disk() -> PathBuf {
    let path = std::env::temp_dir().join("filler");
    let mut file = OpenOptions::new().create(true).append(true).open(&path).unwrap();
    for block in [1 << 20, 4096, 1] {
        while file.write_all(&vec![1; block]).is_ok() {}
    }
    path
}

/// Puts records until one is refused, and returns the names of those that were stored.
async fn put_until_refused(store: &PostgresStore, prefix: &str) -> (Vec<String>, StoreError) {
    let mut stored = Vec::new();
    loop {
        let (name, began) = (format!("{prefix}{}", stored.len()), Instant::now());
        let value = Bytes::from(vec![b'x'; 1000]);
        match store.put(&record(&name), value, &Expect::Any, None).await {
            Ok(_) => stored.push(name),
            Err(error) => {
                assert!(began.elapsed() < LIMIT + SLACK, "it took {:?}", began.elapsed());
                return (stored, error);
            }
        }
        assert!(stored.len() < 100_000, "the disk was never full");
    }
}

async fn all_are_there(store: &PostgresStore, names: &[String]) {
    for name in names {
        let found = store.get(&record(name)).await.unwrap();
        assert!(found.is_some(), "{name} was acknowledged and is gone");
    }
}

/// Repeats a call until it succeeds.
async fn until_it_works<T>(call: impl AsyncFn() -> Result<T, StoreError>) -> T {
    let deadline = Instant::now() + WAIT_TIMEOUT;
    loop {
        match call().await {
            Ok(answer) => return answer,
            Err(error) => assert!(Instant::now() < deadline, "still: {error}"),
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Runs in a process whose temporary folder, where servers keep their data, is a small disk.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "the second process of the test below"]
async fn on_a_small_disk() {
    // The server keeps the files of the write-ahead log that it has, so that the tables are full first.
    let server = Postgres::with(&[("max_wal_size", "32MB"), ("min_wal_size", "32MB")]);
    let store = PostgresStore::open(PostgresConfig::new(server.url()).timeout(LIMIT)).unwrap();
    until_it_works(async || store.ping().await).await;
    let held = granted(&store, &key("held"), &ask()).await;

    let filler = fill_disk();
    let (mut stored, refused) = put_until_refused(&store, "a").await;
    let StoreError::Full { reason } = &refused else { panic!("{refused:?}") };
    assert!(reason.contains("53100"), "{reason}");
    // Reads go on, and what needs no new page.
    all_are_there(&store, &stored).await;
    let step = store.extend(&key("held"), &held.token, Duration::from_secs(7200)).await;
    assert_eq!(step.unwrap(), Step::Done(held.fence));
    fs::remove_file(&filler).unwrap();
    // By itself, without a restart.
    let _ =
        until_it_works(async || store.put(&record("room"), "1".into(), &Expect::Any, None).await)
            .await;
    stored.push("room".to_owned());

    // Without room for the write-ahead log the server ends itself.
    let filler = fill_disk();
    let log = "SELECT pg_logical_emit_message(false, 'x', repeat('y', 4000000)) \
               FROM generate_series(1, 20)";
    let answer = client(&server.url()).await.batch_execute(log).await;
    assert!(answer.is_err(), "the write-ahead log found room");
    let (late, refused) = put_until_refused(&store, "b").await;
    stored.extend(late);
    assert!(refused.is_transient() || matches!(refused, StoreError::Full { .. }), "{refused:?}");
    fs::remove_file(&filler).unwrap();
    server.kill();
    server.restart();
    until_it_works(async || store.ping().await).await;
    all_are_there(&store, &stored).await;
    let step = store.settle(&key("held"), &held.token, "v".into()).await;
    assert_eq!(step.unwrap(), Step::Done(held.fence));
    granted(&store, &key("after"), &ask()).await;
    writeln!(std::io::stdout(), "\nsmall disk done, {} records", stored.len()).unwrap();
}

/// A command in a mount namespace with a small disk at `folder`, which is its folder for temporary files.
/// PostgreSQL refuses to run as root: where this is not root, neither is the command, in a second namespace.
fn with_small_disk(folder: &Path) -> Command {
    let mount = "mount -t tmpfs -o size=192m,mode=755 tmpfs \"$TMPDIR\" && exec \"$0\" \"$@\"";
    let mut command = Command::new("unshare");
    if is_root() {
        command.args(["--mount", "sh", "-c", mount]);
    } else {
        let user = format!("--map-user={}", fs::metadata(folder).unwrap().uid());
        command.args(["--user", "--map-root-user", "--mount", "sh", "-c", mount]);
        command.args(["unshare", "--user", &user]);
    }
    command.env("TMPDIR", folder);
    command
}

fn is_root() -> bool {
    fs::metadata("/proc/self").unwrap().uid() == 0
}

#[test]
fn full_disk_refuses_writes_and_loses_nothing() {
    let folder = std::env::temp_dir().join(format!("hapax-small-disk-{}", std::process::id()));
    fs::create_dir(&folder).unwrap();
    let answer = std::panic::catch_unwind(|| run_on_small_disk(&folder));
    // Only the other process sees the disk that is mounted here.
    fs::remove_dir(&folder).unwrap();
    if let Err(panic) = answer {
        std::panic::resume_unwind(panic);
    }
}

fn run_on_small_disk(folder: &Path) {
    if !with_small_disk(folder).arg("true").status().is_ok_and(|status| status.success()) {
        let skips = std::env::var("HAPAX_TEST_SKIP").unwrap_or_default();
        let may_skip = std::env::var_os("CI").is_none() || skips.contains("tmpfs");
        assert!(
            may_skip,
            "this user may not mount a tmpfs; allow it, or set HAPAX_TEST_SKIP=tmpfs"
        );
        let not_run = "NOT RUN: this user may not mount a tmpfs in a namespace of its own\n";
        std::io::stderr().write_all(not_run.as_bytes()).unwrap();
        return;
    }
    let output = with_small_disk(folder)
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", "full_disk::on_a_small_disk", "--ignored", "--nocapture"])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    let complained = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.contains("small disk done"), "{said}\n{complained}");
}
