//! `hapax check`: right services, hapax's own layer and proxy, and services with planted faults.

mod locking;
mod service;

use std::process::Stdio;
use std::time::Duration;

use futures_util::future::join_all;
use serde_json::Value;
use tokio::process::Command;

use crate::cli_support::hapax;
use crate::proxy_support::Proxy;
use crate::support::{KillOnDrop, has, until_true};
use example_check_target::routes;
use hapax_testkit::free_port;
use locking::{CONFLICT, LockedAnswer};
use service::{FAULTS, Fault, start};

/// The exit code and the JSON of `hapax check`, which runs beside the service in this process.
async fn check(url: &str, flags: &[&str]) -> (i32, Value) {
    let mut command = Command::from(hapax());
    command.args(["check", url, "--json"]).args(flags).stderr(Stdio::piped());
    let output = command.output().await.expect("hapax can be run");
    let code = output.status.code().expect("no signal ended it");
    let json = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|_| Value::String(String::from_utf8_lossy(&output.stderr).into_owned()));
    (code, json)
}

/// Asks up to three times until something fails: on a machine that stands still, requests that should overlap may not.
async fn until_found(ask: impl AsyncFn() -> (i32, Value)) -> (i32, Value) {
    for _ in 0..2 {
        let asked = ask().await;
        if asked.0 != 0 {
            return asked;
        }
    }
    ask().await
}

fn names(list: &Value) -> Vec<&str> {
    let name = |item: &'_ Value| item.get("name").is_some();
    let items = list.as_array().expect("a list").iter();
    items
        .map(|item| if name(item) { &item["name"] } else { item })
        .map(|name| name.as_str().expect("a name"))
        .collect()
}

/// Asks everything that these rules ask and these flags allow. All of it must hold, recommendations too.
async fn finds_no_fault(url: &str, profile: &str, flags: &[&str], skipped: &[&str]) {
    let (code, report) =
        check(url, &[&["--profile", profile, "--strict"][..], flags].concat()).await;
    assert_eq!((code, names(&report["fails"])), (0, vec![]), "{report}");
    assert_eq!(names(&report["skipped"]), skipped, "{report}");
    assert!(names(&report["holds"]).len() > 18, "{report}");
}

#[tokio::test(flavor = "multi_thread")]
async fn check_finds_no_fault_in_the_layer() {
    // Stripe replays a 500, and hapax does so where it is told to.
    let rules =
        [("hapax", Fault::None), ("ietf", Fault::None), ("stripe", Fault::KeepsServerErrors)];
    let asked = rules.map(async |(profile, service)| {
        let crashes = ["crash-keeps-answers", "crash-in-the-middle", "retention"];
        let skipped = if profile == "ietf" { &crashes[1..] } else { &crashes[..] };
        finds_no_fault(&start(service).await, profile, &[], skipped).await;
    });
    join_all(asked).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn check_finds_no_fault_in_the_proxy() {
    let rules = [("hapax", ""), ("ietf", ""), ("stripe", "[proxy]\nstatuses = { 500 = \"keep\" }")];
    let asked = rules.map(async |(profile, config)| {
        let upstream = service::serve(routes()).await;
        let store = "sqlite:FOLDER/hapax.db";
        let proxy = SupervisedProxy::start(&upstream, store, "--lease 5s", config).await;
        let restart = proxy.restart_command();
        let flags = ["--restart", &restart, "--timeout", "60s"];
        finds_no_fault(&proxy.url, profile, &flags, &["retention"]).await;
    });
    join_all(asked).await;
}

#[tokio::test]
async fn check_has_a_planted_fault_for_every_check() {
    let (_, message) = check("http://127.0.0.1:1", &["--only", "nonsense"]).await;
    let known = message.as_str().expect("an error").split("there are: ").nth(1);
    let known = known.and_then(|rest| rest.lines().next()).expect("a list").split(", ");
    // The faults of these are planted in tests of their own.
    let apart = ["server-error-kept", "crash-keeps-answers", "crash-in-the-middle", "retention"];
    for name in known {
        let is_planted = FAULTS.iter().any(|(_, check)| *check == name);
        assert!(is_planted || apart.contains(&name), "no fault is planted that {name} finds");
    }
}

#[tokio::test]
async fn check_finds_each_planted_fault() {
    let found = FAULTS.iter().map(async |(fault, name)| {
        let ask = async || check(&start(*fault).await, &["--only", name]).await;
        let (code, report) = until_found(ask).await;
        assert_eq!((code, names(&report["fails"])), (1, vec![*name]), "{fault:?}: {report}");
        assert!(!report["fails"][0]["seen"].as_str().expect("text").is_empty(), "{report}");
        assert!(!report["fails"][0]["exchange"].as_array().expect("a list").is_empty(), "{report}");
    });
    join_all(found).await;
}

/// A proxy that a shell starts again whenever it ends, as a supervisor does: a port that is not free yet costs
/// one more start.
struct SupervisedProxy {
    folder: tempfile::TempDir,
    url: String,
    supervisor: Option<KillOnDrop>,
}

impl SupervisedProxy {
    /// Starts it, and waits until it can be reached.
    async fn start(upstream: &str, store: &str, flags: &str, config: &str) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let (binary, port) = (env!("CARGO_BIN_EXE_hapax"), free_port());
        let place = folder.path().display().to_string();
        let store = store.replace("FOLDER", &place);
        std::fs::write(folder.path().join("hapax.toml"), config).expect("written");
        let script = format!(
            "cd /; while :; do \
             {binary} proxy --listen 127.0.0.1:{port} --upstream {upstream} --store '{store}' {flags} \
             --config {place}/hapax.toml >/dev/null 2>&1 & echo $! > {place}/pid.new; mv {place}/pid.new {place}/pid; wait $!; \
             sleep 0.05; done"
        );
        let supervisor = std::process::Command::new("sh").args(["-c", &script]).spawn();
        let supervisor = Some(KillOnDrop(supervisor.expect("sh can be run")));
        let connect = async || tokio::net::TcpStream::connect(("127.0.0.1", port)).await;
        let proxy = Self { folder, url: format!("http://127.0.0.1:{port}"), supervisor };
        until_true("the proxy can be reached", async || connect().await.is_ok()).await;
        proxy
    }

    /// Kills the proxy, and waits until it is dead and the next one is started.
    fn restart_command(&self) -> String {
        let pid = self.folder.path().join("pid");
        let pid = pid.display();
        format!(
            "old=$(cat {pid}); kill -9 $old; while [ \"$(cat {pid})\" = $old ]; do sleep 0.02; done"
        )
    }
}

