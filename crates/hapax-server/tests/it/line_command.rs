//! `hapax line`, the real binary: its settings, its output, and its routes.

use std::path::Path;
use std::process::Command;

use crate::cli_support::{hapax, run};
use crate::line::bot::Bot;
use crate::support::http::{HttpRequest, HttpResponse, SentRequest};
use crate::support::store::TestStore;
use crate::support::{HapaxProcess, eventually, has};
use hapax_line::simulator::events;
use hapax_line::{ChannelSecrets, LineClient, SIGNATURE_HEADER};
use hapax_testkit::{Redis, free_port};
use rustix::process::Signal;
use serde_json::{Value, json};

const SECRET: &str = "hush-channel-secret";
const TOKEN: &str = "hush-access-token";
/// An address without a listener, so that the real API is not called.
const NOWHERE: &str = "http://127.0.0.1:9";
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
    command.env("LINE_API_BASE", NOWHERE);
    command
}

/// The error of a command that ends at once.
fn refused(command: &mut Command, flags: &[&str]) -> String {
    let said = run(command.args(flags)).failed(1);
    assert!(!said.contains("hush"), "{said}");
    said
}

fn secrets() -> ChannelSecrets {
    ChannelSecrets::new(SECRET).unwrap()
}

/// Asserts that nothing private is in an output or a response.
#[track_caller]
fn is_anonymous(text: &str) {
    for private in ["hush", "Uf00d", "🥚"] {
        assert!(!text.contains(private), "{private} is in: {text}");
    }
}

struct Gateway {
    process: HapaxProcess,
    address: String,
    admin: String,
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
        let admin = process.admin_address().unwrap_or_default();
        Self { address: process.address(), admin, process }
    }

    fn in_memory(flags: &[&str]) -> Self {
        Self::start(&mut line(), &[&["--store", "memory:"], flags].concat())
    }

    fn ask(&self, method: &str, path: &str) -> HttpRequest {
        HttpRequest::new(&local(&self.address), method, path)
    }

    fn get(&self, path: &str) -> HttpRequest {
        self.ask("GET", path)
    }

    fn ask_admin(&self, path: &str) -> HttpRequest {
        HttpRequest::new(&local(&self.admin), "GET", path)
    }

    fn signed(&self, signature: &str, body: &str) -> HttpResponse {
        let request = self.ask("POST", "/line/webhook").header(SIGNATURE_HEADER, signature);
        request.body(body.as_bytes()).send()
    }

    /// Sends events as LINE does.
    fn webhook(&self, events: &[Value]) -> HttpResponse {
        let body = json!({ "destination": "Uf00db07", "events": events }).to_string();
        self.signed(&secrets().sign(body.as_bytes()), &body)
    }
}

/// The address for clients on this machine.
fn local(address: &str) -> String {
    address.replace("0.0.0.0", "127.0.0.1")
}

impl Drop for Gateway {
    fn drop(&mut self) {
        self.process.kill();
        if !std::thread::panicking() {
            self.process.wait();
            let said = self.process.output();
            hapax_testkit::keep_log("line", &said);
            is_anonymous(&said);
        }
    }
}

/// Asserts that the response is this problem document, with nothing of the request.
#[track_caller]
fn is_problem(answer: &HttpResponse, status: u16, code: &str) {
    answer.is(status, code);
    is_anonymous(&answer.text());
}

/// A bot that holds its calls, and the URL by which the gateway calls it.
async fn holding_bot() -> (Bot, String) {
    let bot = Bot::start(secrets(), LineClient::new(NOWHERE, TOKEN).unwrap()).await;
    bot.holds();
    let url = bot.url("/callback?key=hush-key");
    (bot, url)
}

#[test]
fn line_missing_settings_are_errors_with_advice() {
    let upstream = ["--upstream", "http://127.0.0.1:3000/callback"];
    has(&refused(&mut bare(), &[]), &["--upstream is needed", "/callback"]);
    has(&refused(&mut bare(), &upstream), &["LINE_CHANNEL_SECRET is needed"]);
    let said = refused(bare().env("LINE_CHANNEL_SECRET", SECRET), &upstream);
    has(&said, &["LINE_CHANNEL_ACCESS_TOKEN is needed"]);
    for (name, value, advice) in [
        ("LINE_CHANNEL_SECRET", "hush,hush,hush", "NEW,OLD"),
        ("LINE_CHANNEL_ACCESS_TOKEN", "hush hush", ""),
        ("LINE_API_BASE", "hush", "https://api.line.me"),
        ("PROCESSING_LOCK_ENABLED", "maybe", "PROCESSING_LOCK_ENABLED: true or false"),
    ] {
        has(&refused(line().env(name, value), &upstream), &[&format!("{name}: "), advice]);
    }
    let said = refused(&mut line(), &["--upstream", "http://u:hush@127.0.0.1:3000"]);
    has(&said, &["--upstream: ", "signature"]);
    has(&run(line().args(["--lokc", "true"])).failed(2), &["--lokc"]);
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
    let second_wrong = file(&format!("{good}[[rule]]\nevent = 'text'\nguard = 'mutx'"));
    has(&said(&second_wrong), &["my-rules.toml: rule 2, `guard`"]);
    has(&said(&file("[[rule]\n")), &["my-rules.toml: ", "TOML"]);
    has(&said(Path::new("/nowhere/my-rules.toml")), &["cannot read /nowhere/my-rules.toml"]);
    // The rules are checked even if locking is turned off.
    let rules = file("x = 1");
    let flags = ["--upstream", "http://127.0.0.1:9", "--rules", rules.to_str().unwrap()];
    assert!(refused(&mut line(), &[&flags[..], &["--lock", "false"]].concat()).contains("`x`"));
}

