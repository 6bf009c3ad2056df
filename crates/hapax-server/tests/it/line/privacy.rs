//! Every path is taken once, and all outputs are searched for personal data.

use hapax_line::simulator::{ApiEndpoint, ApiFault, events};

use crate::line::bot::Reaction;
use crate::line::gateway::Gateway;
use crate::line::harness::{DESTINATION, Scene, eventually, lock_key, secrets, text, user};
use crate::line::leaks;
use crate::support::http::HttpRequest;
use crate::support::store::TestStore;

#[tokio::test(flavor = "multi_thread")]
async fn line_logs_metrics_and_errors_hold_no_personal_data() {
    let scene = Scene::on_redis().await;
    let flags = ["--max-attempts", "2", "--backoff", "20ms", "--lease", "3s"];
    let gateway = scene.gateway().talkative().flags(&flags).start();

    // Busy replies: accepted, refused, without a response, and for a foreign lock.
    scene.redis().cli(&["SET", &lock_key(&user(1)), "1", "EX", "300"]);
    scene.send_until_told(&gateway, &[text(&user(1))], 1).await;
    for fault in [ApiFault::Status(400), ApiFault::Status(500), ApiFault::Cut, ApiFault::CutAfter] {
        scene.line.inject(ApiEndpoint::Reply, fault);
        let busy = gateway.metric("hapax_line_handled_total", &["result=\"busy\""]);
        gateway.send(&[text(&user(1))]).await;
        gateway.counts("hapax_line_handled_total", &["result=\"busy\""], busy + 1.0);
        gateway.idle();
    }

    // Every type of event, those without a user and in standby, and values that are not events.
    gateway.send(&events::every_kind(&user(2))).await;
    gateway.send(&[events::without_user(text(&user(3))), events::standby(text(&user(3)))]).await;
    let odd =
        format!(r#"{{"destination":"{DESTINATION}","events":[17,"🥚",{{"type":"🥚 Uf00d"}}]}}"#);
    assert_eq!(gateway.send_raw(&odd).await, 200);
    gateway.idle();

    // Dead letters, and every view of them.
    for (number, deed) in
        [(4, Reaction::Answer(500)), (5, Reaction::Answer(404)), (6, Reaction::Answer(302))]
    {
        scene.bot.does(move |_| deed);
        gateway.send(&[text(&user(number))]).await;
        gateway.has_dead(number as usize - 3);
    }
    scene.bot.does(|_| Reaction::Answer(200));
    let id = gateway.dead()[0]["id"].as_str().expect("an id").to_owned();
    assert_eq!(gateway.post(&format!("/v1/queues/line/dead/{id}/requeue")).0, 204);
    assert_eq!(gateway.post(&format!("/v1/queues/line/dead/{id}/requeue")).0, 404);
    assert_eq!(gateway.get("/v1/queues/🥚").0, 400);
    gateway.idle();

    // Errors: unsigned, malformed, too large, unknown path.
    let body = format!(r#"{{"destination":"{DESTINATION}","events":[{}]}}"#, text(&user(7)));
    assert_eq!(gateway.ask("POST", "/line/webhook", &body).0, 401);
    assert_eq!(gateway.ask("POST", "/line/webhook?user=Uf00d", &body).0, 401);
    let nonsense = "Uf00d 🥚";
    assert_eq!(gateway.send_raw(nonsense).await, 400);
    assert_eq!(signed(&gateway.address, nonsense).0, 400);
    assert_eq!(gateway.send_raw(&"🥚".repeat(1 << 19)).await, 413);
    assert!(gateway.ask("GET", "/v1/locks/x", "").0 == 404);

    gateway.get("/metrics");
    for proof in ["missed", "acquired", "dead letter", "no user to lock", "hapax_line_sent_total"] {
        took_path(&gateway, proof);
    }
    drop(gateway);

    // The store goes away, at rest and during work, and comes back.
    let gateway = scene.gateway().impatient().talkative().flags(&flags);
    let gateway = gateway.flags(&["--handle-timeout", "300s"]).start();
    scene.bot.holds();
    let begun = scene.bot.calls().len() + 1;
    scene.send_until_begun(&gateway, &[text(&user(8))], begun).await;
    scene.redis().kill();
    scene.send_until_begun(&gateway, &[text(&user(8)), text(&user(9))], begun + 2).await;
    scene.bot.let_go(100);
    gateway.readiness_is(503);
    assert_eq!(gateway.get("/v1/queues/line").0, 503);
    scene.redis().restart();
    gateway.readiness_is(200);
    gateway.idle();

    took_path(&gateway, "the event is handled unprotected");
}

/// Waits for a log line that proves the path was taken; the log is searched when the gateway ends.
fn took_path(gateway: &Gateway, proof: &str) {
    eventually(proof, || gateway.log().contains(proof));
}

/// Posts a signed body, and searches the response.
fn signed(address: &str, body: &str) -> (u16, String) {
    let request = HttpRequest::new(address, "POST", "/line/webhook").body(body.as_bytes());
    let answer = request.header("x-line-signature", &secrets().sign(body.as_bytes())).send();
    let text = answer.text();
    hapax_testkit::keep_log("line", &text);
    leaks::check(&text, &leaks::Tokens::default());
    (answer.status, text)
}

#[tokio::test(flavor = "multi_thread")]
async fn line_start_error_shows_no_secret() {
    let scene = Scene::on(TestStore::memory()).await;
    for (name, value) in [
        ("LINE_CHANNEL_SECRET", "a-food-a,b-food-b,c-food-c"),
        ("LINE_CHANNEL_ACCESS_TOKEN", "a -food- b"),
        ("LINE_CHANNEL_SECRET", ""),
    ] {
        assert!(scene.gateway().env(name, value).refused().contains(name));
    }
    let rules = scene.gateway().rules("[[rule]]\nevent = \"follow\"\nguard = \"mutex\"");
    assert!(rules.refused().contains("rule 1"));
}
