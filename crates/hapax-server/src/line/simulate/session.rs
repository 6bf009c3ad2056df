//! One run of the simulator: sends webhooks, and shows the calls of the bot at the same time.

use std::collections::{BTreeMap, HashMap};
use std::pin::pin;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use futures_util::future::join_all;
use hapax_line::ChannelSecrets;
use hapax_line::simulator::{
    AcceptedCall, ApiEndpoint, SimulatedApi, WebhookResponse, WebhookSendError, WebhookSender,
};
use serde_json::Value;
use tokio::time::Instant;

use super::hints::SimulatorSetup;
use super::{SimulateArgs, Webhook};
use crate::client::{print_line as line, print_note as note};

const DESTINATION: &str = "Uf00db070000000000000000000000000";
/// The pause after the last expected reply, in which locks are released and windows end.
const PAUSE: Duration = Duration::from_millis(1100);
/// Longer than any wait.
const FOREVER: Duration = Duration::from_secs(86_400);

pub(super) struct SimulatorSession {
    sender: WebhookSender,
    api: SimulatedApi,
    user: String,
    wait: Duration,
    setup: SimulatorSetup,
    seen: SessionState,
}

#[derive(Default)]
struct SessionState {
    /// The label of each event, by its reply token.
    names: HashMap<String, String>,
    /// How often each text was sent since the counts were last printed.
    text_counts: BTreeMap<String, usize>,
    /// The user in standby, to whom nothing may be sent.
    standby_user: Option<String>,
    expected_replies: usize,
    statuses: BTreeMap<String, usize>,
    slowest: Duration,
    cannot_continue: bool,
    sent_in_standby: bool,
    /// How many violations were reported.
    reported_violations: usize,
    hints: Vec<String>,
}

impl SimulatorSession {
    /// Starts the simulated API, and prints how a bot finds it.
    pub(super) async fn start(args: &SimulateArgs) -> anyhow::Result<Self> {
        let own = |name| std::env::var(name).ok().filter(|text| !text.is_empty());
        let secret = own("LINE_CHANNEL_SECRET");
        let token = own("LINE_CHANNEL_ACCESS_TOKEN");
        let secrets = ChannelSecrets::new(secret.as_deref().unwrap_or("simulated-secret"))
            .context("LINE_CHANNEL_SECRET")?;
        let sender = WebhookSender::new(&args.to, &secrets, DESTINATION).map_err(|_| {
            anyhow::anyhow!("--to: a URL such as http://127.0.0.1:8789/line/webhook is expected")
        })?;
        let api = SimulatedApi::start(&args.api, token.as_deref().unwrap_or("simulated-token"))
            .await
            .with_context(|| format!("--api {}: the simulated LINE API cannot listen", args.api))?;
        let setup = SimulatorSetup {
            to: args.to.clone(),
            own_secret: secret.is_some(),
            own_token: token.is_some(),
            base: api.base(),
        };
        print_setup(&setup);
        let (user, wait) = (args.user.clone(), args.wait);
        Ok(Self { sender, api, user, wait, setup, seen: SessionState::default() })
    }

    pub(super) fn user(&self) -> &str {
        &self.user
    }

    /// Whether every further webhook would fail as well.
    pub(super) fn cannot_continue(&self) -> bool {
        self.seen.cannot_continue
    }

    /// Counts every message to this user as a mistake.
    pub(super) fn forbid_messages_to(&mut self, user: String) {
        self.seen.standby_user = Some(user);
    }

    /// Sends webhooks at the same time, and returns how many replies they may have.
    pub(super) async fn send(&mut self, label: &str, webhooks: Vec<Webhook>) -> usize {
        line(format_args!("→ {label}"));
        let known = self.seen.names.len();
        for (name, event) in webhooks.iter().flatten() {
            if let Some(token) = event["replyToken"].as_str() {
                self.seen.names.insert(token.into(), name.clone());
            }
        }
        let replies = self.seen.names.len() - known;
        self.seen.expected_replies += replies;
        let sender = self.sender.clone();
        let sending = webhooks.into_iter().map(|webhook| deliver(&sender, webhook));
        let responses = self.show_calls_during(join_all(sending)).await;
        self.record_responses(&responses);
        replies
    }

    pub(super) fn reset_counts(&mut self) {
        self.seen.text_counts.clear();
    }

