//! Publishing events, and the state of a job.

use serde_json::{Value, json};

use crate::http::access::guarded;
use crate::support::server::{Server, Setup};

fn event(stage: &str, seq: u64) -> Value {
    json!({"domain": "scan", "job_id": "job-1", "stage": stage, "seq": seq, "data": {"n": seq}})
}

fn with(mut event: Value, field: &str, value: Value) -> Value {
    event[field] = value;
    event
}

#[test]
fn event_is_published_once_then_recognised() {
    let server = Server::start();
    let publish = |event: &Value| server.post("/v1/events").json(event).send();
    let first = publish(&event("vision", 10));
    assert_eq!(first.status, 201, "{}", first.text());
    let epoch = first.json()["epoch"].as_u64().unwrap();
    assert_eq!(first.json(), json!({"published": true, "offset": 1, "epoch": epoch}));
    let again = publish(&event("vision", 10));
    let known = json!({"published": false, "offset": 1, "epoch": epoch});
    assert_eq!((again.status, again.json()), (200, known));
    // Member order, white space and the timestamp do not count as content.
    let same = r#"{ "timestamp": "2001-09-09", "data": { "n":10 }, "seq": 10, "stage": "vision",
        "final": false, "job_id": "job-1", "domain": "scan" }"#;
    assert_eq!(server.post("/v1/events").json(same).status(), 200);
    publish(&with(event("vision", 10), "data", json!({"n": 11}))).is(409, "event-conflict");
    publish(&with(event("vision", 10), "final", true.into())).is(409, "event-conflict");
    assert_eq!(publish(&event("vision", 11)).json()["offset"], 2);
}

#[test]
fn hole_13_stages_share_a_seq_without_collision() {
    // In the usual design `failed` has the seq of `started`, and the router's marker is (job, seq): the
    // second one is taken for a duplicate of the first, and skipped.
    let server = Server::start();
    server.publish("job-1", "started", 10);
    assert_eq!(server.publish("job-1", "failed", 10).0, 2);
}

#[test]
fn fault_36_names_that_event_source_fires_itself_are_reserved() {
    let server = Server::start();
    for stage in ["error", "open", "message"] {
        let event = json!({"domain": "scan", "job_id": "j", "stage": stage, "seq": 1, "data": 0});
        let refused = server.post("/v1/events").json(&event).is(400, "invalid-request");
        assert!(refused.detail().contains(stage), "{}", refused.detail());
    }
}

#[test]
fn hole_10_state_follows_the_highest_seq() {
    // In the usual design the worker writes the state key and the router writes it again from the stream: a
    // router that comes late sets the state back to 20, or takes 20 for stale and drops it.
    let server = Server::start();
    let look = || server.get("/v1/jobs/scan/job-1").send();
    look().is(404, "job-missing");
    let (_, epoch) = server.publish("job-1", "vision", 10);
    let job = look();
    assert_eq!(job.status, 200);
    let timestamp = job.json()["state"]["timestamp"].as_str().unwrap().to_owned();
    assert!(timestamp.ends_with('Z'), "{timestamp}");
    assert_eq!(
        job.json(),
        json!({
            "state": {
                "offset": 1, "domain": "scan", "job_id": "job-1", "stage": "vision", "seq": 10,
                "data": {"n": 10}, "timestamp": timestamp,
            },
            "offset": 1, "epoch": epoch, "closed": false,
        })
    );
    server.publish("job-1", "answer", 30);
    server.publish("job-1", "rule", 20);
    let job = look().json();
    assert_eq!((&job["state"]["seq"], &job["offset"]), (&30.into(), &3.into()));
    server.finish("job-1");
    let job = look().json();
    assert_eq!((&job["state"]["seq"], &job["closed"]), (&51.into(), &true.into()));
}

#[test]
fn closed_job_refuses_new_events_and_knows_duplicates() {
    for (stage, seq, last) in [("done", 51, false), ("vision", 10, true)] {
        let server = Server::start();
        server.publish("job-1", "rule", 20);
        let closing = with(event(stage, seq), "final", last.into());
        let publish = |event: &Value| server.post("/v1/events").json(event).send();
        assert_eq!(publish(&closing).status, 201);
        publish(&event("reward", 40)).is(409, "job-closed");
        assert_eq!(publish(&closing).status, 200);
        assert_eq!(publish(&event("rule", 20)).status, 200);
        publish(&with(event("rule", 20), "data", 1.into())).is(409, "event-conflict");
    }
}

