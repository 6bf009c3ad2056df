//! `hapax command list|show|settle|release|sweep`, against a server and on a store.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Stdio};

use crate::cli_support::{PATIENCE, Ran, Server, folder, hapax, run};
use hapax_testkit::wait_for;

/// The same command line, to a server or to a store.
trait Desk {
    fn ask(&self, arguments: &[&str]) -> Ran;
}

impl Desk for Server {
    fn ask(&self, arguments: &[&str]) -> Ran {
        self.run(["command"].iter().chain(arguments))
    }
}

/// A file that is opened directly.
struct Store(String);

impl Desk for Store {
    fn ask(&self, arguments: &[&str]) -> Ran {
        let mut command = hapax();
        // A server that is not there: it must not be asked.
        command.env("HAPAX_SERVER", "http://127.0.0.1:1");
        run(command.arg("command").args(arguments).args(["--store", &self.0]))
    }
}

impl Store {
    /// An empty one.
    fn new(folder: &Path) -> Self {
        let path = folder.join("hapax.db");
        let url = format!("sqlite:{}", path.display());
        run(hapax().args(["doctor", "--migrate", "--store", &url]));
        assert!(path.exists());
        Self(url)
    }
}

fn unknown(desk: &dyn Desk, key: &str) {
    desk.ask(&["begin", "POST /orders", key, "--lease", "1ms"]).ok();
    wait_for("the lease runs out", PATIENCE, || {
        let shown = desk.ask(&["show", "POST /orders", key, "--json"]).json();
        (shown["state"] == "unknown").then_some(())
    });
}

fn an_operator_decides(desk: &dyn Desk) {
    assert_eq!(desk.ask(&["list"]).ok(), "\n".repeat(0));
    unknown(desk, "ran");
    unknown(desk, "did-not-run");
    desk.ask(&["begin", "pay", "runs", "--lease", "1h"]).ok();

    let listed = desk.ask(&["list", "--state", "unknown"]).ok();
    let lines: Vec<_> = listed.lines().collect();
    assert_eq!(lines.len(), 3, "{listed}");
    assert!(lines[0].starts_with("STATE") && lines[1].starts_with("unknown"), "{listed}");
    assert!(listed.contains("POST /orders") && listed.contains("did-not-run"), "{listed}");
    let pages = desk.ask(&["list", "--all", "--limit", "1", "--json"]).ok();
    assert_eq!(pages.matches("\"operation\"").count(), 3, "{pages}");
    let page = desk.ask(&["list", "--limit", "1"]);
    assert!(page.ok().lines().count() == 2 && page.err().contains("--all"), "{}", page.err());

    let answer = ["--status", "201", "--header", "x: y", "--body", "made"];
    let settle = |key| desk.ask(&[&["settle", "POST /orders", key], &answer[..]].concat());
    assert!(settle("ran").ok().contains("completed"));
    settle("ran").ok();
    let replayed = desk.ask(&["begin", "POST /orders", "ran", "--json"]).json();
    assert_eq!((&replayed["status"], &replayed["body"]), (&201.into(), &"made".into()));
    assert!(desk.ask(&["release", "POST /orders", "ran"]).failed(4).contains("already-completed"));

    assert_eq!(desk.ask(&["release", "POST /orders", "did-not-run"]).ok(), "");
    desk.ask(&["release", "POST /orders", "did-not-run"]).failed(3);
    desk.ask(&["show", "POST /orders", "did-not-run"]).failed(3);
    assert!(desk.ask(&["settle", "pay", "runs"]).failed(75).contains("in-progress"));
    desk.ask(&["settle", "pay", "runs", "--status", "7"]).failed(1);
    desk.ask(&["list", "--state", "lost"]).failed(2);
    desk.ask(&["list", "--after", "nonsense"]).failed(1);
    assert_eq!(desk.ask(&["sweep"]).ok(), "swept  0\n");
    assert_eq!(desk.ask(&["sweep", "--json"]).ok(), "{\"swept\":0}\n");
}

