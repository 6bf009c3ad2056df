//! `hapax line simulate` against a bot of a few lines.

use std::collections::HashSet;
use std::io::Write;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::cli_support::{Ran, WAIT_TIMEOUT, hapax, run};
use crate::support::has;
use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::routing::post;
use hapax_line::{
    ChannelSecrets, EventKind, LineClient, LineEvent, LineMessage, SIGNATURE_HEADER, WebhookBody,
};
use hapax_testkit::free_port;
use tokio::net::TcpListener;

const TEST_USER: &str = "Uf00d0000000000000000000000000042";

/// The behaviour of a bot.
#[derive(Clone, Copy, PartialEq)]
enum Behaviour {
    /// Replies to each event once.
    Good,
    /// The same as `Good`, a while after the response to the webhook.
    Late,
    /// Uses each token twice.
    RepliesTwice,
    /// Pushes to the sender, also in standby.
    Pushes,
    /// Sends nothing.
    Silent,
    /// Answers with this status, and sends nothing.
    Answers(u16),
}

/// A bot that sends everything before it answers the webhook (except for the late one), so that the
/// output does not depend on time.
struct Bot {
    secrets: ChannelSecrets,
    api: String,
    access_token: String,
    behaviour: Behaviour,
    seen: Mutex<HashSet<String>>,
}

impl Bot {
    async fn take(self: &Arc<Self>, signature: &str, body: &[u8]) -> StatusCode {
        if !self.secrets.verify(body, signature) {
            return StatusCode::UNAUTHORIZED;
        }
        if let Behaviour::Answers(status) = self.behaviour {
            return StatusCode::from_u16(status).unwrap();
        }
        for event in WebhookBody::parse(body).expect("a webhook").events {
            let id = event.json()["webhookEventId"].as_str().expect("an id").to_owned();
            let new = self.seen.lock().unwrap().insert(id);
            if new && self.behaviour == Behaviour::Late {
                let bot = self.clone();
                tokio::spawn(async move {
                    tokio::time::sleep(Duration::from_millis(300)).await;
                    bot.answer(&event).await;
                });
            } else if new {
                self.answer(&event).await;
            }
        }
        StatusCode::OK
    }

    async fn answer(&self, event: &LineEvent) {
        // A new client each time: a pooled connection may lead to a simulator that has ended.
        let line = LineClient::new(&self.api, &self.access_token).unwrap().timeout(WAIT_TIMEOUT);
        let about = event.text().or(event.postback()).unwrap_or("…");
        let message = [LineMessage::text(format!("收到 {}: {about}", event.kind()))];
        if let (Behaviour::Pushes, Some(user)) = (self.behaviour, event.user_id()) {
            let _ = line.show_loading(user, 5).await;
            let key = event.id(&hapax::Tenant::default()).0;
            line.push(user, &message, key).await.expect("it is taken");
        }
        let times = match self.behaviour {
            Behaviour::Good | Behaviour::Late => 1,
            Behaviour::RepliesTwice => 2,
            _ => 0,
        };
        for token in std::iter::repeat_n(event.reply_token(), times).flatten() {
            let _ = line.reply(token, &message).await;
        }
    }
}

/// A listening bot, and the address of the simulator's API.
struct SimulatedBot {
    webhook: String,
    api: String,
}

impl SimulatedBot {
    async fn with(behaviour: Behaviour) -> Self {
        Self::with_token(behaviour, "simulated-token").await
    }

    async fn with_token(behaviour: Behaviour, access_token: &str) -> Self {
        let api = format!("127.0.0.1:{}", free_port());
        let bot = Bot {
            secrets: ChannelSecrets::new("simulated-secret").unwrap(),
            api: format!("http://{api}"),
            access_token: access_token.into(),
            behaviour,
            seen: Mutex::default(),
        };
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let webhook = format!("http://{}/line/webhook", listener.local_addr().unwrap());
        let take = async |State(bot): State<Arc<Bot>>, headers: HeaderMap, body: Bytes| {
            let signature = headers.get(SIGNATURE_HEADER).map(|value| value.to_str().unwrap());
            bot.take(signature.unwrap_or_default(), &body).await
        };
        let router = Router::new().route("/line/webhook", post(take)).with_state(Arc::new(bot));
        tokio::spawn(async move { axum::serve(listener, router).await });
        Self { webhook, api }
    }

    fn simulate(&self, arguments: &[&str]) -> Command {
        // The replies come before the response to the webhook.
        self.waiting("1ms", arguments)
    }

