//! A full disk: what frees room works, readiness says it, and everything goes on when there is room.

use std::fs::OpenOptions;
use std::io::Write;
use std::process::Command;

use crate::common::*;
use bytes::Bytes;
use hapax_core::{
    Claims, Deleted, Expect, GiveBack, Records, Step, Store, StoreError, StoreResult,
};
use hapax_sqlite::SqliteStore;

const VALUE: usize = 100_000;

fn is_full<T>(answer: &StoreResult<T>) -> bool {
    matches!(answer, Err(StoreError::Full { .. }))
}

/// Puts records until one is refused, and returns how many were stored.
async fn fill(store: &SqliteStore, prefix: &str, at_most: usize) -> usize {
    for n in 0..at_most {
        let big = Bytes::from(vec![n as u8; VALUE]);
        let answer = store.put(&record(&format!("{prefix}{n}")), big, &Expect::Any, None).await;
        if is_full(&answer) {
            return n;
        }
        let _ = answer.unwrap();
    }
    panic!("the store was never full");
}

#[tokio::test]
async fn fault_13_ping_says_full_while_puts_are_refused() {
    let place = Place::new();
    let store = SqliteStore::open(place.config().max_bytes(1 << 20)).unwrap();
    store.ping().await.unwrap();
    assert!(fill(&store, "r", 20).await > 2);
    for _ in 0..2 {
        let answer = store.ping().await;
        assert!(is_full(&answer), "{answer:?}");
    }
    assert_eq!(store.delete(&record("r0"), &Expect::Any).await.unwrap(), Deleted::Done);
    store.ping().await.unwrap();
}

/// The size is promised in the guide. A file system that cannot reserve room has no such file.
#[tokio::test]
async fn reserve_is_eight_mebibytes_unless_set() {
    for set in [None, Some(1 << 20)] {
        let place = Place::new();
        let config = match set {
            Some(bytes) => place.config().reserve(bytes),
            None => place.config(),
        };
        SqliteStore::open(config).unwrap().ping().await.unwrap();
        let reserve = std::fs::metadata(beside(&place.file(), "-reserve")).unwrap();
        assert_eq!(reserve.len(), set.unwrap_or(8 << 20));
    }
}

/// Runs in a process with a small disk of its own.
#[tokio::test]
#[ignore = "the second process of the test below"]
async fn on_a_small_disk() {
    let store = inherited();
    let path = std::env::var("HAPAX_TEST_FILE").unwrap();
    let reserve = format!("{path}-reserve");
    let held = ticket(store.claim(&command("held"), &ask()).await);
    for n in 0..20 {
        let big = Bytes::from(vec![n; VALUE]);
        let _ = store.put(&record(&format!("old{n}")), big, &Expect::Any, None).await.unwrap();
    }
    store.ping().await.unwrap();

    let filler = format!("{path}.filler");
    let mut file = OpenOptions::new().create(true).append(true).open(&filler).unwrap();
    for block in [1 << 20, 4096] {
        while file.write_all(&vec![1; block]).is_ok() {}
    }
    drop(file);
    fill(&store, "new", 1000).await;
    assert!(is_full(&store.ping().await), "the disk is full");
    for n in 0..20 {
        let deleted = store.delete(&record(&format!("old{n}")), &Expect::Any).await;
        assert_eq!(deleted.unwrap(), Deleted::Done);
        let extended = store.extend(&command("held"), &held.token, HOUR).await;
        assert_eq!(extended.unwrap(), Step::Done(held.fence));
    }
    let _ = store.sweep(100).await.unwrap();
    let given_back = store.give_back(&command("held"), &held.token, GiveBack::Forget).await;
    assert_eq!(given_back.unwrap(), Step::Done(held.fence));
    let refused = store.put(&record("small"), "1".into(), &Expect::Any, None).await;
    assert!(is_full(&refused), "the reserve is for what frees room: {refused:?}");
    assert!(is_full(&store.ping().await), "the disk is still full");

    std::fs::remove_file(filler).unwrap();
    store.ping().await.unwrap();
    let _ = store.put(&record("small"), "1".into(), &Expect::Any, None).await.unwrap();
    assert!(std::fs::metadata(reserve).unwrap().len() >= 1 << 20);
    writeln!(std::io::stdout(), "\nsmall disk done").unwrap();
}

/// A small disk is a tmpfs in a mount namespace of its own.
#[test]
fn fault_13_full_disk_lets_deletes_through() {
    let place = Place::new();
    let script = "mount -t tmpfs -o size=64m tmpfs \"$(dirname \"$HAPAX_TEST_FILE\")\" && \
                  exec \"$0\" \"$@\"";
    let unshare = || {
        let mut command = Command::new("unshare");
        command.args(["--user", "--map-root-user", "--mount"]);
        command
    };
    let can_mount = unshare().args(["mount", "-t", "tmpfs", "tmpfs", "/mnt"]).output();
    if !can_mount.is_ok_and(|output| output.status.success()) {
        let skips = std::env::var("HAPAX_TEST_SKIP").unwrap_or_default();
        let may_skip = std::env::var_os("CI").is_none() || skips.contains("tmpfs");
        assert!(
            may_skip,
            "this user may not mount a tmpfs; allow it, or set HAPAX_TEST_SKIP=tmpfs"
        );
        let not_run = "NOT RUN: this user may not mount a tmpfs in a namespace of its own";
        writeln!(std::io::stderr(), "{not_run}").unwrap();
        return;
    }
    let mut command = unshare();
    command.args(["sh", "-c", script]).arg(this_binary().get_program());
    let child = start_process(command, "full_disk::on_a_small_disk", &place);
    let output = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said.contains("small disk done"), "{said}");
}
