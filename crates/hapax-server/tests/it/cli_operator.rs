//! `hapax command list|show|settle|release|sweep`, against a server and on a store.

use std::io::Read;
use std::net::TcpListener;
use std::path::Path;

use crate::cli_support::{Ran, Server, Setup, WAIT_TIMEOUT, hapax, run};
use crate::proxy_support::Proxy;
use crate::support::eventually;
use crate::support::http::HttpRequest;
use crate::support::store::TestStore;
use hapax_testkit::wait_for;

/// Runs `hapax command` on a server or on a store.
type Ask<'a> = &'a dyn Fn(&[&str]) -> Ran;

/// `hapax command` on a store, without a server.
fn on_store(url: &str, arguments: &[&str]) -> Ran {
    let mut command = hapax();
    // A server that does not run, and must not be asked.
    command.env("HAPAX_SERVER", "http://127.0.0.1:1");
    run(command.arg("command").args(arguments).args(["--store", url]))
}

fn new_store() -> TestStore {
    let store = TestStore::quick_sqlite();
    run(hapax().args(["migrate", "--store", &store.url()])).ok();
    store
}

fn unknown(ask: Ask, key: &str) {
    ask(&["begin", "POST /orders", key, "--lease", "1ms"]).ok();
    eventually("the lease runs out", || {
        ask(&["show", "POST /orders", key, "--json"]).json()["state"] == "unknown"
    });
}

fn an_operator_decides(ask: Ask) {
    assert_eq!(ask(&["list"]).ok(), "");
    unknown(ask, "ran");
    unknown(ask, "did-not-run");
    ask(&["begin", "pay", "runs", "--lease", "1h"]).ok();

    let listed = ask(&["list", "--state", "unknown"]).ok();
    let lines: Vec<_> = listed.lines().collect();
    assert_eq!(lines.len(), 3, "{listed}");
    assert!(lines[0].starts_with("STATE") && lines[1].starts_with("unknown"), "{listed}");
    assert!(listed.contains("POST /orders") && listed.contains("did-not-run"), "{listed}");
    let pages = ask(&["list", "--all", "--limit", "1", "--json"]).ok();
    assert_eq!(pages.matches("\"operation\"").count(), 3, "{pages}");
    let page = ask(&["list", "--limit", "1"]);
    assert!(page.ok().lines().count() == 2 && page.err().contains("--all"), "{}", page.err());

    let answer = ["--status", "201", "--header", "x: y", "--body", "made"];
    let settle = |key| ask(&[&["settle", "POST /orders", key], &answer[..]].concat());
    assert!(settle("ran").ok().contains("completed"));
    settle("ran").ok();
    let replayed = ask(&["begin", "POST /orders", "ran", "--json"]).json();
    assert_eq!((&replayed["status"], &replayed["body"]), (&201.into(), &"made".into()));
    assert!(ask(&["release", "POST /orders", "ran"]).failed(4).contains("already-completed"));

    assert_eq!(ask(&["release", "POST /orders", "did-not-run"]).ok(), "");
    ask(&["release", "POST /orders", "did-not-run"]).failed(3);
    ask(&["show", "POST /orders", "did-not-run"]).failed(3);
    assert!(ask(&["settle", "pay", "runs"]).failed(75).contains("in-progress"));
    ask(&["settle", "pay", "runs", "--status", "7"]).failed(1);
    ask(&["list", "--state", "lost"]).failed(2);
    ask(&["list", "--after", "nonsense"]).failed(1);
    assert_eq!(ask(&["sweep"]).ok(), "swept  0\n");
    let swept = ask(&["sweep", "--json"]).json();
    assert_eq!(swept, serde_json::json!({"swept": 0, "more": false}));
}

#[test]
fn operator_lists_settles_and_releases_on_a_server() {
    let server = Server::start();
    an_operator_decides(&|arguments| server.run(["command"].iter().chain(arguments)));
}

#[test]
fn operator_lists_settles_and_releases_on_a_store() {
    let store = new_store();
    an_operator_decides(&|arguments| on_store(&store.url(), arguments));
}

#[test]
fn operator_error_names_the_missing_scope() {
    let made = |scope| {
        let new = ["token", "new", "--json", "--name", scope, "--scope", scope];
        run(hapax().args(new)).json()
    };
    let (data, admin) = (made("data"), made("admin"));
    let rule = |token: &serde_json::Value| {
        let (name, hash) = (&token["name"], &token["sha256"]);
        format!("[[token]]\nname = {name}\nsha256 = {hash}\nscopes = [{name}]\n")
    };
    let server = Setup::memory().file(&(rule(&data) + &rule(&admin))).start();
    let ask = |token: &serde_json::Value, arguments: &[&str]| {
        let mut command = server.command(["command"]);
        run(command.args(arguments).env("HAPAX_TOKEN", token["token"].as_str().unwrap()))
    };
    ask(&data, &["begin", "pay", "k"]).ok();
    assert!(ask(&data, &["list"]).failed(1).contains("admin"));
    assert!(ask(&admin, &["list"]).ok().contains("pay"));
    for token in [&data, &admin] {
        assert!(ask(token, &["show", "pay", "k"]).ok().contains("pending"));
    }
}

