//! What operators see of the activity of a server: counts, duplicates, conflicts, keys, jobs, streams.

use serde_json::{Value, json};

use crate::http::access::token;
use crate::http::events_client::Listener;
use crate::support::eventually;
use crate::support::server::{Server, Setup};
use crate::support::store::TestStore;

/// A server that reports often, for two tenants: `shop` with an operator and a reader, and `bank`.
fn reporting() -> Server {
    reporting_on("memory:")
}

fn reporting_on(store: &str) -> Server {
    reporting_on_with(store, &[])
}

fn reporting_on_with(store: &str, flags: &[&str]) -> Server {
    let tokens = [
        token("shop", "shop", "'data'"),
        token("root", "shop", "'admin'"),
        token("eyes", "shop", "'read'"),
        token("bank", "bank", "'data', 'admin'"),
    ];
    let server = Setup::on(store)
        .flags(&["--report-interval", "20ms"])
        .flags(flags)
        .file(&tokens.concat())
        .start();
    eventually("the node has reported itself", || {
        seen(&server, "/v1/operator/overview", "root")["nodes"][0].is_object()
    });
    server
}

fn seen(server: &Server, path: &str, token: &str) -> Value {
    let answer = server.get(path).bearer(token).send();
    assert_eq!(answer.status, 200, "{path}: {}", answer.text());
    answer.json()
}

/// Begins a command, completes it with `paid`, and begins it again: a first run and a replay.
fn pay_twice(server: &Server, key: &str) {
    let path = format!("/v1/commands/pay/{key}");
    let begun = server.post(&path).bearer("shop").json(json!({"fingerprint": "a"})).send();
    let token = begun.json()["token"].clone();
    let paid = json!({"token": token, "status": 201, "body": "paid"});
    assert_eq!(server.put(&path).bearer("shop").json(paid).status(), 200);
    let again = server.post(&path).bearer("shop").json(json!({"fingerprint": "a"})).send();
    assert_eq!(again.status, 200);
}

/// The count of an edge over all minutes: a test may run from one into the next.
fn sum(overview: &Value, edge: &str, count: &str) -> u64 {
    let minutes = overview["minutes"].as_array().unwrap().iter();
    minutes.filter_map(|minute| minute["edges"][edge][count].as_u64()).sum()
}

#[test]
fn overview_counts_first_runs_and_replays_of_the_tenant() {
    let server = reporting();
    pay_twice(&server, "k");
    eventually("the replay is counted", || {
        sum(&seen(&server, "/v1/operator/overview", "eyes"), "api", "replays") == 1
    });
    let overview = seen(&server, "/v1/operator/overview", "root");
    assert_eq!((sum(&overview, "api", "first_runs"), sum(&overview, "api", "requests")), (1, 3));
    let minute = &overview["minutes"][0]["edges"]["api"];
    assert!(minute["p50_ms"].as_f64().unwrap() > 0.0, "{minute}");
    assert!(minute["p99_ms"].as_f64() >= minute["p50_ms"].as_f64(), "{minute}");
    assert_eq!(overview["store"]["name"], "memory");
    assert_eq!(overview["store"]["ready"], true);
    assert_eq!(overview["nodes"][0]["edge"], "api", "{overview}");
    let other = seen(&server, "/v1/operator/overview", "bank");
    assert_eq!(other["minutes"], json!([]), "another tenant's activity shows");
}

#[test]
fn overview_lists_what_needs_a_person() {
    let server = reporting();
    let begin = json!({"lease_ms": 1});
    assert_eq!(server.post("/v1/commands/pay/k").bearer("shop").json(begin).status(), 201);
    let unknown = |token: &str| {
        let attention = seen(&server, "/v1/operator/overview", token)["attention"].clone();
        let found = attention.as_array().unwrap().iter().find(|one| one["what"] == "unknown");
        found.map(|found| found["count"].clone())
    };
    eventually("the outcome is unknown", || unknown("root") == Some(json!(1)));
    assert_eq!(unknown("bank"), None);
}