    fn waiting(&self, wait: &str, arguments: &[&str]) -> Command {
        let mut command = hapax();
        command.env_remove("LINE_CHANNEL_SECRET").env_remove("LINE_CHANNEL_ACCESS_TOKEN");
        command.args(["line", "simulate", "--to", &self.webhook, "--api", &self.api]);
        command.args(["--wait", wait, "--user", TEST_USER]).args(arguments);
        command
    }

    fn run(&self, arguments: &[&str]) -> Ran {
        run(&mut self.simulate(arguments))
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn simulate_shows_webhooks_and_replies() {
    let bot = SimulatedBot::with(Behaviour::Good).await;
    let base = format!("LINE_API_BASE=http://{}", bot.api);
    let out = bot.run(&["text", "台北 🥚"]).ok();
    has(
        &out,
        &[&base, "LINE_CHANNEL_SECRET=simulated-secret", "→ text: 台北 🥚\n", "    200, after "],
    );
    has(
        &out,
        &["  ← reply to the text: 收到 text: 台北 🥚\n", "webhooks: 200, the slowest after "],
    );
    has(&out, &["said: 1 reply, 0 pushes, 0 loading animations"]);
    has(&bot.run(&["location", "-33.9,151.2"]).ok(), &["→ location -33.9,151.2", "收到 location"]);
    has(&bot.run(&["postback", "action=settings"]).ok(), &["收到 postback: action=settings"]);
    has(&bot.run(&["follow"]).ok(), &["← reply to the follow: 收到 follow"]);
    has(&bot.run(&["unfollow"]).ok(), &["200, after ", "said: 0 replies"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn simulate_sends_taps_copies_and_batches_like_line() {
    let bot = SimulatedBot::with(Behaviour::Good).await;
    let taps = bot.run(&["double-tap", "--taps", "3", "action=weather&type=office"]).ok();
    has(&taps, &["3 × 200, the last after ", "reply to the tap 1: ", "reply to the tap 3: "]);
    has(&taps, &["    3 × 收到 postback: action=weather&type=office\n"]);
    let copies = bot.run(&["redelivery", "--copies", "7", "高雄 🥚"]).ok();
    has(&copies, &["7 × 200", "said: 1 reply"]);
    let batch = bot.run(&["batch"]).ok();
    has(&batch, &["    200, after ", "reply to the first text: ", "reply to the unknown event: "]);
    has(&batch, &["reply to the other user's text: ", "said: 4 replies"]);
    let all = bot.run(&["all"]).ok();
    has(
        &all,
        &[
            "    1 × 收到 sticker: …\n",
            "→ memberJoined\n",
            "→ somethingNew\n",
            "reply to the sticker: 收到 sticker",
        ],
    );
    assert_eq!(all.matches("→ ").count(), EventKind::all().count(), "{all}");
    let tour = bot.run(&[]).ok();
    has(&tour, &["A double tap", "20 × 200", "→ text, in standby", "→ unfollow"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn simulate_chat_sends_typed_lines() {
    let bot = SimulatedBot::with(Behaviour::Good).await;
    let typed = "早安 🥚\n\n/tap 2 action=x\n/location 25,121\n/postback action=y\n/wat\n/quit\nafterwards\n";
    let out = typing(bot.simulate(&["chat"]), typed);
    has(&out, &["收到 text: 早安 🥚", "reply to the tap 2: 收到 postback: action=x"]);
    has(&out, &["收到 location: …", "收到 postback: action=y", "webhooks: 5 × 200"]);
    // The help is shown at the start, and after an unknown command.
    assert_eq!(out.matches("/postback action=…").count(), 2, "{out}");
    assert!(!out.contains("afterwards"), "{out}");
}

#[tokio::test(flavor = "multi_thread")]
async fn simulate_chat_from_a_pipe_waits_for_each_reply() {
    let bot = SimulatedBot::with(Behaviour::Late).await;
    let out = typing(bot.waiting("60s", &["chat"]), "早 🥚\n晚 🥚\n");
    let place =
        |part: &str| out.find(part).unwrap_or_else(|| panic!("{part} is missing in\n{out}"));
    assert!(place("收到 text: 早 🥚") < place("→ text: 晚 🥚"), "{out}");
    has(&out, &["收到 text: 晚 🥚", "said: 2 replies"]);
}

/// The output of a chat into which these lines are piped.
fn typing(mut chat: Command, typed: &str) -> String {
    let mut child = chat.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(typed.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    let out = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{out}");
    out
}

#[tokio::test(flavor = "multi_thread")]
async fn simulate_explains_a_wrong_secret() {
    let bot = SimulatedBot::with(Behaviour::Good).await;
    let ran = bot.run(&[]);
    has(&ran.ok(), &["said: "]);
    let ran = run(bot.simulate(&[]).env("LINE_CHANNEL_SECRET", "f00d-secret"));
    let hint = ran.failed(1);
    has(&hint, &["401", "that of LINE_CHANNEL_SECRET here", "start both with the same"]);
    assert!(!format!("{hint}{}", ran.out()).contains("f00d-secret"), "a secret is shown");
    // The tour ends there, as every further webhook would fail.
    assert_eq!(ran.out().matches("→ ").count(), 1, "{}", ran.out());
    let ran = run(bot.simulate(&["follow"]).env("LINE_CHANNEL_SECRET", "new,simulated-secret"));
    has(&ran.failed(1), &["401"]);
    let ran = run(bot.simulate(&["follow"]).env("LINE_CHANNEL_SECRET", "simulated-secret,old"));
    has(&ran.ok(), &["200"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn simulate_explains_an_unreachable_bot() {
    let nobody = SimulatedBot {
        webhook: format!("http://127.0.0.1:{}/line/webhook", free_port()),
        api: format!("127.0.0.1:{}", free_port()),
    };
    for scenario in [&["text", "🥚"][..], &[]] {
        let ran = nobody.run(scenario);
        let hint = format!("nothing listens at {} (connection refused)", nobody.webhook);
        has(&ran.failed(1), &[&hint, "--to"]);
    }
    let ran = run(hapax().args(["line", "simulate", "--to", "localhost:1", "follow"]));
    has(&ran.failed(1), &["--to: a URL such as http://127.0.0.1:8789/line/webhook is expected"]);
    let taken = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let taken = taken.local_addr().unwrap().to_string();
    let ran = run(hapax().args(["line", "simulate", "--api", &taken, "follow"]));
    has(&ran.failed(1), &[&format!("--api {taken}"), "cannot listen"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn simulate_explains_a_silent_bot() {
    let bot = SimulatedBot::with(Behaviour::Silent).await;
    let ran = bot.run(&["text", "🥚"]);
    ran.ok();
    has(&ran.err(), &[&format!("was it started with LINE_API_BASE=http://{}?", bot.api)]);
    let err = bot.run(&["unfollow"]).err();
    assert!(!err.contains("LINE_API_BASE"), "there is no answer to that: {err}");
}

#[tokio::test(flavor = "multi_thread")]
async fn simulate_reports_calls_that_line_would_refuse() {
    let twice = SimulatedBot::with(Behaviour::RepliesTwice).await;
    let ran = twice.run(&["text", "🥚"]);
    has(&ran.failed(1), &["LINE would have refused something: "]);
    has(&ran.out(), &["✗ LINE would have refused: ", "said: 1 reply"]);

    let stranger = SimulatedBot::with_token(Behaviour::Good, "another-token").await;
    let hint = stranger.run(&["text", "🥚"]).failed(1);
    has(&hint, &["access token", "`simulated-token`, for want of LINE_CHANNEL_ACCESS_TOKEN"]);
    let told =
        run(stranger.simulate(&["text", "🥚"]).env("LINE_CHANNEL_ACCESS_TOKEN", "another-token"));
    has(&told.ok(), &["收到 text: 🥚"]);

    let pushes = SimulatedBot::with(Behaviour::Pushes).await;
    let ran = pushes.run(&["text", "🥚"]);
    has(&ran.ok(), &["  ← loading animation, 5 s\n", "  ← push: 收到 text: 🥚\n"]);
    has(&pushes.run(&["standby"]).failed(1), &["something was sent to a chat that is in standby"]);

    for (status, hint) in [(404, "--to says where"), (500, "LINE expects 200"), (503, "store")] {
        let bot = SimulatedBot::with(Behaviour::Answers(status)).await;
        let ran = bot.run(&["text", "🥚"]);
        has(&ran.failed(1), &[&status.to_string(), hint]);
        has(&ran.out(), &[&format!("    {status}, after ")]);
    }
}

#[test]
fn simulate_help_says_how_to_start_the_bot() {
    let help = run(hapax().args(["line", "simulate", "--help"])).ok();
    has(&help, &["LINE_API_BASE=http://127.0.0.1:8790", "`simulated-secret`", "127.0.0.1:8790]"]);
    has(&help, &["Examples:\n  hapax line simulate", "Exit codes:"]);
    run(hapax().args(["line", "simulate", "--wait", "1h", "follow"])).failed(2);
    run(hapax().args(["line", "simulate", "location", "91,0"])).failed(2);
    run(hapax().args(["line", "simulate", "double-tap", "--taps", "0"])).failed(2);
}
