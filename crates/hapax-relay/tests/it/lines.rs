//! JSON Lines as a sink.

use std::sync::Arc;

use hapax_relay::CloudEvents;
use hapax_relay::sinks::JsonLinesSink;
use serde_json::Value;
use tokio::io::{AsyncBufReadExt, BufReader};

use crate::support::{brisk, drain, item, stored};

#[tokio::test]
async fn a_row_is_a_line_of_json() {
    let text = item("héllo").key("k 1").content_type("text/plain").header("x", "1");
    let bytes = hapax_core::queue::QueueItem::new(&Default::default(), "orders", vec![0xff, 0]);
    let store = stored(&[text.clone(), bytes.clone()]).await;
    let (ours, theirs) = tokio::io::duplex(1 << 16);
    let settings = brisk().cloudevents(Some(CloudEvents::new("/shop")));
    drain(&store, Arc::new(JsonLinesSink::new(ours)), settings, 0).await;
    let mut lines = BufReader::new(theirs).lines();
    let mut read = Vec::new();
    while let Some(line) = lines.next_line().await.unwrap() {
        read.push(serde_json::from_str::<Value>(&line).unwrap());
    }
    assert_eq!(read.len(), 2);
    let find = |id: String| read.iter().find(|line| line["id"] == id.as_str()).unwrap();
    let line = find(text.id.to_string());
    assert_eq!(line["topic"], "orders");
    assert_eq!(line["key"], "k 1");
    assert_eq!(line["payload"], "héllo");
    assert_eq!(line["content_type"], "text/plain");
    assert_eq!(line["headers"]["x"], "1");
    assert_eq!(line["headers"]["ce-type"], "orders");
    assert_eq!(find(bytes.id.to_string())["payload_base64"], "/wA=");
}
