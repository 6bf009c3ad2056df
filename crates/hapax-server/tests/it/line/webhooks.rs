//! Which webhooks are accepted.

use hapax_line::ChannelSecrets;
use hapax_line::simulator::events;
use hapax_testkit::free_port;
use serde_json::json;

use crate::line::harness::{DESTINATION, SECRET, Scene, secrets, text, user};
use crate::support::http::HttpRequest;
use crate::support::store::TestStore;

#[tokio::test(flavor = "multi_thread")]
async fn webhook_without_valid_signature_is_401_and_dropped() {
    let (scene, gateway) = Scene::started().await;
    let body = json!({ "destination": DESTINATION, "events": [text(&user(1))] }).to_string();
    let of_another_body = secrets().sign(b"{}");
    let of_another_secret = ChannelSecrets::new("another").unwrap().sign(body.as_bytes());
    let right = secrets().sign(body.as_bytes());
    let short = &right[..right.len() - 4];
    let wrong = ["", "no base64!", &of_another_body, &of_another_secret, short];
    for signature in wrong.map(Some).into_iter().chain([None]) {
        assert_eq!(gateway.send_signed(&body, signature).await, 401, "{signature:?}");
        // The signature is checked before the body is parsed.
        assert_eq!(gateway.send_signed("no JSON", signature).await, 401);
    }
    assert_eq!(gateway.queue()["depth"], 0);
    assert_eq!(gateway.ask("POST", "/line/webhook", &body).0, 401);
    assert_eq!(gateway.ask("GET", "/line/webhook", "").0, 405);
    assert_eq!(gateway.ask("POST", "/line/other", &body).0, 404);
    assert_eq!(gateway.send_signed(&body, Some(&right)).await, 200);
    scene.bot.ended(1);
    gateway.idle();
    assert_eq!(scene.bot.calls().len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn webhook_accepts_both_secrets_during_rotation() {
    let scene = Scene::on(TestStore::memory()).await;
    let both = format!("{SECRET},old-food-secret");
    let gateway = scene.gateway().env("LINE_CHANNEL_SECRET", &both).start();
    let old = ChannelSecrets::new("old-food-secret").unwrap();
    assert_eq!(gateway.send_with(&old, &[text(&user(1))]).await, 200);
    assert_eq!(gateway.send_with(&secrets(), &[text(&user(2))]).await, 200);
    let older = ChannelSecrets::new("older").unwrap();
    assert_eq!(gateway.send_with(&older, &[text(&user(3))]).await, 401);
    // The bot checks that the new secret signed both.
    scene.bot.ended(2);
    gateway.idle();
    assert_eq!(scene.bot.calls().len(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn webhook_signed_nonsense_is_400_and_empty_one_200() {
    let scene = Scene::on(TestStore::memory()).await;
    let gateway = scene.start();
    for body in ["", "no JSON", "[]", "{}", r#"{"destination":1,"events":[]}"#, r#"{"events":[]}"#]
    {
        assert_eq!(gateway.send_raw(body).await, 400, "{body}");
    }
    assert_eq!(gateway.send(&[]).await.status, 200);
    assert_eq!(gateway.send_raw(r#"{"destination":"Uf00d","events":[],"new":{}}"#).await, 200);
    gateway.idle();
    assert!(scene.bot.calls().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn webhook_unknown_types_and_fields_pass_verbatim() {
    let (scene, gateway) = Scene::started().await;
    // Spaces, order, escapes, doubled fields and numbers that no JSON writer would reproduce.
    let strange = [
        r#"{ "type" : "somethingNew", "webhookEventId":"01FZ74A0TDDPYRVKNK77XKC3ZR","n":1.50e+3 ,"deep":[ {} ,null]}"#,
        r#"{"mode":"active","type":"message","message":{"type":"hologram","z":1,"a":2,"z":3},"webhookEventId":"01FZ74A0TDDPYRVKNK77XKC3ZS","text":"\u5929\u6c23 \/ \ud83e\udd5a"}"#,
    ];
    for (nth, event) in strange.iter().enumerate() {
        let body = format!(r#"{{"destination":"{DESTINATION}","events":[{event}]}}"#);
        assert_eq!(gateway.send_raw(&body).await, 200);
        let calls = scene.bot.begun(nth + 1);
        let got = std::str::from_utf8(&calls[nth].body).unwrap();
        assert_eq!(got, body, "signed anew, and else as it came");
    }
    scene.send_until_handled(&gateway, &[events::unknown(&user(1))], 3).await;
    assert!(scene.line.accepted_calls().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn webhook_is_answered_although_the_bot_hangs() {
    let scene = Scene::on_redis().await;
    let gateway = scene.gateway().flags(&["--in-flight", "2"]).start();
    scene.bot.holds();
    for number in 0..10 {
        gateway.send_in_time(|| text(&user(number))).await;
    }
    scene.bot.begun(2);
    let queue = gateway.queue();
    let stored = queue["depth"].as_u64().unwrap() + queue["in_flight"].as_u64().unwrap();
    assert!(stored >= 10, "{queue}");
    scene.finish(&gateway, 1000);
}

#[tokio::test(flavor = "multi_thread")]
async fn webhook_in_standby_reaches_the_bot_without_replies() {
    let (scene, gateway) = Scene::with_long_locks().await;
    let resting = events::standby(text(&user(1)));
    gateway.send(std::slice::from_ref(&resting)).await;
    assert!(scene.bot.begun(1)[0].is(&resting));
    gateway.idle();
    // The same holds if the sender would be told to wait, and with a reply token.
    scene.bot.holds();
    scene.send_until_begun(&gateway, &[text(&user(1))], 2).await;
    let mut with_token = text(&user(1));
    with_token["mode"] = "standby".into();
    gateway.send(&[events::standby(text(&user(1))), with_token]).await;
    scene.finish(&gateway, 10);
    assert!(scene.line.accepted_calls().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn health_on_listener_queue_and_metrics_on_admin() {
    let scene = Scene::on_redis().await;
    let admin = format!("127.0.0.1:{}", free_port());
    let gateway = scene.gateway().flags(&["--admin", &admin]).start();
    let get = |path: &str| {
        let answer = HttpRequest::new(&admin, "GET", path).send();
        assert_eq!(answer.status, 200, "{path}");
        answer.text()
    };
    for path in ["/healthz", "/readyz"] {
        assert_eq!(gateway.get(path).0, 200);
        get(path);
    }
    scene.send_until_handled(&gateway, &[text(&user(1))], 1).await;
    assert!(get("/v1/queues/line").contains("\"depth\":0"));
    assert!(get("/v1/queues/line/dead").contains("\"items\":[]"));
    assert!(get("/metrics").contains("hapax_line_events_total{"));
}
