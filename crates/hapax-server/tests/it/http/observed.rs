//! Logs and metrics, and that they identify no person.

use serde_json::json;

use crate::support::server::{Server, Setup};
use crate::support::store::TestStore;
use crate::support::{eventually, has};

/// A session in which every text that could identify a person is one of these.
fn busy(server: &Server) -> Vec<String> {
    let mut secrets: Vec<String> =
        ["U4af4980629", "s3cr3t-body", "fingerpr1nt", "m1stake", "0peration"]
            .map(Into::into)
            .into();
    let lock = "/v1/locks/processing:user:U4af4980629";
    let record = "/v1/records/user:U4af4980629:last_transaction";
    let command = "/v1/commands/0peration/U4af4980629";
    let operator = "/v1/operator/commands/0peration/U4af4980629";
    let token = server.post(lock).send().token();
    let begun = server.post(command).json(r#"{"fingerprint":"fingerpr1nt"}"#).send().token();
    let value = r#"{"note":"s3cr3t-body"}"#;
    let answer = r#"{"status":200,"body":"s3cr3t-body"}"#;
    let bad_header = r#"{"token":"m1stake","status":200,"headers":{"m1stake m1stake":""}}"#;
    let answers = [
        server.post(lock),
        server.get(lock),
        server.put(lock).json(json!({"token": token})),
        server.put(lock).json(r#"{"token":"m1stake"}"#),
        server.delete(lock).header("Hapax-Token", "m1stake"),
        server.delete(lock).header("Hapax-Token", &token),
        server.put(record).json(value),
        server.put(&format!("{record}?ttl_ms=m1stake")).json(value),
        server.put(record).json(r#"{"note":{"s3cr3t-body":1,"s3cr3t-body":1}}"#),
        server.put(record).json(r#"{"note":s3cr3t-body}"#),
        server.put(record).json(value).header("If-Match", "\"m1stake\""),
        server.delete(record),
        server.get(record),
        server.post(command).json(r#"{"fingerprint":"m1stake"}"#),
        server.post(command).json(r#"{"fingerprint":"fingerpr1nt"}"#),
        server.post(command).json(r#"{"on_unknown":"m1stake"}"#),
        server.post(command).json(r#"{"lease_ms":"m1stake"}"#),
        server.put(command).json(r#"{"token":"m1stake","status":200,"body":"s3cr3t-body"}"#),
        server.put(command).json(bad_header),
        server.put(&format!("{operator}?scope=m1stake")).json(answer),
        server.put(operator).json(answer),
        server.delete(operator),
        server.get(operator),
        server.get("/v1/operator/commands?state=m1stake"),
        server.get("/v1/operator/commands?after=m1stake"),
        server.get("/v1/operator/commands"),
        server.get("/v1/locks/U4af4980629%zz"),
        server.get("/v1/locks/U4af4980629%20"),
        server.get(&format!("/v1/locks/{}", "U4af4980629".repeat(30))),
        server.get("/v1/U4af4980629/m1stake"),
        server.ask("m1stake", lock),
        server.get(lock).header("Host", "m1stake.example"),
    ]
    .map(|ask| ask.send());
    secrets.extend([token, begun]);
    for answer in answers.iter().filter(|answer| answer.status >= 400) {
        answer.problem();
        for secret in &secrets {
            assert!(!answer.text().contains(secret), "{secret}: {}", answer.text());
        }
    }
    secrets
}

#[test]
fn log_and_metrics_contain_no_personal_data() {
    for format in ["json", "pretty"] {
        let server = Setup::memory().flags(&["--log", format, "--log-level", "trace"]).start();
        let secrets = busy(&server);
        let metrics = server.metrics();
        let log = server.stop();
        for secret in secrets {
            assert!(!metrics.contains(&secret), "{secret} in {metrics}");
            assert!(!log.contains(&secret), "{secret} in {log}");
        }
    }
}

#[test]
fn log_has_one_line_per_request_with_route_and_id() {
    let server = Setup::memory().flags(&["--log", "json"]).start();
    let answer = server.post("/v1/locks/k").send();
    let id = answer.header("hapax-request-id").unwrap().to_owned();
    let unknown = server.get("/v1/nothing/at/all").send();
    assert_ne!(unknown.header("hapax-request-id").unwrap(), id);
    let log = server.stop();
    let lines: Vec<serde_json::Value> =
        log.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let line = lines.iter().find(|line| line["id"] == *id).unwrap_or_else(|| panic!("{log}"));
    let shown = json!([line["method"], line["route"], line["status"], line["tenant"]]);
    assert_eq!(shown, json!(["POST", "/v1/locks/{key}", 201, "default"]));
    assert!(line["ms"].is_number());
    assert!(lines.iter().any(|line| line["route"] == "unmatched" && line["status"] == 404));
}

#[test]
fn metrics_are_prometheus_text_with_help_and_buckets() {
    let server = Server::start();
    let token = server.lock("k");
    server.post("/v1/locks/k").status();
    server.delete("/v1/locks/k").header("Hapax-Token", &token).status();
    server.put("/v1/records/k").json("1").status();
    server.get("/v1/records/k").status();
    server.post("/v1/commands/o/k").status();
    let answer = server.get("/metrics").send();
    assert!(answer.header("content-type").unwrap().starts_with("text/plain"));
    let lines = [
        "# HELP processing_lock_acquire_total ",
        "# TYPE hapax_http_request_seconds histogram",
        "processing_lock_acquire_total{status=\"acquired\",source_type=\"api\"} 1",
        "processing_lock_miss_total{source_type=\"api\"} 1",
        "processing_lock_release_total{status=\"released\",source_type=\"api\"} 1",
        "kv_operations_total{operation=\"get\",result=\"hit\"} 1",
        "kv_get_latency_bucket{le=\"0.0001\"}",
        "hapax_command_begin_total{result=\"granted\"} 1",
        "hapax_http_requests_total{route=\"/v1/locks/{key}\",method=\"POST\",status=\"409\"} 1",
        "hapax_http_in_flight 1",
        "hapax_store_up 1",
    ];
    has(&answer.text(), &lines);
}

#[test]
fn fault_42_counters_exist_from_the_start() {
    let metrics = Server::start().metrics();
    for line in [
        "hapax_command_begin_total{result=\"outcome_unknown\"} 0\n",
        "hapax_bus_gaps_total 0\n",
        "hapax_store_errors_total{reason=\"timeout\"} 0\n",
        "hapax_relay_resolved_total{outcome=\"buried\",result=\"done\"} 0\n",
    ] {
        has(&metrics, &[line]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn fault_42_gauges_show_queues_commands_and_locks() {
    let file = TestStore::sqlite();
    let server = Setup::on(&file.url()).flags(&["--gauge-interval", "50ms"]).start();
    let patient = hapax::StoreConfig::default().timeout(crate::support::WAIT_TIMEOUT);
    let store = hapax::open(&file.url(), &patient).unwrap();
    let queue = hapax::queue::QueueName::new("mail").unwrap();
    let item =
        |key: &str| hapax::queue::QueueItem::new(&hapax::Tenant::default(), "t", "{}").key(key);
    let _ = store.enqueue(&queue, &[item("dead")]).await.unwrap();
    let take = hapax::queue::LeaseRequest::new(1, std::time::Duration::from_secs(60));
    let leased = store.lease(&queue, &take).await.unwrap();
    let _ = store.bury(&queue, &take.token, leased[0].item.id, "no").await.unwrap();
    let _ = store.enqueue(&queue, &[item("waits")]).await.unwrap();
    server.post("/v1/commands/o/k").json(r#"{"lease_ms":1}"#).send().token();
    server.lock("held");
    server.counts("hapax_queue_dead{queue=\"mail\"} 1\n");
    server.counts("hapax_queue_depth{queue=\"mail\"} 1\n");
    server.counts("hapax_queue_dead{queue=\"outbox\"} 0\n");
    server.counts("hapax_commands{state=\"unknown\"} 1\n");
    server.counts("hapax_locks_held 1\n");
    eventually("the oldest item has an age", || {
        let metrics = server.metrics();
        let age = metrics.lines().find_map(|line| {
            line.strip_prefix("hapax_queue_oldest_seconds{queue=\"mail\"} ")?.parse::<f64>().ok()
        });
        age.is_some_and(|age| age > 0.0)
    });
}

#[tokio::test(flavor = "multi_thread")]
async fn fault_42_queues_of_other_processes_have_gauges_on_redis() {
    let redis = TestStore::redis();
    let server = Setup::on(&redis.url()).flags(&["--gauge-interval", "50ms"]).start();
    server.counts("hapax_queue_dead{queue=\"outbox\"} 0\n");
    let patient = hapax::StoreConfig::default().timeout(crate::support::WAIT_TIMEOUT);
    let store = hapax::open(&redis.url(), &patient).unwrap();
    let item = hapax::queue::QueueItem::new(&hapax::Tenant::default(), "t", "{}");
    let queue = hapax::queue::QueueName::new("mail").unwrap();
    let _ = store.enqueue(&queue, &[item]).await.unwrap();
    server.counts("hapax_queue_depth{queue=\"mail\"} 1\n");
}
