//! Sends webhooks and listens to what is said, at the same time.

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

use super::hints::Setting;
use super::{SimulateArgs, Webhook, spoken};
use crate::client::{print_line as line, print_note as note};

/// The bot's own id.
const DESTINATION: &str = "Uf00db070000000000000000000000000";
/// How long it is quiet after all is answered: locks are free again, and windows closed.
const PAUSE: Duration = Duration::from_millis(1100);
/// Longer than anybody waits.
const FOREVER: Duration = Duration::from_secs(86_400);

pub(super) struct Desk {
    sender: WebhookSender,
    api: SimulatedApi,
    user: String,
    wait: Duration,
    setting: Setting,
    /// What an event is called, by its reply token.
    names: HashMap<String, String>,
    /// How often something was said since the counts were last told.
    heard: BTreeMap<String, usize>,
    /// To whom nothing may be said.
    silent: Option<String>,
    answerable: usize,
    statuses: BTreeMap<String, usize>,
    slowest: Duration,
    hopeless: bool,
    broke_silence: bool,
    /// How much of what the API refused was told.
    refused: usize,
    hints: Vec<String>,
}

impl Desk {
    /// Starts the API, and says how a bot finds it.
    pub(super) async fn open(args: &SimulateArgs) -> anyhow::Result<Self> {
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
        let setting = Setting {
            to: args.to.clone(),
            own_secret: secret.is_some(),
            own_token: token.is_some(),
            base: api.base(),
        };
        introduce(&setting);
        Ok(Self {
            sender,
            api,
            user: args.user.clone(),
            wait: args.wait,
            setting,
            names: HashMap::new(),
            heard: BTreeMap::new(),
            silent: None,
            answerable: 0,
            statuses: BTreeMap::new(),
            slowest: Duration::ZERO,
            hopeless: false,
            broke_silence: false,
            refused: 0,
            hints: Vec::new(),
        })
    }

    pub(super) fn user(&self) -> &str {
        &self.user
    }

    /// Whether all else would fail as well.
    pub(super) fn is_hopeless(&self) -> bool {
        self.hopeless
    }

    /// Whatever is said to this user is a mistake.
    pub(super) fn expect_silence(&mut self, user: String) {
        self.silent = Some(user);
    }

    /// Sends webhooks at the same time, and says how many answers they may have.
    pub(super) async fn send(&mut self, what: &str, webhooks: Vec<Webhook>) -> usize {
        line(format_args!("→ {what}"));
        let known = self.names.len();
        for (name, event) in webhooks.iter().flatten() {
            if let Some(token) = event["replyToken"].as_str() {
                self.names.insert(token.into(), name.clone());
            }
        }
        let answers = self.names.len() - known;
        self.answerable += answers;
        let sender = self.sender.clone();
        let sending = webhooks.into_iter().map(|webhook| deliver(&sender, webhook));
        let delivered = self.hearing(join_all(sending)).await;
        self.note_answers(&delivered);
        answers
    }

    /// What was said until now is not counted with what comes.
    pub(super) fn count_anew(&mut self) {
        self.heard.clear();
    }

    /// Listens: for as long as the user wants to wait, or until so many answers came.
    pub(super) async fn listen(&mut self, answers: Option<usize>) {
        let mut until = Instant::now() + self.wait;
        loop {
            let heard: usize = self.heard.values().sum();
            if answers.is_some_and(|answers| heard >= answers) || self.hopeless {
                until = until.min(Instant::now() + PAUSE);
            }
            let left = until.saturating_duration_since(Instant::now());
            let Some(said) = self.api.next(left).await else { break };
            self.hear(&said);
        }
        self.tell_counts();
        self.complain();
    }

    /// Shows what is said while something else is done.
    pub(super) async fn hearing<T>(&mut self, work: impl Future<Output = T>) -> T {
        let mut work = pin!(work);
        loop {
            let said = tokio::select! {
                said = self.api.next(FOREVER) => said,
                done = &mut work => return done,
            };
            if let Some(said) = said {
                self.hear(&said);
            }
        }
    }

    fn hear(&mut self, said: &AcceptedCall) {
        let how = spoken::endpoint(said);
        if said.endpoint == ApiEndpoint::Loading {
            line(format_args!("  ← {how}, {} s", said.loading_seconds.unwrap_or_default()));
        } else {
            let answered = said.reply_token.as_ref().and_then(|token| self.names.get(token));
            let of = answered.map(|name| format!(" to the {name}")).unwrap_or_default();
            let text = spoken::messages(said).join("\n      ");
            line(format_args!("  ← {how}{of}: {text}"));
            *self.heard.entry(text).or_default() += 1;
        }
        if said.to.is_some() && said.to == self.silent {
            self.hint("something was sent to a chat that is in standby".into());
            self.broke_silence = true;
        }
    }