#[test]
fn overview_counts_unknown_outcomes_on_redis() {
    let store = TestStore::redis();
    let server = reporting_on(&store.url());
    let overview = |token: &str| seen(&server, "/v1/operator/overview", token);
    let unknown = |token: &str| {
        let attention = overview(token)["attention"].clone();
        attention.as_array().unwrap().iter().find(|one| one["what"] == "unknown").cloned()
    };
    eventually("an empty store is counted", || overview("root")["counting"] == false);
    assert_eq!(unknown("root"), None);
    let begin = |key: &str, lease_ms: u64| {
        let path = format!("/v1/commands/pay/{key}");
        let begin = server.post(&path).bearer("shop").json(json!({ "lease_ms": lease_ms }));
        assert_eq!(begin.status(), 201);
    };
    ["a", "b", "c"].into_iter().for_each(|key| begin(key, 1));
    begin("pending", 600_000);
    assert_eq!(server.post("/v1/locks/l").bearer("shop").status(), 201);
    // An operator's decision makes the count of the empty store too old.
    eventually("the lease of c runs out", || {
        server.delete("/v1/operator/commands/pay/c").bearer("root").status() == 204
    });
    eventually("two outcomes are unknown", || {
        unknown("eyes").is_some_and(|one| one["count"] == 2 && one["more"] == false)
    });
    assert!(unknown("root").unwrap()["as_of"].as_u64().unwrap() > 1_700_000_000_000);
    eventually("another tenant is counted too", || overview("bank")["counting"] == false);
    assert_eq!(unknown("bank"), None);
    let usage = seen(&server, "/v1/operator/tenants", "eyes")["tenants"][0].clone();
    let counts = ["keys", "pending", "unknown", "failed"].map(|name| usage[name].as_u64());
    assert_eq!(counts, [4, 1, 2, 0].map(Some), "{usage}");
    assert_eq!(seen(&server, "/v1/operator/line", "eyes")["locks"], 1);

    let all = json!({ "where": { "state": "unknown" }, "action": "release" });
    let task = server.post("/v1/operator/commands/decide").bearer("root").json(all);
    assert_eq!(task.status(), 202);
    eventually("nothing is unknown", || unknown("root").is_none());
}

#[test]
fn suppressed_duplicates_are_listed_by_kind_and_operation() {
    let server = reporting();
    for key in ["a", "b", "c"] {
        pay_twice(&server, key);
    }
    let list = |query: &str| {
        let path = format!("/v1/operator/suppressed{query}");
        seen(&server, &path, "eyes")["items"].as_array().unwrap().clone()
    };
    eventually("three replays are listed", || list("").len() == 3);
    let first = &list("?kind=replayed&operation=pay")[0];
    assert_eq!((&first["edge"], &first["kind"]), (&json!("api"), &json!("replayed")));
    assert!(first["after_first_ms"].as_u64().is_some(), "{first}");
    assert_eq!(first["key_hash"].as_str().unwrap().len(), 16);
    assert_eq!(list("?kind=refused").len() + list("?operation=other").len(), 0);
    server.get("/v1/operator/suppressed?kind=x").bearer("eyes").is(400, "invalid-request");
    server.get("/v1/operator/suppressed?after=x").bearer("eyes").is(400, "invalid-request");
    let other = seen(&server, "/v1/operator/suppressed", "bank");
    assert_eq!(other["items"], json!([]), "another tenant's duplicates show");
}

#[test]
fn conflicts_are_grouped_by_operation() {
    let server = reporting();
    pay_twice(&server, "k");
    for _ in 0..2 {
        let other = json!({"fingerprint": "b"});
        server.post("/v1/commands/pay/k").bearer("shop").json(other).is(422, "key-reused");
    }
    eventually("two reuses are counted", || {
        let groups = seen(&server, "/v1/operator/conflicts", "eyes")["groups"].clone();
        groups[0]["operation"] == "pay" && groups[0]["reused"] == 2
    });
    assert_eq!(seen(&server, "/v1/operator/conflicts", "bank")["groups"], json!([]));
}