impl Drop for SupervisedProxy {
    fn drop(&mut self) {
        self.supervisor = None;
        let kill = format!("kill -9 $(cat {})", self.folder.path().join("pid").display());
        let _ = std::process::Command::new("sh").args(["-c", &kill]).status();
    }
}

/// Starts a proxy, and asks the crash checks.
async fn crash_checks(store: &str, flags: &str, timeout: &str) -> (i32, Value) {
    let upstream = service::serve(routes()).await;
    let proxy = SupervisedProxy::start(&upstream, store, flags, "").await;
    let (only, restart) = ("crash-keeps-answers,crash-in-the-middle", proxy.restart_command());
    check(&proxy.url, &["--restart", &restart, "--only", only, "--timeout", timeout]).await
}

#[tokio::test(flavor = "multi_thread")]
async fn check_finds_what_a_crash_breaks() {
    let (forgets, wedged) = tokio::join!(
        until_found(async || crash_checks("memory:", "", "60s").await),
        // With so long a lease nothing tells the killed request from a running one.
        until_found(async || {
            crash_checks("sqlite:FOLDER/hapax.db", "--lease 1h --wait 0s", "3s").await
        })
    );
    let both = ["crash-keeps-answers", "crash-in-the-middle"];
    assert_eq!((forgets.0, names(&forgets.1["fails"])), (1, both.to_vec()), "{}", forgets.1);
    assert_eq!(names(&wedged.1["fails"]), ["crash-in-the-middle"], "{}", wedged.1);
    has(wedged.1["fails"][0]["seen"].as_str().expect("text"), &["in progress"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn check_knows_other_rules() {
    let only = ["--profile", "stripe", "--only", "other-body,server-error-kept,race"];
    let (_, report) = check(&start(Fault::None).await, &only).await;
    // Stripe's text says that a reused key is an error, and does not say which.
    assert_eq!(names(&report["holds"]), ["race", "other-body"], "{report}");
    assert_eq!(names(&report["fails"]), ["server-error-kept"], "{report}");
}

#[tokio::test(flavor = "multi_thread")]
async fn check_accepts_each_status_that_the_rules_allow() {
    let ask = async |fault: Fault, profile: &str, only: &str| {
        let (code, report) =
            check(&start(fault).await, &["--profile", profile, "--only", only]).await;
        let list = |name: &str| names(&report[name]).into_iter().map(String::from).collect();
        let lists: [Vec<String>; 3] = [list("holds"), list("fails"), list("recommended")];
        (code, lists)
    };
    let (key, body) = ("key-too-long", "other-body");
    let held = |name: &str| (0, [vec![name.to_owned()], vec![], vec![]]);
    let failed = |name: &str| (1, [vec![], vec![name.to_owned()], vec![]]);
    let not_recommended = |name: &str| (0, [vec![], vec![], vec![name.to_owned()]]);
    let (unprocessable, conflict) = (Fault::RefusesKeysWith422, Fault::RefusesReuseWith409);
    assert_eq!(ask(unprocessable, "stripe", key).await, held(key));
    assert_eq!(ask(unprocessable, "hapax", key).await, failed(key));
    assert_eq!(ask(unprocessable, "hapax", "key-empty").await, failed("key-empty"));
    assert_eq!(ask(conflict, "stripe", body).await, held(body));
    assert_eq!(ask(conflict, "ietf", body).await, held(body));
    assert_eq!(ask(conflict, "hapax", body).await, failed(body));
    // A key that is no string of RFC 8941 may be refused or ignored, but not be used.
    let not_ascii = "key-not-ascii";
    assert_eq!(ask(unprocessable, "ietf", not_ascii).await, held(not_ascii));
    assert_eq!(ask(Fault::IgnoresKeysNotAscii, "ietf", not_ascii).await, held(not_ascii));
    assert_eq!(ask(Fault::ChecksThenActs, "ietf", not_ascii).await, not_recommended(not_ascii));
    // The draft does not say that a replay has no cookies.
    let headers = "replay-headers";
    assert_eq!(ask(Fault::ReplaysCookies, "ietf", headers).await, held(headers));
}

#[tokio::test(flavor = "multi_thread")]
async fn check_reports_recommendations_apart() {
    let url = start(Fault::IgnoresBody).await;
    let flags = ["--profile", "ietf", "--only", "replay,other-body"];
    let (code, report) = check(&url, &flags).await;
    assert_eq!((code, names(&report["recommended"])), (0, vec!["other-body"]), "{report}");
    assert_eq!(report["recommended"][0]["expected"], "status 400 or 409 or 422", "{report}");
    let (code, _) = check(&url, &[&flags[..], &["--strict"]].concat()).await;
    assert_eq!(code, 1);
    // A duplicate that ran is no recommendation.
    let url = start(Fault::ForgetsAnswers).await;
    let (code, report) = check(&url, &flags).await;
    assert_eq!((code, names(&report["fails"])), (1, vec!["replay"]), "{report}");
}

#[tokio::test(flavor = "multi_thread")]
async fn check_does_not_ask_for_one_answer_of_several_runs() {
    let ask =
        async || check(&start(Fault::ChecksThenActs).await, &["--only", "race,race-answers"]).await;
    let (_, report) = until_found(ask).await;
    assert_eq!(names(&report["fails"]), ["race"], "{report}");
    assert_eq!(names(&report["skipped"]), ["race-answers"], "{report}");
    has(report["skipped"][0]["why"].as_str().expect("text"), &["ran", "`race`"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn check_sends_the_headers_and_knows_other_callers() {
    let (one, other) = ("Authorization: Bearer one", "Authorization: Bearer two");
    let (right, wrong) =
        (start(Fault::WantsCaller).await, start(Fault::WantsAndIgnoresCaller).await);
    let only = ["--only", "replay,other-caller"];
    let (code, message) = check(&right, &only).await;
    assert_eq!(code, 2, "{message}");
    has(message.as_str().expect("an error"), &["401"]);
    let with_one = [&only[..], &["--header", one]].concat();
    let (code, report) = check(&right, &with_one).await;
    assert_eq!((code, names(&report["holds"])), (0, vec!["replay"]), "{report}");
    assert_eq!(names(&report["skipped"]), ["other-caller"], "{report}");
    let with_both = [&with_one[..], &["--other-caller", other]].concat();
    let (code, report) = check(&right, &with_both).await;
    assert_eq!((code, names(&report["holds"]).len()), (0, 2), "{report}");
    let (code, report) = check(&wrong, &with_both).await;
    assert_eq!((code, names(&report["fails"])), (1, vec!["other-caller"]), "{report}");
    let shown = report["fails"][0]["exchange"].to_string();
    assert!(shown.contains("authorization: …") && !shown.contains("Bearer"), "{shown}");
}

#[tokio::test(flavor = "multi_thread")]
async fn check_asks_for_the_count_at_another_address() {
    let upstream = service::serve(routes()).await;
    let proxy = Proxy::start(&upstream, "memory:", &[]);
    let count = format!("{upstream}/executions");
    let flags = ["--only", "replay,race", "--count-path", &count];
    let (code, report) = check(&proxy.url(""), &flags).await;
    assert_eq!((code, names(&report["holds"]).len()), (0, 2), "{report}");
    let elsewhere = format!("{}/executions", start(Fault::None).await);
    let (code, message) = check(&proxy.url(""), &["--count-path", &elsewhere]).await;
    assert_eq!(code, 2, "{message}");
    has(message.as_str().expect("an error"), &["counted 0 times"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn check_waits_where_a_running_request_is_423() {
    let service = locking::start(LockedAnswer { status: 423, ..CONFLICT }).await;
    let only = ["--profile", "ietf", "--only", "in-flight,race,race-answers,client-leaves"];
    let (code, report) = check(&service.url, &only).await;
    assert_eq!((code, names(&report["holds"])), (0, vec!["race", "client-leaves"]), "{report}");
    // The draft recommends 409.
    assert_eq!(names(&report["recommended"]), ["race-answers", "in-flight"], "{report}");
}

#[tokio::test(flavor = "multi_thread")]
async fn check_tells_a_wedged_key_from_an_unknown_outcome() {
    let ask = async |locked: LockedAnswer, profile: &str| {
        let service = locking::start(locked).await;
        let restart = service.restart_command();
        let flags = ["--only", "crash-in-the-middle", "--timeout", "5s", "--profile", profile];
        check(&service.url, &[&flags[..], &["--restart", &restart]].concat()).await
    };
    let waits = LockedAnswer { wait: Duration::from_secs(2), ..CONFLICT };
    let (wedged, locked, waiting, draft, unknown) = tokio::join!(
        ask(CONFLICT, "hapax"),
        ask(LockedAnswer { status: 423, ..CONFLICT }, "hapax"),
        ask(waits, "hapax"),
        ask(CONFLICT, "ietf"),
        ask(LockedAnswer { knows_crashes: true, ..CONFLICT }, "hapax"),
    );
    for (code, report) in [wedged, locked, waiting] {
        assert_eq!((code, names(&report["fails"]).len()), (1, 1), "{report}");
        has(report["fails"][0]["seen"].as_str().expect("text"), &["in progress"]);
    }
    assert_eq!((draft.0, names(&draft.1["recommended"]).len()), (0, 1), "{}", draft.1);
    assert_eq!((unknown.0, names(&unknown.1["holds"]).len()), (0, 1), "{}", unknown.1);
}

#[tokio::test(flavor = "multi_thread")]
async fn check_waits_for_the_retention() {
    let upstream = service::serve(routes()).await;
    let (flags, store) = ("--retention 3s", "sqlite:FOLDER/hapax.db");
    let proxy = SupervisedProxy::start(&upstream, store, flags, "").await;
    let ask =
        async |url: &str, time| check(url, &["--only", "retention", "--retention", time]).await;
    let layer = Fault::KeepsForThreeSeconds;
    let (by_proxy, by_layer, too_short, too_long) = tokio::join!(
        ask(&proxy.url, "3s"),
        async { ask(&start(layer).await, "3s").await },
        async { ask(&start(layer).await, "60s").await },
        async { ask(&start(Fault::None).await, "1s").await },
    );
    for (code, report) in [by_proxy, by_layer] {
        assert_eq!((code, names(&report["holds"])), (0, vec!["retention"]), "{report}");
    }
    for ((code, report), seen) in [(too_short, "ran again within"), (too_long, "no other run")] {
        assert_eq!((code, names(&report["fails"])), (1, vec!["retention"]), "{report}");
        has(report["fails"][0]["seen"].as_str().expect("text"), &[seen]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn check_exits_2_where_it_cannot_ask() {
    let nothing = format!("http://127.0.0.1:{}", free_port());
    let (code, message) = check(&nothing, &[]).await;
    assert_eq!(code, 2, "{message}");
    let url = start(Fault::None).await;
    let (code, message) = check(&url, &["--path", "/nothing-here"]).await;
    has(message.as_str().expect("an error"), &["/nothing-here", "asked for status 202"]);
    assert_eq!(code, 2);
    let (code, message) = check(&url, &["--count-path", "/orders"]).await;
    has(message.as_str().expect("an error"), &["GET", "/orders", "405"]);
    assert_eq!(code, 2);
    let (code, message) = check(&url, &["--only", "nonsense"]).await;
    has(message.as_str().expect("an error"), &["there are: replay, "]);
    assert_eq!(code, 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn check_prints_a_table_and_writes_junit() {
    let (url, folder) = (start(Fault::IgnoresBody).await, tempfile::tempdir().expect("a folder"));
    let junit = folder.path().join("check.xml");
    let mut command = Command::from(hapax());
    command.args(["check", &url, "--only", "replay,other-body", "--junit"]).arg(&junit);
    let output = command.output().await.expect("hapax can be run");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    has(
        &text,
        &["✓ replay", "✗ other-body", "expected: status 422", "seen:", "POST /orders [idem"],
    );
    has(&text, &["1 hold, 1 do not, 0 are only recommended and do not, 0 were not asked"]);
    has(&std::fs::read_to_string(junit).expect("written"), &["tests=\"2\" failures=\"1\""]);
    assert_eq!(output.status.code(), Some(1));
}
