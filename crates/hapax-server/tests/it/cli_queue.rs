//! `hapax queue`, on a store that is opened directly and against a server on it.

use std::time::Duration;

use crate::cli_support::{Ran, Setup, hapax, run};
use crate::support::store::TestStore;
use hapax::queue::{LeaseRequest, QueueItem, QueueName};
use hapax::{StoreConfig, Tenant};

/// Three dead letters of the outbox, and one row that waits.
async fn fill(url: &str) {
    let patient = StoreConfig::default().timeout(Duration::from_secs(20));
    let store = hapax::open(url, &patient).unwrap();
    let queue = QueueName::outbox();
    let item = |key: &str| QueueItem::new(&Tenant::default(), "orders", "{}").key(key);
    let items = ["a", "b", "c"].map(item);
    let _ = store.enqueue(&queue, &items).await.unwrap();
    let take = LeaseRequest::new(9, Duration::from_secs(60));
    for leased in store.lease(&queue, &take).await.unwrap() {
        let id = leased.item.id;
        let _ = store.bury(&queue, &take.token, id, "the broker said no").await.unwrap();
    }
    let _ = store.enqueue(&queue, &[item("d")]).await.unwrap();
}

fn an_operator_decides(ask: impl Fn(&[&str]) -> Ran) {
    let shown = ask(&["show", "outbox", "--json"]).json();
    assert_eq!((&shown["depth"], &shown["dead"]), (&1.into(), &3.into()));
    assert!(ask(&["show", "outbox"]).ok().contains("in_flight"));
    assert_eq!(ask(&["dead", "elsewhere"]).ok(), "");

    let listed = ask(&["dead", "outbox"]).ok();
    let lines: Vec<_> = listed.lines().collect();
    assert_eq!(lines.len(), 4, "{listed}");
    assert!(lines[0].starts_with("ID") && lines[1].ends_with("the broker said no"), "{listed}");
    let page = ask(&["dead", "outbox", "--limit", "2"]);
    assert!(page.ok().lines().count() == 3 && page.err().contains("--all"), "{}", page.err());
    let pages = ask(&["dead", "outbox", "--all", "--limit", "1", "--json"]).ok();
    assert_eq!(pages.lines().count(), 3, "{pages}");
    let id = |line: &str| line.split(' ').next().unwrap().to_owned();

    assert_eq!(ask(&["requeue", "outbox", &id(lines[1])]).ok(), "");
    ask(&["requeue", "outbox", &id(lines[1])]).failed(3);
    assert_eq!(ask(&["discard", "outbox", &id(lines[2])]).ok(), "");
    ask(&["discard", "outbox", &id(lines[2])]).failed(3);
    ask(&["discard", "outbox", "nonsense"]).failed(1);
    let shown = ask(&["show", "outbox", "--json"]).json();
    assert_eq!((&shown["depth"], &shown["dead"]), (&2.into(), &1.into()));
}

#[tokio::test(flavor = "multi_thread")]
async fn queue_operator_on_a_store_is_audited() {
    let store = TestStore::quick_sqlite();
    let url = store.url();
    fill(&url).await;
    let ask =
        |arguments: &[&str]| run(hapax().arg("queue").args(arguments).args(["--store", &url]));
    an_operator_decides(ask);
    let ran = ask(&["dead", "outbox"]);
    assert!(ran.err().contains("operator action"), "{}", ran.err());
    assert_eq!(ask(&["dead", "outbox", "--tenant", "other"]).ok(), "");
}

#[tokio::test(flavor = "multi_thread")]
async fn queue_operator_works_on_a_server() {
    let store = TestStore::sqlite();
    fill(&store.url()).await;
    let server = Setup::on(&store.url()).start();
    an_operator_decides(|arguments| server.run(["queue"].iter().chain(arguments)));
}