    /// Waits for replies: for `--wait`, or shortly after this number of them came.
    pub(super) async fn wait_for_replies(&mut self, expected: Option<usize>) {
        let mut until = Instant::now() + self.wait;
        loop {
            let received: usize = self.seen.text_counts.values().sum();
            if expected.is_some_and(|expected| received >= expected) || self.seen.cannot_continue {
                until = until.min(Instant::now() + PAUSE);
            }
            let left = until.saturating_duration_since(Instant::now());
            let Some(call) = self.api.next(left).await else { break };
            self.show_call(&call);
        }
        self.print_counts();
        self.report_violations();
    }

    /// Shows the calls of the bot while other work runs.
    pub(super) async fn show_calls_during<T>(&mut self, work: impl Future<Output = T>) -> T {
        let mut work = pin!(work);
        loop {
            let call = tokio::select! {
                call = self.api.next(FOREVER) => call,
                done = &mut work => return done,
            };
            if let Some(call) = call {
                self.show_call(&call);
            }
        }
    }

    fn show_call(&mut self, call: &AcceptedCall) {
        let how = endpoint_name(call);
        if call.endpoint == ApiEndpoint::Loading {
            line(format_args!("  ← {how}, {} s", call.loading_seconds.unwrap_or_default()));
        } else {
            let answered = call.reply_token.as_ref().and_then(|token| self.seen.names.get(token));
            let of = answered.map(|name| format!(" to the {name}")).unwrap_or_default();
            let text = shown_messages(call).join("\n      ");
            line(format_args!("  ← {how}{of}: {text}"));
            *self.seen.text_counts.entry(text).or_default() += 1;
        }
        if call.to.is_some() && call.to == self.seen.standby_user {
            self.add_hint("something was sent to a chat that is in standby".into());
            self.seen.sent_in_standby = true;
        }
    }

    fn record_responses(&mut self, responses: &[Result<WebhookResponse, WebhookSendError>]) {
        let mut counts = BTreeMap::<String, usize>::new();
        let mut slowest = Duration::ZERO;
        self.seen.cannot_continue = false;
        for response in responses {
            let shown = match response {
                Ok(WebhookResponse { status, took }) => {
                    slowest = slowest.max(*took);
                    status.to_string()
                }
                Err(failed) => failed.to_string(),
            };
            *counts.entry(shown).or_default() += 1;
            self.seen.cannot_continue |= matches!(
                response,
                Err(WebhookSendError::NotReached(_))
                    | Ok(WebhookResponse { status: 401 | 404, .. })
            );
            if let Some(hint) = self.setup.about(*response) {
                self.add_hint(hint);
            }
        }
        let when = if responses.len() > 1 { "the last after" } else { "after" };
        line(format_args!("    {}", timed(&counts, when, slowest)));
        self.seen.slowest = self.seen.slowest.max(slowest);
        for (shown, count) in counts {
            *self.seen.statuses.entry(shown).or_default() += count;
        }
    }

    /// Prints how often each text was sent, where there were several.
    fn print_counts(&mut self) {
        if self.seen.text_counts.values().sum::<usize>() > 1 {
            line("  in all:");
            for (text, count) in &self.seen.text_counts {
                line(format_args!("    {count} × {text}"));
            }
        }
        self.seen.text_counts.clear();
    }

    /// Reports the calls that LINE would have refused since the last report.
    pub(super) fn report_violations(&mut self) {
        let violations = self.api.violations();
        for why in &violations[self.seen.reported_violations..] {
            line(format_args!("  ✗ LINE would have refused: {why}"));
            let hint = self.setup.about_violation(why);
            self.add_hint(format!("LINE would have refused something: {hint}"));
        }
        self.seen.reported_violations = violations.len();
    }

    fn add_hint(&mut self, hint: String) {
        if !self.seen.hints.contains(&hint) {
            self.seen.hints.push(hint);
        }
    }

