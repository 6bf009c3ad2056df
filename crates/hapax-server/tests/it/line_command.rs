//! `hapax line`, the real binary: its settings, its output, and its routes.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::Command;
use std::sync::{Arc, Mutex, PoisonError};

use crate::cli_support::{PATIENCE, folder, hapax, run};
use crate::support::HapaxProcess;
use crate::support::http::HttpRequest;
use axum::Router;
use axum::extract::State;
use axum::routing::post;
use hapax_line::simulator::events;
use hapax_line::{ChannelSecrets, SIGNATURE_HEADER};
use hapax_testkit::{Redis, free_port, wait_for};
use rustix::process::Signal;
use serde_json::{Value, json};
use tokio::sync::Semaphore;

const SECRET: &str = "hush-channel-secret";
const TOKEN: &str = "hush-access-token";
const USER: &str = "Uf00d0000000000000000000000000001";
/// The text of every event, with a mark that must not be shown.
const TEXT: &str = "臺北🥚";

/// `hapax line` without any settings.
fn bare() -> Command {
    let mut command = hapax();
    command.args(["line", "--config", "/dev/null"]);
    command
}

/// `hapax line` with the settings of a channel.
fn line() -> Command {
    let mut command = bare();
    command.env("LINE_CHANNEL_SECRET", SECRET).env("LINE_CHANNEL_ACCESS_TOKEN", TOKEN);
    // An address without a listener, so that the real API is not called.
    command.env("LINE_API_BASE", "http://127.0.0.1:9");
    command
}

/// The error of a command that ends at once.
fn refused(command: &mut Command, flags: &[&str]) -> String {
    let said = run(command.args(flags)).failed(1);
    assert!(!said.contains("hush"), "{said}");
    said
}

/// A running gateway, killed when dropped.
struct Gateway {
    process: HapaxProcess,
    address: String,
    admin: String,
    banner: String,
}

impl Gateway {
    /// Starts a gateway on a free port, with an unreachable bot unless the flags name one.
    fn start(command: &mut Command, flags: &[&str]) -> Self {
        if !flags.contains(&"--upstream") {
            command.args(["--upstream", "http://127.0.0.1:9/callback"]);
        }
        if !flags.contains(&"--listen") {
            command.args(["--listen", "127.0.0.1:0"]);
        }
        let process = HapaxProcess::start(command.args(flags).args(["--log-level", "trace"]));
        let (address, banner) = (process.address(), process.banner.clone());
        Self { address, admin: process.admin_address().unwrap_or_default(), banner, process }
    }

    /// A gateway on `memory:`.
    fn in_memory(flags: &[&str]) -> Self {
        Self::start(&mut line(), &[&["--store", "memory:"], flags].concat())
    }

    fn ask(&self, method: &str, path: &str) -> Asked {
        Asked(HttpRequest::new(&self.local(&self.address), method, path))
    }

    fn ask_admin(&self, path: &str) -> Asked {
        Asked(HttpRequest::new(&self.local(&self.admin), "GET", path))
    }

    /// The address for clients on this machine.
    fn local(&self, address: &str) -> String {
        address.replace("0.0.0.0", "127.0.0.1")
    }

    /// Sends events as LINE does.
    fn webhook(&self, events: &[Value]) -> Reply {
        let body = json!({ "destination": "Uf00db07", "events": events }).to_string();
        let signature = ChannelSecrets::new(SECRET).unwrap().sign(body.as_bytes());
        self.ask("POST", "/line/webhook").header(SIGNATURE_HEADER, &signature).send(&body)
    }

    fn ready(&self) -> u16 {
        self.ask("GET", "/readyz").send("").status
    }

    fn terminate(&self) {
        self.process.signal(Signal::TERM);
    }

    fn ends(&mut self) {
        let (status, log) = self.process.wait();
        assert!(status.success(), "{status}: {log}");
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        self.process.kill();
        if !std::thread::panicking() {
            let said = format!("{}{}", self.banner, self.process.wait().1);
            hapax_testkit::keep_log("line", &said);
            for private in ["hush", "Uf00d", "🥚"] {
                assert!(!said.contains(private), "{private} was said: {said}");
            }
        }
    }
}