#[test]
fn line_banner_names_addresses_and_rules() {
    let upstream = "http://127.0.0.1:9/callback?key=hush-key";
    let gateway = Gateway::in_memory(&["--upstream", upstream, "--admin", "127.0.0.1:0"]);
    let (address, banner) = (&gateway.address, &gateway.process.banner);
    let lines = [
        &*format!("webhook   POST http://{address}/line/webhook\n"),
        "upstream  http://127.0.0.1:9/callback\n",
        "store     memory: (from --store)\n",
        "rules     text, location and postback",
        "for 5s (from the default of --lock-ttl)\n",
        &*format!("admin     http://{}", gateway.admin),
        "try       ",
    ];
    has(banner, &lines);
    assert!(banner.lines().last().unwrap().contains("hapax line simulate --to http"), "{banner}");

    for (name, value, rules) in [
        ("PROCESSING_LOCK_TIMEOUT_SECONDS", "7", "for 7s"),
        ("PROCESSING_LOCK_ENABLED", "False", "rules     none: no user is locked"),
    ] {
        let gateway = Gateway::start(line().env(name, value), &["--store", "memory:"]);
        has(&gateway.process.banner, &[&format!("{rules} (from {name})")]);
    }
    let folder = tempfile::tempdir().unwrap();
    let rules = folder.path().join("my-rules.toml");
    std::fs::write(&rules, "[[rule]]\nevent = 'text'\nguard = 'mutex'").unwrap();
    let gateway = Gateway::in_memory(&["--rules", rules.to_str().unwrap()]);
    has(&gateway.process.banner, &["my-rules.toml"]);
}

#[test]
fn line_other_requests_get_problem_documents() {
    let gateway = Gateway::in_memory(&[]);
    let body = json!({ "destination": "Uf00db07", "events": [events::text(USER, TEXT)] });
    let body = body.to_string();
    let send_signed = |body: &str| gateway.signed(&secrets().sign(body.as_bytes()), body);
    let unsigned = gateway.ask("POST", "/line/webhook").body(body.as_bytes()).send();
    is_problem(&unsigned, 401, "line-signature");
    let foreign = ChannelSecrets::new("another").unwrap().sign(body.as_bytes());
    for signature in ["🥚", &foreign] {
        is_problem(&gateway.signed(signature, &body), 401, "line-signature");
    }
    for wrong in ["", "no JSON 🥚 Uf00d", "[]", r#"{"events":[]}"#] {
        is_problem(&send_signed(wrong), 400, "line-webhook");
    }
    let large = send_signed(&format!("{body}{}", " ".repeat(1 << 20)));
    is_problem(&large, 413, "payload-too-large");
    let get = gateway.get("/line/webhook").send();
    is_problem(&get, 405, "method-not-allowed");
    assert_eq!(get.header("allow"), Some("POST"));
    for path in ["/", "/line", "/line/webhook/", "/line/Uf00d", "/v1/locks/Uf00d", "/openapi.json"]
    {
        let unknown = gateway.ask("POST", path).body(body.as_bytes()).send();
        is_problem(&unknown, 404, "not-found");
    }
    // A valid webhook gets no document.
    let taken = gateway.webhook(&[]);
    assert_eq!((taken.status, taken.text().as_str()), (200, ""));
}

#[test]
fn line_body_that_never_comes_is_408() {
    let gateway = Gateway::in_memory(&["--body-timeout", "300ms"]);
    let head = b"POST /line/webhook HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n{";
    SentRequest::new(&gateway.address, head).answer().is(408, "request-timeout");
}

#[test]
fn line_metrics_and_queues_are_local_or_on_admin() {
    let gateway = Gateway::in_memory(&["--admin", "127.0.0.1:0"]);
    assert_eq!(gateway.get("/healthz").status(), 200);
    eventually("ready", || gateway.get("/readyz").status() == 200);
    assert_eq!(gateway.webhook(&[events::unknown(USER)]).status, 200);
    let metrics = gateway.get("/metrics").send().text();
    let buckets = "hapax_line_webhook_seconds_bucket{status=\"200\",";
    has(&metrics, &[buckets, "hapax_line_events_total{"]);
    assert!(!metrics.contains("Uf00d"), "{metrics}");
    has(&gateway.get("/v1/queues/line").send().text(), &["\"dead\":"]);
    // A tunnel brings foreign requests to loopback, with another `Host`.
    for path in ["/metrics", "/v1/queues/line", "/v1/queues/line/dead"] {
        let tunnelled = gateway.get(path).header("Host", "tunnel.example").send();
        is_problem(&tunnelled, 403, "forbidden");
        let forwarded = gateway.get(path).header("x-forwarded-for", "1.2.3.4").send();
        is_problem(&forwarded, 403, "forwarded-request");
        assert_eq!(gateway.ask_admin(path).status(), 200, "{path}");
    }
    assert_eq!(gateway.get("/healthz").header("Host", "tunnel.example").status(), 200);
    assert_eq!(gateway.ask_admin("/line/webhook").status(), 404);
}