    pub(super) fn finish(mut self) -> ExitCode {
        self.report_violations();
        let calls = self.api.accepted_calls();
        let count = |endpoint| calls.iter().filter(|call| call.endpoint == endpoint).count();
        let webhooks = timed(&self.seen.statuses, "the slowest after", self.seen.slowest);
        line(format_args!("\nwebhooks: {webhooks}"));
        line(format_args!(
            "said: {}, {}, {}",
            number(count(ApiEndpoint::Reply), "reply", "replies"),
            number(count(ApiEndpoint::Push), "push", "pushes"),
            number(count(ApiEndpoint::Loading), "loading animation", "loading animations"),
        ));
        let all_taken = self.seen.statuses.keys().all(|status| status == "200");
        if all_taken
            && self.seen.expected_replies > 0
            && calls.is_empty()
            && self.seen.reported_violations == 0
        {
            self.add_hint(self.setup.about_silence());
        }
        for hint in &self.seen.hints {
            note(format_args!("hapax: {hint}"));
        }
        if all_taken && self.seen.reported_violations == 0 && !self.seen.sent_in_standby {
            ExitCode::SUCCESS
        } else {
            ExitCode::FAILURE
        }
    }
}

async fn deliver(
    sender: &WebhookSender,
    webhook: Webhook,
) -> Result<WebhookResponse, WebhookSendError> {
    let events: Vec<Value> = webhook.into_iter().map(|(_, event)| event).collect();
    sender.send(&events).await
}

fn number(count: usize, one: &str, several: &str) -> String {
    format!("{count} {}", if count == 1 { one } else { several })
}

/// `2 × 200, 1 × 503`; a single one without its count.
fn counted(counts: &BTreeMap<String, usize>) -> String {
    if counts.values().sum::<usize>() == 1 {
        return counts.keys().cloned().collect();
    }
    let parts: Vec<_> = counts.iter().map(|(what, count)| format!("{count} × {what}")).collect();
    if parts.is_empty() { "none".into() } else { parts.join(", ") }
}

/// Counts with the time of the slowest response.
fn timed(counts: &BTreeMap<String, usize>, when: &str, took: Duration) -> String {
    match took.is_zero() {
        true => counted(counts),
        false => format!("{}, {when} {} ms", counted(counts), took.as_millis()),
    }
}

fn print_setup(setup: &SimulatorSetup) {
    let shown = |own: bool, simulated: &'static str| if own { "(as here)" } else { simulated };
    line("LINE is simulated here: nothing reaches the real one.");
    line(format_args!("  webhooks go to      {}", setup.to));
    line(format_args!("  LINE's API is at    {}", setup.base));
    line("Start the bot, and `hapax line` where it stands before it, with");
    line(format_args!("  LINE_CHANNEL_SECRET={}", shown(setup.own_secret, "simulated-secret")));
    line(format_args!("  LINE_CHANNEL_ACCESS_TOKEN={}", shown(setup.own_token, "simulated-token")));
    line(format_args!("  LINE_API_BASE={}\n", setup.base));
}

/// Each message as text; a loading animation has none.
fn shown_messages(call: &AcceptedCall) -> Vec<String> {
    call.messages.iter().map(message).collect()
}

fn endpoint_name(call: &AcceptedCall) -> &'static str {
    match call.endpoint {
        ApiEndpoint::Reply => "reply",
        ApiEndpoint::Push => "push",
        ApiEndpoint::Loading => "loading animation",
    }
}

/// The text of a text message, else the type and the alternative text; then the buttons.
fn message(message: &Value) -> String {
    let kind = message["type"].as_str().unwrap_or_default();
    let mut shown = match (kind, message["text"].as_str(), message["altText"].as_str()) {
        ("text", Some(text), _) => text.to_owned(),
        (_, _, Some(instead)) => format!("({kind}) {instead}"),
        _ => format!("({kind})"),
    };
    for item in message["quickReply"]["items"].as_array().into_iter().flatten() {
        let label = item["action"]["label"].as_str().unwrap_or_default();
        shown.push_str(&format!(" [{label}]"));
    }
    printable(&shown)
}

/// Removes control characters, which could move the cursor, and indents further lines.
fn printable(text: &str) -> String {
    let text: String = text.chars().filter(|c| *c == '\n' || !c.is_control()).collect();
    text.replace('\n', "\n      ")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn messages_are_shown_with_buttons_without_escapes() {
        let text = json!({ "type": "text", "text": "晴\u{1b}[31m\n25 °C" });
        assert_eq!(message(&text), "晴[31m\n      25 °C");
        let items = json!({ "items": [{ "action": { "label": "住家" } }, { "action": {} }] });
        let flex = json!({ "type": "flex", "altText": "天氣", "quickReply": items });
        assert_eq!(message(&flex), "(flex) 天氣 [住家] []");
        assert_eq!(message(&json!({ "type": "sticker" })), "(sticker)");
    }
}