#[test]
fn operator_lists_settles_and_releases_on_a_server() {
    an_operator_decides(&Server::start());
}

#[test]
fn operator_lists_settles_and_releases_on_a_store() {
    let folder = folder();
    an_operator_decides(&Store::new(folder.path()));
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
    let server = Server::with_config(&(rule(&data) + &rule(&admin)));
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
    let folder = folder();
    let store = Store::new(folder.path());
    store.ask(&["begin", "pay", "k", "--tenant", "shop"]).ok();
    assert_eq!(store.ask(&["list"]).ok(), "");
    let listed = store.ask(&["list", "--tenant", "shop"]);
    assert!(listed.ok().contains("pay"));
    // What is done on a store directly is audited here, without the key.
    let audit = listed.err();
    assert!(audit.contains("operator action") && audit.contains("shop"), "{audit}");
    assert!(!audit.contains("pay"), "{audit}");
    store.ask(&["list", "--tenant", "a/b"]).failed(2);
    let alone = run(hapax().args(["command", "list", "--tenant", "shop"]));
    assert!(alone.failed(2).contains("--store"));
    let typo = folder.path().join("hapaxx.db");
    let typo_url = format!("sqlite:{}", typo.display());
    let missing = run(hapax().args(["command", "list", "--store", &typo_url]));
    assert!(missing.failed(69).contains("no file"));
    assert!(!typo.exists());
    run(hapax().args(["command", "list", "--store", "mysql://x"])).failed(69);
    run(hapax().args(["command", "list", "--store", "redis://127.0.0.1:1"])).failed(69);
}

/// A proxy in front of a service that goes away in the middle, always.
struct Proxy {
    child: Child,
    address: String,
}

impl Proxy {
    fn start(store: &str) -> Self {
        let service = TcpListener::bind("127.0.0.1:0").unwrap();
        let upstream = format!("http://{}", service.local_addr().unwrap());
        std::thread::spawn(move || {
            for mut stream in service.incoming().map_while(Result::ok) {
                let _ = stream.read(&mut [0; 4096]);
            }
        });
        let mut child = hapax()
            .args(["proxy", "--listen", "127.0.0.1:0", "--store", store, "--upstream", &upstream])
            .args(["--lease", "1s", "--store-timeout", "20s"])
            .current_dir("/")
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut first = String::new();
        BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut first).unwrap();
        let address = first.split("http://").nth(1).unwrap().trim().to_owned();
        Self { child, address }
    }

    fn order(&self) -> String {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let ask = "POST /orders HTTP/1.1\r\nHost: shop\r\nAuthorization: Bearer me\r\n\
            Idempotency-Key: tea-1\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
        stream.write_all(ask.as_bytes()).unwrap();
        let mut answer = String::new();
        let _ = stream.read_to_string(&mut answer);
        answer
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn operator_settles_unknown_proxy_key_for_its_caller() {
    let folder = folder();
    let store = Store::new(folder.path());
    let proxy = Proxy::start(&store.0);
    assert!(proxy.order().starts_with("HTTP/1.1 502"));
    let scope = wait_for("its outcome is unknown", PATIENCE, || {
        let page = store.ask(&["list", "--state", "unknown", "--json"]).json();
        page["commands"][0]["scope"].as_str().map(str::to_owned)
    });
    assert!(proxy.order().contains("outcome-unknown"));
    let name = ["POST /orders", "tea-1", "--scope", &scope];
    assert!(store.ask(&[&["show"], &name[..]].concat()).ok().contains("unknown"));
    store.ask(&["show", "POST /orders", "tea-1"]).failed(3);
    store.ask(&[&["settle"], &name[..], &["--status", "201", "--body", "order 1"]].concat()).ok();
    let replayed = proxy.order();
    assert!(replayed.starts_with("HTTP/1.1 201") && replayed.ends_with("order 1"), "{replayed}");
}