struct Asked(HttpRequest);

struct Reply {
    status: u16,
    headers: HashMap<String, String>,
    body: String,
}

impl Asked {
    fn header(self, name: &str, value: &str) -> Self {
        Self(self.0.header(name, value))
    }

    fn send(self, body: &str) -> Reply {
        let answer = self.0.body(body.as_bytes()).send();
        let (status, body) = (answer.status, answer.text());
        Reply { status, headers: answer.headers.into_iter().collect(), body }
    }
}

impl Reply {
    /// The code of a problem document that has all fields, and nothing of the request.
    #[track_caller]
    fn problem(&self) -> String {
        assert_eq!(self.headers["content-type"], "application/problem+json", "{}", self.body);
        let json: Value = serde_json::from_str(&self.body).unwrap();
        assert_eq!(json["status"], self.status);
        assert!(json["detail"].is_string() && json["title"].is_string(), "{json}");
        assert!(json["retryable"].is_boolean(), "{json}");
        for private in ["hush", "Uf00d", "🥚"] {
            assert!(!self.body.contains(private), "{}", self.body);
        }
        let kind = json["type"].as_str().unwrap();
        kind.strip_prefix("https://hapax.dev/problems/").unwrap().to_owned()
    }

    #[track_caller]
    fn is(&self, status: u16, code: &str) {
        assert_eq!((self.status, self.problem().as_str()), (status, code));
    }
}

/// A bot that holds its calls until they are released.
struct Bot {
    url: String,
    calls: Arc<Mutex<Vec<Value>>>,
    go: Arc<Semaphore>,
    _runtime: tokio::runtime::Runtime,
}

impl Bot {
    fn start() -> Self {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let (calls, go) = (Arc::<Mutex<Vec<Value>>>::default(), Arc::new(Semaphore::new(0)));
        let listener = runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0")).unwrap();
        let url = format!("http://{}/callback?key=hush-key", listener.local_addr().unwrap());
        let app = Router::new().route("/callback", post(held));
        let app = app.with_state((calls.clone(), go.clone()));
        runtime.spawn(async move { axum::serve(listener, app).await });
        Self { url, calls, go, _runtime: runtime }
    }

    /// Waits for this number of calls.
    fn called(&self, times: usize) -> Vec<Value> {
        let calls = || self.calls.lock().unwrap_or_else(PoisonError::into_inner).clone();
        wait_for("the bot is called", PATIENCE, || Some(calls()).filter(|all| all.len() >= times))
    }
}

type Held = (Arc<Mutex<Vec<Value>>>, Arc<Semaphore>);

async fn held(State((calls, go)): State<Held>, body: String) {
    let webhook = serde_json::from_str(&body).unwrap();
    calls.lock().unwrap_or_else(PoisonError::into_inner).push(webhook);
    go.acquire().await.unwrap().forget();
}

#[test]
fn line_missing_settings_are_errors_with_advice() {
    let said = refused(&mut bare(), &[]);
    assert!(said.contains("--upstream is needed") && said.contains("/callback"), "{said}");
    let upstream = ["--upstream", "http://127.0.0.1:3000/callback"];
    let said = refused(&mut bare(), &upstream);
    assert!(said.contains("LINE_CHANNEL_SECRET is needed"), "{said}");
    let said = refused(bare().env("LINE_CHANNEL_SECRET", SECRET), &upstream);
    assert!(said.contains("LINE_CHANNEL_ACCESS_TOKEN is needed"), "{said}");
    let said = refused(line().env("LINE_CHANNEL_SECRET", "hush,hush,hush"), &upstream);
    assert!(said.contains("LINE_CHANNEL_SECRET: ") && said.contains("NEW,OLD"), "{said}");
    let said = refused(line().env("LINE_CHANNEL_ACCESS_TOKEN", "hush hush"), &upstream);
    assert!(said.contains("LINE_CHANNEL_ACCESS_TOKEN: "), "{said}");
    let said = refused(line().env("LINE_API_BASE", "hush"), &upstream);
    assert!(said.contains("LINE_API_BASE: ") && said.contains("https://api.line.me"), "{said}");
    let said = refused(&mut line(), &["--upstream", "http://u:hush@127.0.0.1:3000"]);
    assert!(said.contains("--upstream: ") && said.contains("signature"), "{said}");
    let said = refused(line().env("PROCESSING_LOCK_ENABLED", "maybe"), &upstream);
    assert!(said.contains("PROCESSING_LOCK_ENABLED: true or false"), "{said}");
    let said = run(line().args(["--lokc", "true"])).failed(2);
    assert!(said.contains("--lokc"), "{said}");
}