#[test]
fn line_public_listener_has_webhooks_and_health_alone() {
    let gateway = Gateway::in_memory(&["--listen", "0.0.0.0:0", "--admin", "0.0.0.0:0"]);
    assert_eq!(gateway.get("/healthz").status(), 200);
    assert_eq!(gateway.webhook(&[]).status, 200);
    for path in ["/metrics", "/v1/queues/line", "/v1/queues/line/dead"] {
        is_problem(&gateway.get(path).send(), 404, "not-found");
    }
    assert_eq!(gateway.ask_admin("/metrics").status(), 200);
    assert_eq!(gateway.ask_admin("/readyz").status(), 200);
    assert_eq!(gateway.ask_admin("/v1/queues/line").status(), 404, "the caller is unknown");
}

#[tokio::test(flavor = "multi_thread")]
async fn line_starts_without_store_and_follows_policy() {
    let nobody = format!("redis://127.0.0.1:{}", free_port());
    let (bot, url) = holding_bot().await;
    let flags = ["--store", &nobody, "--upstream", &url];
    let gateway = Gateway::start(&mut line(), &flags);
    assert_eq!((gateway.get("/readyz").status(), gateway.get("/healthz").status()), (503, 200));
    assert_eq!(gateway.webhook(&[events::text(USER, TEXT)]).status, 200);
    assert_eq!(bot.begun(1)[0].event["message"]["text"], TEXT);
    bot.let_go(1);

    let flags = [&flags[..], &["--on-store-error", "closed"]].concat();
    let gateway = Gateway::start(&mut line(), &flags);
    let refused = gateway.webhook(&[events::text(USER, TEXT)]);
    is_problem(&refused, 503, "store-unavailable");
    assert!(refused.header("retry-after").is_some());
}

#[tokio::test(flavor = "multi_thread")]
async fn line_original_variables_are_honoured() {
    let redis = Redis::start();
    let (bot, url) = holding_bot().await;
    let key = format!("processing:user:{USER}");
    let start = |enabled: &str| {
        let mut told = line();
        told.env("REDIS_URL", redis.url()).env("PROCESSING_LOCK_ENABLED", enabled);
        told.env("PROCESSING_LOCK_TIMEOUT_SECONDS", "600");
        // A long timeout, so that a stalled machine is not taken for a store that is away.
        Gateway::start(&mut told, &["--upstream", &url, "--store-timeout", "30s"])
    };
    let gateway = start("true");
    has(&gateway.process.banner, &["(from REDIS_URL)"]);
    gateway.webhook(&[events::text(USER, TEXT)]);
    bot.begun(1);
    let left: i64 = redis.cli(&["PTTL", &key]).parse().unwrap();
    assert!((300_000..=600_000).contains(&left), "{left}");
    bot.let_go(1);
    eventually("it is released", || redis.cli(&["EXISTS", &key]) == "0");
    drop(gateway);

    let gateway = start("0");
    gateway.webhook(&[events::text(USER, TEXT)]);
    bot.begun(2);
    assert_eq!(redis.cli(&["EXISTS", &key]), "0");
    bot.let_go(1);
}

#[tokio::test(flavor = "multi_thread")]
async fn line_shutdown_finishes_events_in_hand() {
    let (bot, url) = holding_bot().await;
    // A store on a file, which the test opens after the server has ended.
    let store = TestStore::quick_sqlite();
    let flags = ["--store", &store.url(), "--upstream", &url, "--store-timeout", "30s"];
    let mut gateway = Gateway::start(&mut line(), &flags);
    assert_eq!(gateway.webhook(&[events::text(USER, TEXT)]).status, 200);
    bot.begun(1);
    gateway.process.signal(Signal::TERM);
    eventually("webhooks are not taken any more", || {
        std::net::TcpStream::connect(&gateway.address).is_err()
    });
    assert!(gateway.process.is_running(), "it waits for the bot");
    bot.let_go(1);
    gateway.process.ended();
    let queue = secrets().queue();
    let show = ["queue", "show", queue.as_str(), "--store", &store.url(), "--json"];
    let queue = run(hapax().args(show)).json();
    assert_eq!((&queue["depth"], &queue["in_flight"]), (&json!(0), &json!(0)), "{queue}");
    assert_eq!(bot.calls().len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn line_shutdown_waits_for_the_bot_up_to_the_timeout() {
    let (bot, url) = holding_bot().await;
    let mut gateway = Gateway::in_memory(&["--upstream", &url, "--shutdown-timeout", "100ms"]);
    assert_eq!(gateway.webhook(&[events::text(USER, TEXT)]).status, 200);
    bot.begun(1);
    gateway.process.stop();
}
