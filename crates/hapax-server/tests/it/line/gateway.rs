//! `hapax line`, the real binary. Its whole output is searched for personal data.

use std::io::ErrorKind;
use std::process::Command;
use std::sync::{Mutex, PoisonError};

use bytes::Bytes;
use hapax_line::ChannelSecrets;
use hapax_line::simulator::{WebhookResponse, WebhookSendError, WebhookSender};
use serde_json::Value;
use tempfile::TempDir;

use crate::cli_support::run;
use crate::line::harness::{ACCESS_TOKEN, DESTINATION, LIMIT, Scene};
use crate::line::leaks::{self, Tokens};
use crate::support::http::{HttpRequest, HttpResponse};
use crate::support::{HapaxProcess, eventually};

/// The command line of a gateway.
pub(crate) struct Start<'a> {
    scene: &'a Scene,
    command: Command,
    listen: String,
    store: Option<String>,
    path: String,
    patient: bool,
    level: &'static str,
    folder: TempDir,
}

impl<'a> Start<'a> {
    pub(crate) fn new(scene: &'a Scene) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let mut command = Command::new(env!("CARGO_BIN_EXE_hapax"));
        command.arg("line").current_dir(folder.path()).env_clear();
        command.env("LINE_CHANNEL_SECRET", scene.secret);
        command.env("LINE_CHANNEL_ACCESS_TOKEN", ACCESS_TOKEN);
        command.env("LINE_API_BASE", scene.line.base());
        let (listen, path) = ("127.0.0.1:0".into(), "/bot".into());
        let store = Some(scene.store_url.clone());
        Self { scene, command, listen, store, path, patient: true, level: "debug", folder }
    }

    pub(crate) fn flags(mut self, flags: &[&str]) -> Self {
        self.command.args(flags);
        self
    }

    pub(crate) fn env(mut self, name: &str, value: &str) -> Self {
        self.command.env(name, value);
        self
    }

    /// Locks that are held for longer than any machine stalls.
    pub(crate) fn long_locks(self) -> Self {
        self.env("PROCESSING_LOCK_TIMEOUT_SECONDS", "300")
    }

    pub(crate) fn rules(mut self, toml: &str) -> Self {
        let file = self.folder.path().join("rules.toml");
        std::fs::write(&file, toml).expect("written");
        self.command.arg("--rules").arg(file);
        self
    }

    pub(crate) fn port(mut self, port: u16) -> Self {
        self.listen = format!("127.0.0.1:{port}");
        self
    }

    /// Sets a store other than the scene's, or none.
    pub(crate) fn store(mut self, store: Option<&str>) -> Self {
        self.store = store.map(str::to_owned);
        self
    }

    /// Sets the path of the bot's URL.
    pub(crate) fn path(mut self, path: &str) -> Self {
        self.path = path.to_owned();
        self
    }

    /// Uses the default timeouts. The longer timeouts of other tests keep a stalled disk from
    /// looking like an unavailable store, and a stalled test from looking like a bot that hangs.
    pub(crate) fn impatient(mut self) -> Self {
        self.patient = false;
        self
    }

    /// Logs at the level `trace`.
    pub(crate) fn talkative(mut self) -> Self {
        self.level = "trace";
        self
    }

    fn complete(&mut self) -> &mut Command {
        if self.patient {
            self.command.args(["--store-timeout", "30s", "--handle-timeout", "300s"]);
        }
        self.command.args(["--log", "json", "--log-level", self.level, "--listen", &self.listen]);
        self.command.args(["--upstream", &self.scene.bot.url(&self.path)]);
        if let Some(store) = &self.store {
            self.command.args(["--store", store]);
        }
        &mut self.command
    }

    /// Starts a gateway that must refuse to, and returns its error.
    pub(crate) fn refused(mut self) -> String {
        let ran = run(self.complete());
        let said = ran.out() + &ran.failed(1);
        hapax_testkit::keep_log("line", &said);
        leaks::check(&said, &self.scene.tokens);
        said
    }

    /// Starts a gateway and waits until it listens.
    pub(crate) fn start(mut self) -> Gateway {
        let process = HapaxProcess::start(self.complete());
        let address = process.address();
        let url = format!("http://{address}/line/webhook");
        let secrets = ChannelSecrets::new(self.scene.secret).expect("a secret");
        let sender = WebhookSender::new(&url, &secrets, DESTINATION).expect("a URL");
        let tokens = self.scene.tokens.clone();
        let answers = Mutex::default();
        Gateway { process, address, answers, sender, secrets, tokens, _folder: self.folder }
    }
}

/// Sends again if connecting timed out on a stalled machine, because nothing was sent then.
async fn reached(
    send: impl AsyncFn() -> Result<WebhookResponse, WebhookSendError>,
) -> Result<WebhookResponse, WebhookSendError> {
    loop {
        let sent = send().await;
        if sent != Err(WebhookSendError::NotReached(ErrorKind::TimedOut)) {
            return sent;
        }
    }
}

pub(crate) struct Gateway {
    process: HapaxProcess,
    pub(crate) address: String,
    /// The texts of all responses, which are searched for personal data like the log.
    answers: Mutex<String>,
    sender: WebhookSender,
    secrets: ChannelSecrets,
    tokens: Tokens,
    _folder: TempDir,
}

impl Gateway {
    /// Sends a webhook with these events, as LINE does, and asserts that it is answered 200.
    pub(crate) async fn send(&self, events: &[Value]) -> WebhookResponse {
        let delivered = self.try_send(events).await.expect("an answer");
        assert_eq!(delivered.status, 200);
        delivered
    }