    fn note_answers(&mut self, delivered: &[Result<WebhookResponse, WebhookSendError>]) {
        let mut counts = BTreeMap::<String, usize>::new();
        let mut slowest = Duration::ZERO;
        self.hopeless = false;
        for answer in delivered {
            let shown = match answer {
                Ok(WebhookResponse { status, took }) => {
                    slowest = slowest.max(*took);
                    status.to_string()
                }
                Err(failed) => failed.to_string(),
            };
            *counts.entry(shown).or_default() += 1;
            self.hopeless |= matches!(
                answer,
                Err(WebhookSendError::NotReached(_))
                    | Ok(WebhookResponse { status: 401 | 404, .. })
            );
            if let Some(hint) = self.setting.about(*answer) {
                self.hint(hint);
            }
        }
        let when = if delivered.len() > 1 { "the last after" } else { "after" };
        line(format_args!("    {}", timed(&counts, when, slowest)));
        self.slowest = self.slowest.max(slowest);
        for (shown, count) in counts {
            *self.statuses.entry(shown).or_default() += count;
        }
    }

    /// Where several things were said, which ones.
    fn tell_counts(&mut self) {
        if self.heard.values().sum::<usize>() > 1 {
            line("  in all:");
            for (text, count) in &self.heard {
                line(format_args!("    {count} × {text}"));
            }
        }
        self.heard.clear();
    }

    /// What the API refused since the last time.
    pub(super) fn complain(&mut self) {
        let violations = self.api.violations();
        for why in &violations[self.refused..] {
            line(format_args!("  ✗ LINE would have refused: {why}"));
            let hint = self.setting.about_violation(why);
            self.hint(format!("LINE would have refused something: {hint}"));
        }
        self.refused = violations.len();
    }

    fn hint(&mut self, hint: String) {
        if !self.hints.contains(&hint) {
            self.hints.push(hint);
        }
    }

    /// The end: what became of it all, and what to do about it.
    pub(super) fn sum_up(mut self) -> ExitCode {
        self.complain();
        let said = self.api.accepted_calls();
        let count = |endpoint| said.iter().filter(|said| said.endpoint == endpoint).count();
        let webhooks = timed(&self.statuses, "the slowest after", self.slowest);
        line(format_args!("\nwebhooks: {webhooks}"));
        line(format_args!(
            "said: {}, {}, {}",
            number(count(ApiEndpoint::Reply), "reply", "replies"),
            number(count(ApiEndpoint::Push), "push", "pushes"),
            number(count(ApiEndpoint::Loading), "loading animation", "loading animations"),
        ));
        let all_taken = self.statuses.keys().all(|status| status == "200");
        if all_taken && self.answerable > 0 && said.is_empty() && self.refused == 0 {
            self.hint(self.setting.about_silence());
        }
        for hint in &self.hints {
            note(format_args!("hapax: {hint}"));
        }
        if all_taken && self.refused == 0 && !self.broke_silence {
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

/// `2 × 200, 1 × 503`; one alone is only named.
fn counted(counts: &BTreeMap<String, usize>) -> String {
    if counts.values().sum::<usize>() == 1 {
        return counts.keys().cloned().collect();
    }
    let parts: Vec<_> = counts.iter().map(|(what, count)| format!("{count} × {what}")).collect();
    if parts.is_empty() { "none".into() } else { parts.join(", ") }
}

/// With the time, where there was an answer that took some.
fn timed(counts: &BTreeMap<String, usize>, when: &str, took: Duration) -> String {
    match took.is_zero() {
        true => counted(counts),
        false => format!("{}, {when} {} ms", counted(counts), took.as_millis()),
    }
}

/// How a bot finds all this.
fn introduce(setting: &Setting) {
    let shown = |own: bool, simulated: &'static str| if own { "(as here)" } else { simulated };
    line("LINE is simulated here: nothing reaches the real one.");
    line(format_args!("  webhooks go to      {}", setting.to));
    line(format_args!("  LINE's API is at    {}", setting.base));
    line("Start the bot, and `hapax line` where it stands before it, with");
    line(format_args!("  LINE_CHANNEL_SECRET={}", shown(setting.own_secret, "simulated-secret")));
    line(format_args!(
        "  LINE_CHANNEL_ACCESS_TOKEN={}",
        shown(setting.own_token, "simulated-token")
    ));
    line(format_args!("  LINE_API_BASE={}\n", setting.base));
}