#[test]
fn line_rules_mistake_names_file_and_rule() {
    let folder = tempfile::tempdir().unwrap();
    let file = |text: &str| {
        let path = folder.path().join("my-rules.toml");
        std::fs::write(&path, text).unwrap();
        path
    };
    let said = |rules: &Path| {
        let rules = rules.to_str().unwrap();
        refused(&mut line(), &["--upstream", "http://127.0.0.1:9", "--rules", rules])
    };
    let good = "[[rule]]\nevent = 'text'\nguard = 'mutex'\n";
    let message = said(&file(&format!("{good}[[rule]]\nevent = 'text'\nguard = 'mutx'")));
    assert!(message.contains("my-rules.toml: rule 2, `guard`"), "{message}");
    let message = said(&file("[[rule]\n"));
    assert!(message.contains("my-rules.toml: ") && message.contains("TOML"), "{message}");
    let message = said(Path::new("/nowhere/my-rules.toml"));
    assert!(message.contains("cannot read /nowhere/my-rules.toml"), "{message}");
    // The rules are checked even if locking is turned off.
    let rules = file("x = 1");
    let flags = ["--upstream", "http://127.0.0.1:9", "--rules", rules.to_str().unwrap()];
    assert!(refused(&mut line(), &[&flags[..], &["--lock", "false"]].concat()).contains("`x`"));
}

#[test]
fn line_banner_names_addresses_and_rules() {
    let bot = Bot::start();
    let gateway = Gateway::in_memory(&["--upstream", &bot.url, "--admin", "127.0.0.1:0"]);
    let (address, banner) = (&gateway.address, &gateway.banner);
    let shown = bot.url.split('?').next().unwrap();
    for line in [
        format!("webhook   POST http://{address}/line/webhook\n"),
        format!("upstream  {shown}\n"),
        "store     memory: (from --store)\n".into(),
        "rules     text, location and postback".into(),
        "for 5s (from the default of --lock-ttl)\n".into(),
        format!("admin     http://{}", gateway.admin),
        "try       ".into(),
    ] {
        assert!(banner.contains(&line), "{line}: {banner}");
    }
    assert!(banner.lines().last().unwrap().contains("hapax line simulate --to http"), "{banner}");

    let mut told = line();
    told.env("PROCESSING_LOCK_TIMEOUT_SECONDS", "7");
    let gateway = Gateway::start(&mut told, &["--store", "memory:"]);
    let rules = "for 7s (from PROCESSING_LOCK_TIMEOUT_SECONDS)";
    assert!(gateway.banner.contains(rules), "{}", gateway.banner);
    let mut told = line();
    told.env("PROCESSING_LOCK_ENABLED", "False");
    let gateway = Gateway::start(&mut told, &["--store", "memory:"]);
    let rules = "rules     none: no user is locked (from PROCESSING_LOCK_ENABLED)";
    assert!(gateway.banner.contains(rules), "{}", gateway.banner);
    let folder = tempfile::tempdir().unwrap();
    let rules = folder.path().join("my-rules.toml");
    std::fs::write(&rules, "[[rule]]\nevent = 'text'\nguard = 'mutex'").unwrap();
    let gateway = Gateway::in_memory(&["--rules", rules.to_str().unwrap()]);
    assert!(gateway.banner.contains("my-rules.toml"), "{}", gateway.banner);
}

