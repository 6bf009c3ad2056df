//! Two processes on one file.

mod common;

use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};
use std::time::Duration;

use common::{PATIENT, Place, ask, command, ticket};
use hapax_core::{Claimed, Claims};
use hapax_sqlite::SqliteStore;

/// The other process: holds a claim until it is told to settle it.
#[tokio::test]
#[ignore = "the second process of the test below"]
async fn holder() {
    let store = SqliteStore::open(std::env::var("HAPAX_TEST_FILE").unwrap()).unwrap();
    let held = ticket(store.claim(&command("shared"), &ask()).await);
    let mut out = std::io::stdout();
    writeln!(out, "\nheld {}", held.fence).unwrap();
    std::io::stdin().read_line(&mut String::new()).unwrap();
    let _ = store.settle(&command("shared"), &held.token, "over there".into()).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_waiter_hears_of_another_process() {
    let place = Place::new();
    let store = place.store();
    let mut holder = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "holder", "--ignored", "--nocapture"])
        .env("HAPAX_TEST_FILE", place.file())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(holder.stdout.take().unwrap()).lines();
    let held = lines.find_map(|line| Some(line.unwrap().strip_prefix("held ")?.to_owned()));

    let mut watch = store.watch(&command("shared"));
    let seen = store.claim(&command("shared"), &ask()).await.unwrap();
    assert!(matches!(seen, Claimed::Busy { .. }), "{seen:?}");
    let view = store.look(&command("shared")).await.unwrap().unwrap();
    assert_eq!(view.fence.map(|fence| fence.to_string()), held);

    holder.stdin.take().unwrap().write_all(b"go on\n").unwrap();
    let value = tokio::time::timeout(PATIENT, async {
        loop {
            // Nobody looks by himself here: without a hint this never ends.
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