    pub(crate) async fn try_send(
        &self,
        events: &[Value],
    ) -> Result<WebhookResponse, WebhookSendError> {
        self.tokens.note(events);
        reached(async || self.sender.send(events).await).await
    }

    /// Sends a body verbatim, signed.
    pub(crate) async fn send_raw(&self, body: &str) -> u16 {
        self.send_signed(body, Some(&self.secrets.sign(body.as_bytes()))).await
    }

    pub(crate) async fn send_signed(&self, body: &str, signature: Option<&str>) -> u16 {
        let body = Bytes::copy_from_slice(body.as_bytes());
        let sent = reached(async || self.sender.send_raw(body.clone(), signature).await).await;
        sent.expect("an answer").status
    }

    /// Sends a webhook that is signed with other secrets.
    pub(crate) async fn send_with(&self, secrets: &ChannelSecrets, events: &[Value]) -> u16 {
        self.tokens.note(events);
        let url = format!("http://{}/line/webhook", self.address);
        let sender = WebhookSender::new(&url, secrets, DESTINATION).expect("a URL");
        reached(async || sender.send(events).await).await.expect("an answer").status
    }

    /// Sends events until one is answered 200 while LINE would still wait, and returns all of them.
    /// There are ten attempts, because a stalled machine is not the gateway's fault.
    pub(crate) async fn send_in_time(&self, event: impl Fn() -> Value) -> Vec<Value> {
        let mut sent = Vec::new();
        while sent.len() < 10 {
            sent.push(event());
            if self.send(&sent[sent.len() - 1..]).await.took < LIMIT {
                return sent;
            }
        }
        panic!("ten webhooks were not answered within LINE's {LIMIT:?}");
    }

    pub(crate) fn get(&self, path: &str) -> (u16, String) {
        self.ask("GET", path, "")
    }

    pub(crate) fn post(&self, path: &str) -> (u16, String) {
        self.ask("POST", path, "")
    }

    /// Sends an HTTP request; the response is searched for personal data, like the log.
    pub(crate) fn ask(&self, method: &str, path: &str, body: &str) -> (u16, String) {
        let request = HttpRequest::new(&self.address, method, path);
        let answer = request.body(body.as_bytes()).send();
        self.keep_answer(&answer);
        (answer.status, answer.text())
    }

    fn keep_answer(&self, answer: &HttpResponse) {
        let mut answers = self.answers.lock().unwrap_or_else(PoisonError::into_inner);
        answers.push_str(&answer.text());
        answers.push('\n');
    }

    /// The sum of a metric's series that have all these labels.
    pub(crate) fn metric(&self, name: &str, labels: &[&str]) -> f64 {
        let metrics = self.get("/metrics").1;
        let series = metrics.lines().filter(|line| {
            let of_that_name =
                line.strip_prefix(name).is_some_and(|rest| rest.starts_with(['{', ' ']));
            of_that_name && labels.iter().all(|label| line.contains(label))
        });
        series.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum()
    }

    /// Waits until the sum of a metric's series reaches a value.
    pub(crate) fn counts(&self, name: &str, labels: &[&str], at_least: f64) {
        let what = format!("{name} {labels:?} reaches {at_least}");
        eventually(&what, || self.metric(name, labels) >= at_least);
    }

    fn json(&self, path: &str) -> Value {
        let (status, text) = self.get(path);
        assert_eq!(status, 200, "{text}");
        serde_json::from_str(&text).expect("JSON")
    }

    /// `GET /v1/queues/line`.
    pub(crate) fn queue(&self) -> Value {
        self.json("/v1/queues/line")
    }

    /// Waits until the queue is empty, so that every stored event was handled. On a busy machine, a
    /// gateway with the default timeouts may report that the store is unavailable.
    pub(crate) fn idle(&self) {
        let is_idle = |queue: Value| queue["depth"] == 0 && queue["in_flight"] == 0;
        eventually("the queue is empty", || {
            let (status, text) = self.get("/v1/queues/line");
            status == 200 && is_idle(serde_json::from_str(&text).expect("JSON"))
        });
    }

    pub(crate) fn dead(&self) -> Vec<Value> {
        let page = self.json("/v1/queues/line/dead?limit=1000");
        page["items"].as_array().expect("a list").clone()
    }

    /// Waits until there are this many dead letters.
    pub(crate) fn has_dead(&self, letters: usize) {
        eventually(&format!("{letters} dead letters"), || self.dead().len() == letters);
    }

    /// Waits until `/readyz` has this status.
    pub(crate) fn readiness_is(&self, status: u16) {
        eventually(&format!("/readyz is {status}"), || self.get("/readyz").0 == status);
    }

    /// The output, the log and the responses so far.
    pub(crate) fn log(&self) -> String {
        let answers = self.answers.lock().unwrap_or_else(PoisonError::into_inner);
        self.process.output() + &answers
    }

    /// The lines of the log, as objects.
    pub(crate) fn log_lines(&self) -> Vec<Value> {
        self.log().lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
    }

    /// `SIGTERM`, and waits for the end.
    pub(crate) fn stop(mut self) {
        self.process.stop();
    }
}

/// `SIGKILL`, after which everything that the gateway said is searched for personal data.
impl Drop for Gateway {
    fn drop(&mut self) {
        let metrics = HttpRequest::new(&self.address, "GET", "/metrics");
        if self.process.is_running()
            && let Some(answer) = metrics.try_send()
        {
            self.keep_answer(&answer);
        }
        self.process.kill();
        self.process.wait();
        let all = self.log();
        hapax_testkit::keep_log("line", &all);
        if !std::thread::panicking() {
            leaks::check(&all, &self.tokens);
        }
    }
}