#[test]
fn key_life_shows_claim_end_and_replays() {
    let server = reporting();
    pay_twice(&server, "k");
    let path = "/v1/operator/keys/command/pay/k";
    eventually("the replay is counted", || seen(&server, path, "eyes")["seen"]["replayed"] == 1);
    let masked = seen(&server, path, "eyes");
    assert_eq!((&masked["state"], &masked["attempt"]), (&json!("settled"), &json!(1)));
    assert_eq!((&masked["response"], &masked["masked"]), (&Value::Null, &json!(true)));
    assert_eq!(masked["seen"]["claimed"], 1, "{masked}");
    let (claimed, settled) = (masked["claimed_at"].as_u64(), masked["settled_at"].as_u64());
    assert!(claimed.unwrap() <= settled.unwrap() + 1, "{masked}");
    let node = seen(&server, "/v1/operator/overview", "eyes")["nodes"][0]["node"].clone();
    assert_eq!(masked["owner"], node, "the node that claimed it");
    let shown = seen(&server, path, "root");
    assert_eq!(shown["response"]["body"], "paid");
    server.get(&format!("{path}?reveal=true")).bearer("eyes").is(403, "forbidden");
    assert_eq!(seen(&server, &format!("{path}?reveal=true"), "root")["response"]["body"], "paid");
    let audit = seen(&server, "/v1/operator/audit", "root")["items"][0].clone();
    assert_eq!((&audit["action"], &audit["subject"]["key"]), (&json!("reveal"), &json!("k")));
    server.get(path).bearer("bank").is(404, "command-missing");
    server.get("/v1/operator/keys/lock/x/k").bearer("eyes").is(400, "invalid-request");
    server.get("/v1/operator/keys/job/-/k").bearer("eyes").is(400, "invalid-request");
    server.get("/v1/operator/keys/lock/-/k").bearer("eyes").is(404, "command-missing");
}

#[test]
fn job_timeline_hides_data_until_revealed() {
    let server = reporting();
    for (seq, stage) in [(1, "begun"), (2, "ended")] {
        let event = json!({"domain": "scan", "job_id": "j", "stage": stage, "seq": seq, "data": {"n": seq}});
        assert_eq!(server.post("/v1/events").bearer("shop").json(event).status(), 201);
    }
    let path = "/v1/operator/jobs/scan/j";
    let masked = seen(&server, path, "eyes");
    assert_eq!((&masked["offset"], &masked["closed"]), (&json!(2), &json!(false)));
    assert_eq!((&masked["stage"], &masked["gaps"]), (&json!("ended"), &json!([])));
    assert_eq!(masked["events"][1]["stage"], "ended");
    assert_eq!(masked["events"][1]["data"], Value::Null);
    assert_eq!(seen(&server, path, "root")["events"][1]["data"], json!({"n": 2}));
    let page = seen(&server, &format!("{path}?limit=1"), "eyes");
    assert_eq!((page["events"].as_array().unwrap().len(), &page["next"]), (1, &json!("1")));
    server.get(path).bearer("bank").is(404, "job-missing");
    let recent = |token: &str| seen(&server, "/v1/operator/jobs", token)["jobs"].clone();
    eventually("the job is listed", || recent("root")[0]["job_id"] == "j");
    assert_eq!(
        (&recent("eyes")[0]["job_id"], &recent("eyes")[0]["domain"]),
        (&Value::Null, &json!("scan"))
    );
    assert_eq!(recent("bank"), json!([]));
}

#[test]
fn job_timeline_is_followed_without_data() {
    let server = reporting();
    let publish = |seq: u64, closes: bool| {
        let event = json!({
            "domain": "scan", "job_id": "customer", "stage": format!("s{seq}"), "seq": seq,
            "data": {"who": "U1"}, "final": closes,
        });
        assert_eq!(server.post("/v1/events").bearer("shop").json(event).status(), 201);
    };
    let path = "/v1/operator/jobs/scan/customer/events";
    let follow = |path: &str, token: &str| {
        let authorization = format!("Bearer {token}");
        let headers = [("Authorization", authorization.as_str())];
        Listener::open(&server.address, "HTTP/1.1", path, &headers)
    };
    publish(1, false);
    let (mut eyes, mut root) = (follow(path, "eyes"), follow(path, "root"));
    publish(2, false);
    publish(3, true);
    for stream in [&mut eyes, &mut root] {
        for seq in 1..=3 {
            let mut event = stream.next().expect("an event").data;
            let timestamp = event.as_object_mut().unwrap().remove("timestamp").unwrap();
            assert!(timestamp.is_string(), "{timestamp}");
            let stage = format!("s{seq}");
            let masked = json!({"offset": seq, "stage": stage, "seq": seq, "final": seq == 3});
            assert_eq!(event, masked);
        }
        assert!(stream.next().is_none(), "the stream ends with the job");
    }
    let epoch = &seen(&server, "/v1/operator/jobs/scan/customer", "eyes")["epoch"];
    let mut resumed = follow(&format!("{path}?last_event_id={epoch}-2"), "eyes");
    assert_eq!(resumed.next().unwrap().data["offset"], 3);
    let complete = format!("{path}?last_event_id={epoch}-3");
    assert_eq!(server.get(&complete).bearer("eyes").status(), 204);
    server.get(path).bearer("shop").is(403, "forbidden");
    let overview = seen(&server, "/v1/operator/overview", "eyes");
    assert_eq!(sum(&overview, "sse", "requests"), 0, "operators are no activity");
}