#[tokio::test(flavor = "multi_thread")]
async fn fault_45_unknown_queue_is_missing() {
    let store = TestStore::quick_sqlite();
    let url = store.url();
    fill(&url).await;
    let ask = |arguments: &[&str]| run(hapax().args(arguments).args(["--store", &url]));
    assert!(ask(&["queue", "show", "outbx"]).failed(3).contains("queues here: outbox"));
    ask(&["queue", "show", "ingest"]).ok();
    let listed = ask(&["queue", "list"]).ok();
    let rows: Vec<_> =
        listed.lines().map(|line| line.split_whitespace().collect::<Vec<_>>()).collect();
    assert_eq!(rows.len(), 2, "{listed}");
    assert_eq!(rows[1][..4], ["outbox", "1", "0", "3"], "{listed}");
    let letters = ask(&["queue", "dead", "outbox", "--payload", "--json"]).json();
    assert_eq!(
        (&letters["items"][0]["topic"], &letters["items"][0]["payload"]),
        (&"orders".into(), &"{}".into())
    );
}

/// Many dead letters at once, and the audit log of it.
fn an_operator_decides_many(ask: impl Fn(&[&str]) -> Ran) {
    let reasons = ask(&["dead", "reasons", "outbox"]).ok();
    assert!(reasons.contains("3  ") && reasons.contains("the broker said no"), "{reasons}");
    let filter = "reason=the broker said no,topic=orders";
    let nothing = ask(&["dead", "discard", "outbox", "--where", "reason=other", "--json"]).json();
    assert_eq!((&nothing["state"], &nothing["done"]), (&"done".into(), &0.into()));
    let listed =
        ask(&["dead", "list", "outbox", "--reason", "the broker said no", "--json"]).json();
    let id = listed["items"][0]["id"].as_str().unwrap().to_owned();
    assert_eq!(ask(&["dead", "discard", "outbox", &id, "--note", "caf\u{e9}"]).ok(), "");
    ask(&["dead", "discard", "outbox", &id]).failed(3);
    assert!(ask(&["dead", "requeue", "outbox", "--where", filter]).ok().contains("requeue  2"));
    assert_eq!(ask(&["dead", "reasons", "outbox"]).ok(), "");
    ask(&["dead", "requeue", "outbox"]).failed(2);
    ask(&["dead", "requeue", "outbox", "--where", "state=x"]).failed(2);
    ask(&["dead", "requeue", "outbox", &id, "--all"]).failed(2);

    assert_eq!(ask(&["queue", "pause", "outbox", "--note", "update"]).ok(), "");
    assert_eq!(ask(&["queue", "resume", "outbox"]).ok(), "");
    let audit = ask(&["audit"]).ok();
    let lines: Vec<_> = audit.lines().collect();
    assert!(lines[0].starts_with("AT") && lines[1].contains("resume"), "{audit}");
    assert!(audit.contains("update") && audit.contains("caf\u{e9}"), "{audit}");
    assert!(ask(&["audit", "--limit", "1", "--json"]).json()["next"].is_string());
}

#[tokio::test(flavor = "multi_thread")]
async fn dead_letters_by_reason_on_a_store() {
    let store = TestStore::quick_sqlite();
    let url = store.url();
    fill(&url).await;
    an_operator_decides_many(|arguments| run(hapax().args(arguments).args(["--store", &url])));
}

#[tokio::test(flavor = "multi_thread")]
async fn dead_letters_by_reason_on_a_server() {
    let store = TestStore::sqlite();
    fill(&store.url()).await;
    let server = Setup::on(&store.url()).start();
    an_operator_decides_many(|arguments| server.run(arguments));
    let tasks = server.run(["task", "list", "--json"]).json();
    let id = tasks["tasks"][0]["id"].as_str().unwrap().to_owned();
    assert!(server.run(["task", "show", &id]).ok().contains("requeue"));
    assert_eq!(server.run(["task", "stop", &id, "--json"]).json()["state"], "done");
    server.run(["task", "show", "nothing"]).failed(3);
    assert!(server.run(["task", "list"]).ok().contains(&id));
}
