//! Publishers that repeat each event until it is acknowledged, and some of them once more.

use std::time::Duration;

use serde_json::{Value, json};

use crate::soak_bus::checker::{At, Name};
use crate::soak_bus::random::Random;
use crate::support::http::HttpRequest;

/// Publishes one event until it is acknowledged.
pub(crate) async fn publish(
    nodes: &[String],
    job: &str,
    name: &Name,
    last: bool,
    random: &mut Random,
) -> (Name, At) {
    let (stage, seq) = name;
    let mut event =
        json!({"domain": "soak", "job_id": job, "stage": stage, "seq": seq, "data": {"n": seq}});
    if last {
        event["final"] = true.into();
    }
    let body = event.to_string();
    loop {
        let node = &nodes[random.below(nodes.len())];
        match ask(node, "POST", "/v1/events", &body).await {
            Some((200 | 201, answer)) => {
                let number = |field: &str| answer[field].as_u64().expect("a number");
                let at = At { epoch: number("epoch"), offset: number("offset") };
                return (name.clone(), at);
            }
            Some((status, answer)) if status != 503 => panic!("{status}: {answer}"),
            _ => tokio::time::sleep(Duration::from_millis(20)).await,
        }
    }
}

/// The job's state, if a node answers and the job exists.
pub(crate) async fn state(node: &str, job: &str) -> Option<(At, u64)> {
    let (status, answer) = ask(node, "GET", &format!("/v1/jobs/soak/{job}"), "").await?;
    let number = |value: &Value| value.as_u64().expect("a number");
    (status == 200).then(|| {
        let at = At { epoch: number(&answer["epoch"]), offset: number(&answer["offset"]) };
        (at, number(&answer["state"]["seq"]))
    })
}

/// One request on its own connection; `None` if the response is incomplete.
async fn ask(node: &str, method: &str, path: &str, body: &str) -> Option<(u16, Value)> {
    let request = HttpRequest::new(node, method, path).json(body);
    let answer =
        tokio::task::spawn_blocking(move || request.try_send()).await.expect("no panic")?;
    Some((answer.status, serde_json::from_slice(&answer.body).ok()?))
}