#[test]
fn job_link_is_signed_for_operators_who_may_reveal() {
    let server = reporting_on_with("memory:", &["--sse-secret", &"s".repeat(32)]);
    let event =
        json!({"domain": "scan", "job_id": "j/1", "stage": "s", "seq": 1, "data": {"n": 7}});
    assert_eq!(server.post("/v1/events").bearer("shop").json(event).status(), 201);
    let path = "/v1/operator/jobs/scan/j%2F1/link";
    let link = server.post(path).bearer("root").header("Hapax-Note", "why").send().json();
    let url = link["url"].as_str().unwrap();
    let mut stream = Listener::open(&server.address, "HTTP/1.1", url, &[]);
    assert_eq!(stream.next().unwrap().data["data"], json!({"n": 7}));
    let other = url.replace("j%2F1", "k");
    server.get(&other).is(403, "forbidden");
    let audit = seen(&server, "/v1/operator/audit", "root")["items"][0].clone();
    assert_eq!((&audit["action"], &audit["note"]), (&json!("reveal"), &json!("why")));
    assert_eq!(
        (&audit["subject"]["kind"], &audit["subject"]["key"]),
        (&json!("job-link"), &json!("j/1"))
    );
    server.post(path).bearer("eyes").is(403, "forbidden");
    let timeline = |server: &Server| seen(server, "/v1/operator/jobs/scan/j%2F1", "root");
    assert_eq!(timeline(&server)["access"], "signed");
    // A link of another tenant opens a job of that tenant, which has no events.
    let foreign = server.post(path).bearer("bank").send().json();
    let foreign = foreign["url"].as_str().unwrap().replace("/events?", "?");
    server.get(&foreign).is(404, "job-missing");

    reporting().post(path).bearer("root").is(404, "not-found");
    let never = ["--sse-secret", &"s".repeat(32), "--console-reveal", "never"];
    let open = Setup::memory().flags(&never).start();
    open.post(path).is(403, "forbidden");
}

#[test]
fn streams_of_the_tenant_are_counted() {
    let server = reporting();
    let stream = || {
        let headers = [("Authorization", "Bearer shop")];
        Listener::open(&server.address, "HTTP/1.1", "/v1/jobs/scan/j/events", &headers)
    };
    let open = stream();
    let of = |token: &str| seen(&server, "/v1/operator/streams", token);
    assert_eq!((of("eyes")["open"].as_u64(), of("bank")["open"].as_u64()), (Some(1), Some(0)));
    drop(open);
    eventually("the client has left", || {
        of("eyes")["open"] == 0 && of("eyes")["ended"]["client"] == 1
    });
    assert_eq!(of("bank")["ended"]["client"], 0);
}

#[test]
fn overview_has_latencies_of_event_streams() {
    let server = reporting_on_with("memory:", &["--sse-connections", "6"]);
    let event = json!({"domain": "scan", "job_id": "j", "stage": "begun", "seq": 1, "data": {}});
    assert_eq!(server.post("/v1/events").bearer("shop").json(event).status(), 201);
    let stream = |path: &str| {
        let headers = [("Authorization", "Bearer shop")];
        Listener::open(&server.address, "HTTP/1.1", path, &headers)
    };
    // With a backlog, without one, and several jobs without one.
    let paths =
        ["/v1/jobs/scan/j/events", "/v1/jobs/scan/k/events", "/v1/events/stream?job=scan/l"];
    let _open = paths.map(stream);
    let overview = || seen(&server, "/v1/operator/overview", "eyes");
    eventually("three streams are open", || sum(&overview(), "sse", "requests") == 3);
    // Half of six connections are for one tenant.
    server.get(paths[0]).bearer("shop").is(503, "too-many-streams");
    eventually("one was refused", || sum(&overview(), "sse", "refusals") == 1);
    let overview = overview();
    assert_eq!((sum(&overview, "sse", "requests"), sum(&overview, "sse", "errors")), (4, 0));
    assert_eq!(sum(&overview, "api", "requests"), 1, "streams are an edge of their own");
    let minutes = overview["minutes"].as_array().unwrap().iter();
    let minute = minutes.map(|minute| &minute["edges"]["sse"]).find(|sse| sse.is_object()).unwrap();
    let [p50, p95, p99] = ["p50_ms", "p95_ms", "p99_ms"].map(|name| minute[name].as_f64().unwrap());
    assert!(0.0 < p50 && p50 <= p95 && p95 <= p99, "{minute}");
    // Operators' own streams are no activity.
    let headers = [("Authorization", "Bearer bank")];
    let console = Listener::open(&server.address, "HTTP/1.1", "/v1/operator/activity", &headers);
    assert_eq!(server.post("/v1/locks/k").bearer("bank").status(), 201);
    let bank = || seen(&server, "/v1/operator/overview", "bank");
    eventually("the lock is counted", || sum(&bank(), "api", "requests") == 1);
    assert_eq!(sum(&bank(), "sse", "requests"), 0);
    drop(console);
}

