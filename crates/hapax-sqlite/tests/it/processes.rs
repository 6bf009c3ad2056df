//! Two processes on one file.

use std::fs::Permissions;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use crate::common::*;
use hapax_core::queue::QueueName;
use hapax_core::{Claimed, Claims, Expect, Queue, Records, Store, Watch};
use hapax_sqlite::HapaxTransaction;

/// The other process: holds a claim until it is told to settle it.
#[tokio::test]
#[ignore = "the second process of the test below"]
async fn holder() {
    let store = crate::common::inherited();
    let held = ticket(store.claim(&command("shared"), &ask()).await);
    let mut out = std::io::stdout();
    writeln!(out, "\nheld {}", held.fence).unwrap();
    std::io::stdin().read_line(&mut String::new()).unwrap();
    let _ = store.settle(&command("shared"), &held.token, "over there".into()).await.unwrap();
}

/// The other process: says whether it can read and write, three times. Until the third it has a
/// connection besides the store's, which found the file read-only.
#[tokio::test]
#[ignore = "the second process of the test below"]
async fn user() {
    let store = crate::common::inherited();
    let file = std::env::var_os("HAPAX_TEST_FILE").unwrap();
    let other = rusqlite::Connection::open(file).unwrap();
    other.query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get::<_, i64>(0)).unwrap();
    let mut other = Some(other);
    for round in 0..3 {
        if round == 2 {
            other = None;
        }
        let read = store.look(&command("shared")).await.map(|view| view.is_some());
        let read =
            read.map_or_else(|error| error.label(), |seen| if seen { "seen" } else { "not" });
        let written = store.ping().await.map_or_else(|error| error.label(), |()| "written");
        writeln!(std::io::stdout(), "\nfound {read} {written}").unwrap();
        std::io::stdin().read_line(&mut String::new()).unwrap();
    }
    drop(other);
}

/// The other process runs as another user, because root may write any file.
fn as_nobody() -> Command {
    if !rustix::process::getuid().is_root() {
        return this_binary();
    }
    let mut command = Command::new("setpriv");
    command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]);
    command.arg(this_binary().get_program());
    command
}

fn set_modes(place: &Place, folder: u32, file: u32) {
    let set = |path: &Path, mode| std::fs::set_permissions(path, Permissions::from_mode(mode));
    for suffix in ["", "-wal", "-shm"] {
        set(&beside(&place.file(), suffix), file).unwrap();
    }
    set(place.file().parent().unwrap(), folder).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn read_only_file_is_read_and_later_written() {
    let (place, store) = Place::with_store();
    ticket(store.claim(&command("shared"), &ask()).await);
    set_modes(&place, 0o555, 0o444);
    let mut user = start_process(as_nobody(), "processes::user", &place);
    let mut lines = lines_of(&mut user);
    let mut found = || lines.find_map(|l| Some(l.unwrap().strip_prefix("found ")?.to_owned()));
    assert_eq!(found().as_deref(), Some("seen read_only"));
    set_modes(&place, 0o777, 0o666);
    let mut words = user.stdin.take().unwrap();
    words.write_all(b"again\n").unwrap();
    // The engine lets none of its connections write as long as one is open that could not.
    assert_eq!(found().as_deref(), Some("seen read_only"));
    words.write_all(b"again\n").unwrap();
    assert_eq!(found().as_deref(), Some("seen written"));
    words.write_all(b"enough\n").unwrap();
    assert!(user.wait().unwrap().success());
}

#[tokio::test(flavor = "multi_thread")]
async fn watch_sees_the_commit_of_another_process() {
    let (place, store) = Place::with_store();
    let mut holder = start_process(this_binary(), "processes::holder", &place);
    let mut lines = lines_of(&mut holder);
    let held = lines.find_map(|line| Some(line.unwrap().strip_prefix("held ")?.to_owned()));

    let mut watch = store.watch(&command("shared"));
    let seen = store.claim(&command("shared"), &ask()).await.unwrap();
    assert!(matches!(seen, Claimed::Busy { .. }), "{seen:?}");
    let view = store.look(&command("shared")).await.unwrap().unwrap();
    assert_eq!(view.fence.map(|fence| fence.to_string()), held);

    holder.stdin.take().unwrap().write_all(b"go on\n").unwrap();
    let value = tokio::time::timeout(PATIENT, async {
        loop {
            // This loop does not poll: without a wake-up it never ends.
            watch.changed(Duration::MAX).await;
            if let Claimed::Settled { value, .. } =
                store.claim(&command("shared"), &ask()).await.unwrap()
            {
                return value;
            }
        }
    });
    assert_eq!(value.await.expect("a hint"), "over there");
    assert!(holder.wait().unwrap().success());
}

/// Whether the watch was woken, without waiting.
async fn is_woken(watch: &mut Watch) -> bool {
    tokio::time::timeout(Duration::ZERO, watch.changed(Duration::MAX)).await.is_ok()
}

/// Another handle on the file has connections of its own, as another process has.
#[tokio::test(flavor = "multi_thread")]
async fn fault_31_foreign_commit_wakes_its_own_waiters_only() {
    let (place, store) = Place::with_store();
    let other = place.store();
    let held = ticket(other.claim(&command("7"), &ask()).await);
    // The first look of a writer wakes all waiters.
    store.ping().await.unwrap();
    let mut watches: Vec<_> = (0..50).map(|n| store.watch(&command(&n.to_string()))).collect();
    let mut queue = store.arrivals(&QueueName::outbox());
    store.ping().await.unwrap();
    for n in 0..20 {
        let key = record(&n.to_string());
        let _ = other.put(&key, "1".into(), &Expect::Any, None).await.unwrap();
    }
    let _ = other.settle(&command("7"), &held.token, "done".into()).await.unwrap();
    let woken = tokio::time::timeout(PATIENT, watches[7].changed(Duration::MAX)).await;
    woken.expect("a hint: every commit before it was noticed by now");
    let mut count = 0;
    for watch in &mut watches {
        count += u32::from(is_woken(watch).await);
    }
    assert_eq!(count, 0, "waiters of other keys were woken");
    assert!(!is_woken(&mut queue).await, "nothing arrived");

    // Plain SQL, as other languages write it, and a transaction of one's own.
    let mut shop = shop(&place);
    shop.execute("INSERT INTO hapax_outbox (topic, payload) VALUES ('t', 'x')", []).unwrap();
    tokio::time::timeout(PATIENT, queue.changed(Duration::MAX)).await.expect("an arrival");
    let held = ticket(store.claim(&command("8"), &ask()).await);
    let tx = shop.transaction().unwrap();
    let _ = tx.hapax().settle(&command("8"), &held.token, "done".into()).unwrap();
    tx.commit().unwrap();
    tokio::time::timeout(PATIENT, watches[8].changed(Duration::MAX)).await.expect("a hint");
    assert!(!is_woken(&mut watches[9]).await);
}

/// A process that is far behind wakes all, rather than miss one.
#[tokio::test(flavor = "multi_thread")]
async fn many_foreign_changes_wake_all_waiters() {
    let (place, store) = Place::with_store();
    store.ping().await.unwrap();
    let mut watch = store.watch(&command("a"));
    store.ping().await.unwrap();
    let fill = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 2000) \
                INSERT INTO hapax_changes (digest) SELECT i FROM n";
    place.stranger().execute_batch(fill).unwrap();
    tokio::time::timeout(PATIENT, watch.changed(Duration::MAX)).await.expect("a hint");
}
