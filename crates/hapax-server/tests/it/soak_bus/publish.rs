//! Publishers that repeat each event until it is acknowledged, and some of them once more.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::soak_bus::history::{At, Name};
use crate::soak_bus::random::Random;

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
    let exchange = async {
        let mut stream = TcpStream::connect(node).await.ok()?;
        let length = body.len();
        let head = format!(
            "{method} {path} HTTP/1.1\r\nHost: {node}\r\nConnection: close\r\n\
             Content-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}"
        );
        stream.write_all(head.as_bytes()).await.ok()?;
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).await.ok()?;
        let answer = String::from_utf8(answer).ok()?;
        let (head, body) = answer.split_once("\r\n\r\n")?;
        Some((head.split(' ').nth(1)?.parse().ok()?, serde_json::from_str(body).ok()?))
    };
    tokio::time::timeout(Duration::from_secs(10), exchange).await.ok()?
}