#[test]
fn activity_stream_shows_what_happens_and_no_operator() {
    let server = reporting();
    let follow = |token: &str| {
        let authorization = format!("Bearer {token}");
        let headers = [("Authorization", authorization.as_str())];
        Listener::open(&server.address, "HTTP/1.1", "/v1/operator/activity", &headers)
    };
    let (mut eyes, mut bank) = (follow("eyes"), follow("bank"));
    // Looking is no activity: otherwise two open consoles would keep each other busy.
    seen(&server, "/v1/operator/overview", "eyes");
    pay_twice(&server, "k");
    let mut replays = 0;
    while replays == 0 {
        let entry = eyes.next().expect("an entry").data;
        assert_eq!(entry["edge"], "api", "{entry}");
        assert!(entry.get("jobs").is_none_or(|jobs| jobs == &json!([])), "{entry}");
        replays = entry["counts"]["replays"].as_u64().unwrap();
    }
    assert_eq!(server.post("/v1/locks/k").bearer("bank").status(), 201);
    let mut requests = 0;
    while requests == 0 {
        // An entry before that tells of the stream itself.
        let entry = bank.next().expect("an entry").data;
        requests = entry["counts"]["requests"].as_u64().unwrap();
    }
    assert_eq!(requests, 1, "another tenant's or an operator's requests show");
}

#[test]
fn activity_stream_resumes_where_the_client_was() {
    let server = reporting();
    let path = "/v1/operator/activity";
    let follow = |last: Option<&str>| {
        let mut headers = vec![("Authorization", "Bearer eyes")];
        headers.extend(last.map(|last| ("Last-Event-ID", last)));
        Listener::open(&server.address, "HTTP/1.1", path, &headers)
    };
    // The next entry with a replay: its id, and the hash of the key.
    let replay = |stream: &mut Listener| loop {
        let event = stream.next().expect("an entry");
        if event.data["counts"]["replays"] != 0 {
            assert_eq!(event.data["counts"]["replays"], 1, "{}", event.data);
            break (event.id().to_owned(), event.data["suppressed"][0]["key_hash"].clone());
        }
    };
    let mut first = follow(None);
    pay_twice(&server, "a");
    let (id, a) = replay(&mut first);
    drop(first);
    pay_twice(&server, "b");
    eventually("the second replay is written", || {
        sum(&seen(&server, "/v1/operator/overview", "eyes"), "api", "replays") == 2
    });
    let mut fresh = follow(None);
    let (_, b) = replay(&mut follow(Some(&id)));
    assert_ne!(a, b, "what was seen comes again");
    pay_twice(&server, "c");
    let (_, c) = replay(&mut fresh);
    assert!(c != a && c != b, "a new stream begins now");
    let broken = server.get(path).bearer("eyes").header("Last-Event-ID", "7-x");
    broken.is(400, "invalid-request");
}

#[test]
fn line_and_queues_without_traffic_are_empty() {
    let server = reporting();
    let line = seen(&server, "/v1/operator/line", "eyes");
    assert_eq!((&line["counts"], &line["gateways"]), (&json!({}), &json!([])));
    assert_eq!(seen(&server, "/v1/operator/queues", "eyes")["queues"], json!([]));
}
