//! `hapax line`, the real binary. Its whole output is searched for personal data.

use std::io::{BufRead, BufReader, ErrorKind, Read};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Sender as Teller};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use bytes::Bytes;
use hapax_line::simulator::{WebhookResponse, WebhookSender};
use hapax_line::{ChannelSecrets, simulator::WebhookSendError};
use hapax_testkit::wait_for;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;

use crate::line::harness::{ACCESS_TOKEN, DESTINATION, LIMIT, PATIENCE, SECRET, Scene, secrets};
use crate::line::leaks::{self, Tokens};
use crate::support::http::HttpRequest;

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
        command.env("LINE_CHANNEL_SECRET", SECRET).env("LINE_CHANNEL_ACCESS_TOKEN", ACCESS_TOKEN);
        command.env("LINE_API_BASE", scene.line.base());
        let (listen, path) = ("127.0.0.1:0".into(), "/bot".into());
        let store = Some(scene.store.clone());
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

    pub(crate) fn rules(mut self, toml: &str) -> Self {
        let file: PathBuf = self.folder.path().join("rules.toml");
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

    fn spawn(&mut self) -> Child {
        if self.patient {
            self.command.args(["--store-timeout", "30s", "--handle-timeout", "300s"]);
        }
        self.command.args(["--log", "json", "--log-level", self.level, "--listen", &self.listen]);
        self.command.args(["--upstream", &self.scene.bot.url(&self.path)]);
        if let Some(store) = &self.store {
            self.command.args(["--store", store]);
        }
        let piped = self.command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        piped.spawn().expect("hapax starts")
    }

    /// Starts a gateway that must refuse to, and returns its error.
    pub(crate) fn refused(mut self) -> String {
        let output = self.spawn().wait_with_output().expect("it ends");
        assert_eq!(output.status.code(), Some(1));
        let said = [output.stdout, output.stderr].concat();
        let said = String::from_utf8_lossy(&said).into_owned();
        hapax_testkit::keep_log("line", &said);
        leaks::check(&said, &self.scene.tokens);
        said
    }

    /// Starts a gateway and waits until it listens.
    pub(crate) fn start(mut self) -> Gateway {
        let mut child = self.spawn();
        let said = Said::default();
        let (tell, told) = mpsc::channel();
        let out = said.listen(child.stdout.take().expect("piped"), Some(tell));
        let errors = said.listen(child.stderr.take().expect("piped"), None);
        let Ok(address) = told.recv_timeout(PATIENCE) else {
            let _ = child.kill();
            panic!("it did not start: {}", said.all());
        };
        let url = format!("http://{address}/line/webhook");
        let sender = WebhookSender::new(&url, &secrets(), DESTINATION).expect("a URL");
        let tokens = self.scene.tokens.clone();
        let readers = vec![out, errors];
        Gateway { child, address, said, readers, sender, tokens, _folder: self.folder }
    }
}

/// Everything that a gateway printed, logged and answered.
#[derive(Clone, Default)]
struct Said(Arc<Mutex<String>>);

impl Said {
    fn add(&self, line: &str) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.push_str(line);
        all.push('\n');
    }

    fn all(&self) -> String {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Reads an output to its end, and sends the address that the banner names.
    fn listen(
        &self,
        from: impl Read + Send + 'static,
        tell: Option<Teller<String>>,
    ) -> JoinHandle<()> {
        let said = self.clone();
        std::thread::spawn(move || {
            for line in BufReader::new(from).lines().map_while(Result::ok) {
                said.add(&line);
                let place = line.split_once("listens on http://").map(|(_, rest)| rest);
                if let (Some(tell), Some(place)) = (&tell, place) {
                    let address = place.split(['/', ' ']).next().unwrap_or_default();
                    let _ = tell.send(address.to_owned());
                }
            }
        })
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

/// A running gateway, killed when dropped.
pub(crate) struct Gateway {
    child: Child,
    pub(crate) address: String,
    said: Said,
    readers: Vec<JoinHandle<()>>,
    sender: WebhookSender,
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

    /// Sends a webhook with one event, in the same way.
    pub(crate) async fn send_one(&self, event: &Value) -> WebhookResponse {
        self.send(std::slice::from_ref(event)).await
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
        self.send_signed(body, Some(&secrets().sign(body.as_bytes()))).await
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
        self.said.add(&answer.text());
        (answer.status, answer.text())
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
        wait_for(&what, PATIENCE, || (self.metric(name, labels) >= at_least).then_some(()));
    }

    /// `GET /v1/queues/line`.
    pub(crate) fn queue(&self) -> Value {
        let (status, text) = self.get("/v1/queues/line");
        assert_eq!(status, 200, "{text}");
        serde_json::from_str(&text).expect("JSON")
    }

    /// Waits until the queue is empty, so that every stored event was handled. On a busy machine, a
    /// gateway with the default timeouts may report that the store is unavailable.
    pub(crate) fn idle(&self) {
        let is_idle = |queue: Value| queue["depth"] == 0 && queue["in_flight"] == 0;
        wait_for("the queue is empty", PATIENCE * 3, || {
            let (status, text) = self.get("/v1/queues/line");
            (status == 200 && is_idle(serde_json::from_str(&text).expect("JSON"))).then_some(())
        });
    }

    /// The dead letters.
    pub(crate) fn dead(&self) -> Vec<Value> {
        let (status, text) = self.get("/v1/queues/line/dead?limit=1000");
        assert_eq!(status, 200, "{text}");
        let json: Value = serde_json::from_str(&text).expect("JSON");
        json["items"].as_array().expect("a list").clone()
    }

    /// The output and the log so far.
    pub(crate) fn log(&self) -> String {
        self.said.all()
    }

    /// The lines of the log, as objects.
    pub(crate) fn log_lines(&self) -> Vec<Value> {
        self.log().lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
    }

    /// `SIGKILL`.
    pub(crate) fn kill(mut self) {
        self.child.kill().expect("it runs");
        self.child.wait().expect("it ends");
    }

    /// Sends `SIGTERM`, and waits for the end.
    pub(crate) fn stop(mut self) {
        kill_process(Pid::from_child(&self.child), Signal::TERM).expect("it runs");
        let status = wait_for("it ends", PATIENCE, || self.child.try_wait().expect("a child"));
        assert!(status.success(), "{status}: {}", self.log());
    }

    fn scrape(&self) {
        if let Some(answer) = HttpRequest::new(&self.address, "GET", "/metrics").try_send() {
            self.said.add(&answer.text());
        }
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        if let Ok(None) = self.child.try_wait() {
            self.scrape();
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
        for reader in self.readers.drain(..) {
            let _ = reader.join();
        }
        let all = self.said.all();
        hapax_testkit::keep_log("line", &all);
        if std::thread::panicking() {
            use std::io::Write;
            let _ = writeln!(std::io::stderr(), "-- what the gateway said --\n{all}");
        } else {
            leaks::check(&all, &self.tokens);
        }
    }
}