#[test]
fn final_event_is_a_setting() {
    let server = Setup::memory().flags(&["--event-final", "complete:99"]).start();
    server.finish("job-1");
    server.publish("job-1", "complete", 99);
    server.post("/v1/events").json(event("late", 100)).is(409, "job-closed");
    let never = Setup::memory().flags(&["--event-final", ""]).start();
    never.finish("job-1");
    assert_eq!(never.publish("job-1", "done", 52).0, 2);
}

#[test]
fn event_array_has_one_result_each_in_order() {
    let server = Server::start();
    let events = json!([
        event("vision", 10),
        event("vision", 10),
        with(event("vision", 10), "data", 0.into()),
        event("done", 51),
        event("done", 52),
    ]);
    let answer = server.post("/v1/events").json(&events).send();
    assert_eq!(answer.status, 200);
    let results = answer.json()["results"].as_array().unwrap().clone();
    let statuses: Vec<_> = results.iter().map(|r| r["status"].as_u64().unwrap()).collect();
    assert_eq!(statuses, [201, 200, 409, 201, 409]);
    assert_eq!((&results[0]["offset"], &results[1]["published"]), (&1.into(), &false.into()));
    assert!(results[2]["type"].as_str().unwrap().ends_with("/event-conflict"));
    assert!(results[4]["type"].as_str().unwrap().ends_with("/job-closed"));
    assert_eq!(server.post("/v1/events").json("[]").send().json(), json!({"results": []}));
}

#[test]
fn malformed_event_fails_its_whole_array() {
    let server = Server::start();
    let events = json!([event("vision", 10), with(event("vision", 11), "seq", "x".into())]);
    let refused = server.post("/v1/events").json(&events).is(400, "invalid-request");
    assert!(refused.detail().contains("item 1") && refused.detail().contains("`seq`"));
    server.get("/v1/jobs/scan/job-1").is(404, "job-missing");
    let many = Value::from(vec![event("vision", 10); 1001]).to_string();
    let many = server.post("/v1/events").json(&many).send();
    assert!(many.is(400, "invalid-request").detail().contains("1000"));
}

#[test]
fn events_refuse_bad_input_and_store_nothing() {
    let server = Server::start();
    let good = event("vision", 10);
    let mut wrong = vec![json!(null), json!("x"), json!(1), json!([[]]), json!([null])];
    for field in ["domain", "job_id", "stage", "seq", "data"] {
        let mut event = good.clone();
        event.as_object_mut().unwrap().remove(field);
        wrong.push(event);
    }
    for (field, values) in [
        ("domain", vec![json!(""), json!(1), json!("a b"), json!("é"), json!("x".repeat(256))]),
        ("job_id", vec![json!(""), json!(null), json!("x".repeat(256))]),
        ("stage", vec![json!(""), json!("gap"), json!("snapshot"), json!("end"), json!("a\nb")]),
        ("seq", vec![json!(-1), json!(1.5), json!("1"), json!(1_u64 << 53), json!(u64::MAX)]),
        ("final", vec![json!("true"), json!(null), json!(1)]),
        ("timestamp", vec![json!(1), json!("x".repeat(65)), json!("a\u{0}b")]),
        ("offset", vec![json!(1)]),
    ] {
        wrong.extend(values.into_iter().map(|value| with(good.clone(), field, value)));
    }
    for wrong in wrong {
        let answer = server.post("/v1/events").json(&wrong).send();
        assert_eq!((answer.status, answer.problem().as_str()), (400, "invalid-request"), "{wrong}");
    }
    for wrong in ["", "{", r#"{"domain":"a","domain":"b"}"#] {
        server.post("/v1/events").json(wrong).is(400, "invalid-request");
    }
    server.post("/v1/events?x=1").json(&good).is(400, "invalid-request");
    let large = with(good, "data", "x".repeat(1_100_000).into());
    server.post("/v1/events").json(&large).is(413, "payload-too-large");
    server.get("/v1/jobs/scan/job-1").is(404, "job-missing");
    server.get("/v1/jobs/scan/job-1?x=1").is(400, "invalid-request");
}

#[test]
fn jobs_are_separate_per_tenant() {
    let server = guarded();
    let event = event("vision", 10).to_string();
    for tenant in ["shop", "bank"] {
        let published = server.post("/v1/events").bearer(tenant).json(&event).send();
        assert_eq!(published.status, 201, "{tenant}");
    }
    server.post("/v1/events").json(&event).is(401, "unauthorized");
    server.get("/v1/jobs/scan/job-1").is(401, "unauthorized");
    server.get("/v1/jobs/scan/job-1").bearer("watch").is(403, "forbidden");
    assert_eq!(server.get("/v1/jobs/scan/job-1").bearer("bank").send().json()["offset"], 1);
}