#[test]
fn line_other_requests_get_problem_documents() {
    let gateway = Gateway::in_memory(&[]);
    let body = json!({ "destination": "Uf00db07", "events": [events::text(USER, TEXT)] });
    let body = body.to_string();
    let webhook = || gateway.ask("POST", "/line/webhook");
    let secrets = ChannelSecrets::new(SECRET).unwrap();
    webhook().send(&body).is(401, "line-signature");
    webhook().header(SIGNATURE_HEADER, "🥚").send(&body).is(401, "line-signature");
    let foreign = ChannelSecrets::new("another").unwrap().sign(body.as_bytes());
    webhook().header(SIGNATURE_HEADER, &foreign).send(&body).is(401, "line-signature");
    for wrong in ["", "no JSON 🥚 Uf00d", "[]", r#"{"events":[]}"#] {
        let signature = secrets.sign(wrong.as_bytes());
        webhook().header(SIGNATURE_HEADER, &signature).send(wrong).is(400, "line-webhook");
    }
    let large = format!("{body}{}", " ".repeat(1 << 20));
    let signature = secrets.sign(large.as_bytes());
    webhook().header(SIGNATURE_HEADER, &signature).send(&large).is(413, "payload-too-large");
    let get = gateway.ask("GET", "/line/webhook").send("");
    get.is(405, "method-not-allowed");
    assert_eq!(get.headers["allow"], "POST");
    for path in ["/", "/line", "/line/webhook/", "/line/Uf00d", "/v1/locks/Uf00d", "/openapi.json"]
    {
        gateway.ask("POST", path).send(&body).is(404, "not-found");
    }
    // A valid webhook gets no document.
    let empty = r#"{"destination":"Uf00db07","events":[]}"#;
    let taken = webhook().header(SIGNATURE_HEADER, &secrets.sign(empty.as_bytes())).send(empty);
    assert_eq!((taken.status, taken.body.as_str()), (200, ""));
}

