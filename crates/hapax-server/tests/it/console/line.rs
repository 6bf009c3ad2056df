//! The page of LINE, with a real gateway on the same store.

use hapax_line::simulator::events;
use hapax_line::{ChannelSecrets, SIGNATURE_HEADER};
use serde_json::json;

use super::scene::Scene;
use crate::support::http::HttpRequest;
use crate::support::{HapaxProcess, eventually, hapax};

const SECRET: &str = "a-channel-secret";
const USER: &str = "Uf00d0000000000000000000000000001";

/// A gateway whose bot is away.
fn gateway(store: &str) -> HapaxProcess {
    let mut command = hapax();
    command.args(["line", "--config", "/dev/null", "--store", store, "--listen", "127.0.0.1:0"]);
    command.args(["--upstream", "http://127.0.0.1:9/callback", "--report-interval", "50ms"]);
    command.env("LINE_CHANNEL_SECRET", SECRET).env("LINE_CHANNEL_ACCESS_TOKEN", "token");
    command.env("LINE_API_BASE", "http://127.0.0.1:9").env("HAPAX_STORE_TIMEOUT", "20s");
    HapaxProcess::start(&mut command)
}

#[tokio::test(flavor = "multi_thread")]
async fn console_line_shows_gateways_and_their_events() {
    let scene = Scene::start().await;
    let gateway = gateway(&scene.file.url());
    let body = json!({ "destination": "Uf00db07", "events": [events::text(USER, "hello")] });
    let body = body.to_string();
    let signature = ChannelSecrets::new(SECRET).unwrap().sign(body.as_bytes());
    let address = gateway.address().replace("0.0.0.0", "127.0.0.1");
    let webhook = HttpRequest::new(&address, "POST", "/line/webhook");
    let webhook = webhook.header(SIGNATURE_HEADER, &signature).body(body.as_bytes());
    assert_eq!((webhook.status(), webhook.status()), (200, 200));
    eventually("the event and its redelivery are counted", || {
        let counts = scene.get("/v1/operator/line")["counts"].clone();
        counts["accepted"] == 1 && counts["duplicate"] == 1
    });
    scene.sign_in("ana");
    scene.go("line");
    let line = scene.get("/v1/operator/line");
    let node = line["gateways"][0]["node"].as_str().unwrap();
    scene.shows(&[node, "Accepted\t1", "Duplicate\t1"]);
    let queue = line["queues"][0]["queue"].as_str().unwrap();
    scene.shows(&[queue]);
    scene.lacks(&[USER, "hello"]);
    scene.sign_in("eyes");
    scene.go("line");
    scene.shows(&["Accepted\t1"]);
    assert_eq!(scene.action_buttons(), json!([]));
    scene.sign_in("eve");
    scene.go("line");
    scene.shows(&["No event within the last hour."]);
    scene.is_clean();
}
