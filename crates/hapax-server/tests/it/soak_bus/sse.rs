//! A client of the stream that disconnects at random.

use std::time::Duration;

use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::soak_bus::checker::{At, Saw};
use crate::soak_bus::random::Random;

/// Follows a job over any of the nodes until its end; what it saw.
pub(crate) async fn follow(nodes: Vec<String>, job: String, mut random: Random) -> Vec<Saw> {
    let mut saw = Vec::new();
    let mut cursor: Option<String> = None;
    while saw.last() != Some(&Saw::End) {
        let node = &nodes[random.below(nodes.len())];
        // Some connections live for a few events, some to the end.
        let budget = if random.one_in(4) { usize::MAX } else { random.below(12) };
        if connection(node, &job, &mut cursor, budget, &mut saw).await.is_none() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
    saw
}

/// One connection; `None` if no stream was opened.
async fn connection(
    node: &str,
    job: &str,
    cursor: &mut Option<String>,
    budget: usize,
    saw: &mut Vec<Saw>,
) -> Option<()> {
    let mut stream = TcpStream::connect(node).await.ok()?;
    let resume = cursor.as_ref().map_or(String::new(), |id| format!("Last-Event-ID: {id}\r\n"));
    let head = format!("GET /v1/jobs/soak/{job}/events HTTP/1.1\r\nHost: {node}\r\n{resume}\r\n");
    stream.write_all(head.as_bytes()).await.ok()?;
    let mut body = Body { stream, raw: Vec::new(), text: Vec::new() };
    let status = body.status().await?;
    if status == 204 {
        saw.push(Saw::End);
        return Some(());
    }
    assert!(status == 200 || status == 503, "a stream was answered with {status}");
    if status == 503 {
        return None;
    }
    for _ in 0..budget {
        let Some(frame) = body.frame().await else { break };
        let Some((id, seen)) = read(&frame) else { continue };
        if let Some(id) = id {
            *cursor = Some(id);
        }
        saw.push(seen);
    }
    Some(())
}

/// A frame's id and meaning; `None` for comments and hints.
fn read(frame: &str) -> Option<(Option<String>, Saw)> {
    let field = |name: &str| {
        let mut lines = frame.lines().filter_map(|line| line.strip_prefix(name));
        lines.next().map(|value| value.trim_start().to_owned())
    };
    let id = field("id:");
    let seen = match field("event:")?.as_str() {
        "gap" => Saw::Gap,
        "snapshot" => Saw::Snapshot(place(id.as_deref())),
        "end" => return None,
        stage => {
            let event: Value = serde_json::from_str(&field("data:")?).expect("data is JSON");
            let at = place(id.as_deref());
            assert_eq!(event["stage"], stage);
            assert_eq!(event["offset"].as_u64(), Some(at.offset));
            Saw::Event((stage.to_owned(), event["seq"].as_u64().expect("a seq")), at)
        }
    };
    Some((id, seen))
}

fn place(id: Option<&str>) -> At {
    id.and_then(|id| id.parse().ok()).expect("an id `<epoch>-<offset>`")
}

/// A chunked body, frame by frame.
struct Body {
    stream: TcpStream,
    raw: Vec<u8>,
    text: Vec<u8>,
}

impl Body {
    async fn more(&mut self) -> Option<()> {
        let mut chunk = [0; 4096];
        let read = tokio::time::timeout(Duration::from_secs(60), self.stream.read(&mut chunk));
        let count = read.await.expect("keep-alives come more often").ok()?;
        self.raw.extend_from_slice(&chunk[..count]);
        (count > 0).then_some(())
    }

    async fn until(&mut self, end: &[u8]) -> Option<Vec<u8>> {
        loop {
            if let Some(at) = self.raw.windows(end.len()).position(|window| window == end) {
                let rest = self.raw.split_off(at + end.len());
                return Some(std::mem::replace(&mut self.raw, rest));
            }
            self.more().await?;
        }
    }

    async fn status(&mut self) -> Option<u16> {
        let head = String::from_utf8(self.until(b"\r\n\r\n").await?).ok()?;
        let status = head.split(' ').nth(1)?.parse().ok()?;
        let chunked = head.to_ascii_lowercase().contains("transfer-encoding: chunked");
        assert!(status != 200 || chunked, "a stream comes in chunks");
        Some(status)
    }

    async fn frame(&mut self) -> Option<String> {
        loop {
            if let Some(at) = self.text.windows(2).position(|window| window == b"\n\n") {
                let rest = self.text.split_off(at + 2);
                let frame = std::mem::replace(&mut self.text, rest);
                return Some(String::from_utf8(frame).expect("UTF-8"));
            }
            let size = String::from_utf8(self.until(b"\r\n").await?).ok()?;
            let size = usize::from_str_radix(size.trim(), 16).ok().filter(|size| *size > 0)?;
            while self.raw.len() < size + 2 {
                self.more().await?;
            }
            self.text.extend(self.raw.drain(..size + 2).take(size));
        }
    }
}