#[test]
fn line_body_that_never_comes_is_408() {
    let gateway = Gateway::in_memory(&["--body-timeout", "300ms"]);
    let mut stream = TcpStream::connect(&gateway.address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let head = "POST /line/webhook HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n{";
    stream.write_all(head.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 408 "), "{answer}");
    assert!(answer.contains("/request-timeout\""), "{answer}");
}

#[test]
fn line_metrics_and_queues_are_local_or_on_admin() {
    let gateway = Gateway::in_memory(&["--admin", "127.0.0.1:0"]);
    assert_eq!(gateway.ask("GET", "/healthz").send("").status, 200);
    wait_for("ready", PATIENCE, || (gateway.ready() == 200).then_some(()));
    assert_eq!(gateway.webhook(&[events::unknown(USER)]).status, 200);
    let metrics = gateway.ask("GET", "/metrics").send("").body;
    assert!(metrics.contains("hapax_line_webhook_seconds_bucket{status=\"200\","), "{metrics}");
    assert!(metrics.contains("hapax_line_events_total{"), "{metrics}");
    assert!(!metrics.contains("Uf00d"), "{metrics}");
    let queue = gateway.ask("GET", "/v1/queues/line").send("");
    assert!(queue.body.contains("\"dead\":"), "{}", queue.body);
    // A tunnel brings foreign requests to loopback, with another `Host`.
    for path in ["/metrics", "/v1/queues/line", "/v1/queues/line/dead"] {
        gateway.ask("GET", path).header("host", "tunnel.example").send("").is(403, "forbidden");
        gateway.ask("GET", path).header("x-forwarded-for", "1.2.3.4").send("").is(403, "forbidden");
        assert_eq!(gateway.ask_admin(path).send("").status, 200, "{path}");
    }
    let health = gateway.ask("GET", "/healthz").header("host", "tunnel.example").send("");
    assert_eq!(health.status, 200);
    assert_eq!(gateway.ask_admin("/line/webhook").send("").status, 404);
}

#[test]
fn line_public_listener_has_webhooks_and_health_alone() {
    let gateway = Gateway::in_memory(&["--listen", "0.0.0.0:0", "--admin", "0.0.0.0:0"]);
    assert_eq!(gateway.ask("GET", "/healthz").send("").status, 200);
    assert_eq!(gateway.webhook(&[]).status, 200);
    for path in ["/metrics", "/v1/queues/line", "/v1/queues/line/dead"] {
        gateway.ask("GET", path).send("").is(404, "not-found");
    }
    assert_eq!(gateway.ask_admin("/metrics").send("").status, 200);
    assert_eq!(gateway.ask_admin("/readyz").send("").status, 200);
    assert_eq!(gateway.ask_admin("/v1/queues/line").send("").status, 404, "nobody knows who asks");
}

#[test]
fn line_starts_without_store_and_follows_policy() {
    let nobody = format!("redis://127.0.0.1:{}", free_port());
    let bot = Bot::start();
    let flags = ["--store", &nobody, "--upstream", &bot.url];
    let gateway = Gateway::start(&mut line(), &flags);
    assert_eq!((gateway.ready(), gateway.ask("GET", "/healthz").send("").status), (503, 200));
    assert_eq!(gateway.webhook(&[events::text(USER, TEXT)]).status, 200);
    assert_eq!(bot.called(1)[0]["events"][0]["message"]["text"], TEXT);
    bot.go.add_permits(1);

    let flags = [&flags[..], &["--on-store-error", "closed"]].concat();
    let gateway = Gateway::start(&mut line(), &flags);
    let refused = gateway.webhook(&[events::text(USER, TEXT)]);
    refused.is(503, "store-unavailable");
    assert!(refused.headers.contains_key("retry-after"));
}

#[test]
fn line_original_variables_are_honoured() {
    let (redis, bot) = (Redis::start(), Bot::start());
    let key = format!("processing:user:{USER}");
    let start = |enabled: &str| {
        let mut told = line();
        told.env("REDIS_URL", redis.url()).env("PROCESSING_LOCK_ENABLED", enabled);
        told.env("PROCESSING_LOCK_TIMEOUT_SECONDS", "600");
        // A long timeout, so that a stalled machine is not taken for a store that is away.
        Gateway::start(&mut told, &["--upstream", &bot.url, "--store-timeout", "30s"])
    };
    let gateway = start("true");
    assert!(gateway.banner.contains("(from REDIS_URL)"), "{}", gateway.banner);
    gateway.webhook(&[events::text(USER, TEXT)]);
    bot.called(1);
    let left: i64 = redis.cli(&["PTTL", &key]).parse().unwrap();
    assert!((300_000..=600_000).contains(&left), "{left}");
    bot.go.add_permits(1);
    wait_for("it is released", PATIENCE, || (redis.cli(&["EXISTS", &key]) == "0").then_some(()));
    drop(gateway);

    let gateway = start("0");
    gateway.webhook(&[events::text(USER, TEXT)]);
    bot.called(2);
    assert_eq!(redis.cli(&["EXISTS", &key]), "0");
    bot.go.add_permits(1);
    drop(gateway);
}

#[test]
fn line_shutdown_finishes_events_in_hand() {
    let bot = Bot::start();
    // A store on a file, which the test opens after the server has ended.
    let folder = folder();
    let store = format!("sqlite:{}", folder.path().join("line.db").display());
    let flags = ["--store", &store, "--upstream", &bot.url, "--store-timeout", "30s"];
    let mut gateway = Gateway::start(&mut line(), &flags);
    assert_eq!(gateway.webhook(&[events::text(USER, TEXT)]).status, 200);
    bot.called(1);
    gateway.terminate();
    let address = gateway.local(&gateway.address);
    wait_for("webhooks are not taken any more", PATIENCE, || {
        std::net::TcpStream::connect(&address).is_err().then_some(())
    });
    assert!(gateway.process.is_running(), "it waits for the bot");
    bot.go.add_permits(1);
    gateway.ends();
    let queue = run(hapax().args(["queue", "show", "line", "--store", &store, "--json"])).json();
    assert_eq!((&queue["depth"], &queue["in_flight"]), (&json!(0), &json!(0)), "{queue}");
    assert_eq!(bot.called(1).len(), 1);
}

#[test]
fn line_shutdown_waits_for_the_bot_up_to_the_timeout() {
    let bot = Bot::start();
    let flags = ["--upstream", &bot.url, "--shutdown-timeout", "100ms"];
    let mut gateway = Gateway::in_memory(&flags);
    assert_eq!(gateway.webhook(&[events::text(USER, TEXT)]).status, 200);
    bot.called(1);
    gateway.terminate();
    gateway.ends();
}