#[test]
fn operator_names_tenant_and_creates_no_misspelt_file() {
    let store = new_store();
    let ask = |arguments: &[&str]| on_store(&store.url(), arguments);
    ask(&["begin", "pay", "k", "--tenant", "shop"]).ok();
    assert_eq!(ask(&["list"]).ok(), "");
    let listed = ask(&["list", "--tenant", "shop"]);
    assert!(listed.ok().contains("pay"));
    // Actions on a store without a server are audited here, without the key.
    let audit = listed.err();
    assert!(audit.contains("operator action") && audit.contains("shop"), "{audit}");
    assert!(!audit.contains("pay"), "{audit}");
    ask(&["list", "--tenant", "a/b"]).failed(2);
    let alone = run(hapax().args(["command", "list", "--tenant", "shop"]));
    assert!(alone.failed(2).contains("--store"));
    let typo = store.url().replace("hapax.db", "hapaxx.db");
    assert!(on_store(&typo, &["list"]).failed(69).contains("no file"));
    assert!(!Path::new(&typo["sqlite:".len()..]).exists());
    on_store("mysql://x", &["list"]).failed(69);
    on_store("redis://127.0.0.1:1", &["list"]).failed(69);
}

/// A proxy in front of a service that always closes the connection without a response.
fn proxy_to_nowhere(store: &str) -> Proxy {
    let service = TcpListener::bind("127.0.0.1:0").unwrap();
    let upstream = format!("http://{}", service.local_addr().unwrap());
    std::thread::spawn(move || {
        for mut stream in service.incoming().map_while(Result::ok) {
            let _ = stream.read(&mut [0; 4096]);
        }
    });
    Proxy::start(&upstream, store, &["--lease", "1s"])
}

#[test]
fn operator_settles_unknown_proxy_key_for_its_caller() {
    let store = new_store();
    let ask = |arguments: &[&str]| on_store(&store.url(), arguments);
    let proxy = proxy_to_nowhere(&store.url());
    let order = || {
        let order = HttpRequest::new(&proxy.address, "POST", "/orders").bearer("me");
        order.header("Idempotency-Key", "tea-1").body(b"").send()
    };
    assert_eq!(order().status, 502);
    let scope = wait_for("its outcome is unknown", WAIT_TIMEOUT, || {
        let page = ask(&["list", "--state", "unknown", "--json"]).json();
        page["commands"][0]["scope"].as_str().map(str::to_owned)
    });
    order().is(409, "outcome-unknown");
    let name = ["POST /orders", "tea-1", "--scope", &scope];
    assert!(ask(&[&["show"], &name[..]].concat()).ok().contains("unknown"));
    assert!(ask(&["show", "POST /orders", "tea-1"]).ok().contains("unknown"), "its only caller");
    ask(&[&["settle"], &name[..], &["--status", "201", "--body", "order 1"]].concat()).ok();
    let replayed = order();
    assert_eq!((replayed.status, replayed.text().as_str()), (201, "order 1"));
}

/// An unknown command of a caller behind the proxy.
async fn unknown_in_scope(store: &dyn hapax::Store, scope: &str, key: &str) {
    let tenant = hapax::Tenant::default().scoped(scope).unwrap();
    let key = hapax::Key::command(&tenant, hapax::Operation("POST /orders"), key).unwrap();
    let lease = std::time::Duration::from_millis(1);
    let ask = hapax::ClaimRequest::new(lease).retention(std::time::Duration::from_secs(3600));
    store.claim(&key, &ask).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn fault_45_scope_is_found_when_unique() {
    let file = TestStore::quick_sqlite();
    let patient = hapax::StoreConfig::default().timeout(WAIT_TIMEOUT);
    let store = hapax::open(&file.url(), &patient).unwrap();
    for (scope, key) in [("aaaa", "one"), ("bbbb", "one-too"), ("aaaa", "two"), ("bbbb", "two")] {
        unknown_in_scope(&*store, scope, key).await;
    }
    let ask = |arguments: &[&str]| on_store(&file.url(), arguments);
    eventually("the lease runs out", || {
        ask(&["show", "POST /orders", "one", "--json"]).json()["state"] == "unknown"
    });
    let ambiguous = ask(&["show", "POST /orders", "two"]).failed(4);
    assert!(ambiguous.contains("aaaa") && ambiguous.contains("bbbb"), "{ambiguous}");
    ask(&["release", "POST /orders", "two"]).failed(4);
    ask(&["show", "POST /orders", "two", "--scope", "bbbb"]).ok();
    ask(&["show", "POST /orders", "three"]).failed(3);
    eventually("the lease runs out", || ask(&["settle", "POST /orders", "one"]).code() == 0);
    ask(&["release", "POST /orders", "one-too"]).ok();
    let with_record = hapax::Tenant::new("reader").unwrap();
    let record = hapax::Key::record(&with_record, "k").unwrap();
    let put = store.put(&record, "{}".into(), &hapax::Expect::Any, None).await.unwrap();
    assert!(matches!(put, hapax::Put::Stored { .. }));
    let tenants = run(hapax().args(["tenant", "list", "--store", &file.url()])).ok();
    assert_eq!(tenants, "default\nreader\n");
}
