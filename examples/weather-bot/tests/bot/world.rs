//! The bot as a child process, with its servers and simulated services.

use std::fs::{self, File};
use std::io::ErrorKind;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use example_weather_bot::simulated_weather::SimulatedWeather;
use hapax_http_client::{HttpClient, get};
use hapax_line::ChannelSecrets;
use hapax_line::simulator::{
    AcceptedCall, ApiEndpoint, SimulatedApi, WebhookResponse, WebhookSendError, WebhookSender,
};
use hapax_testkit::{Redis, TcpProxy, keep_log, wait_for};
use serde_json::Value;
use tempfile::TempDir;
use tokio::time::sleep;

/// Timeout for every wait.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);
pub(crate) const USER: &str = "Uf00d0000000000000000000000000001";
const BOT: &str = "Uf00d000000000000000000000000b07a";
const SECRET: &str = "hush-channel-secret";
const TOKEN: &str = "hush-access-token";

/// Long limits, so that a busy machine does not look like a store or a service that is down.
const UNHURRIED: &[(&str, &str)] = &[
    ("STORE_TIMEOUT_MS", "60000"),
    ("DATABASE_TIMEOUT_MS", "60000"),
    ("WEATHER_TIMEOUT_MS", "60000"),
    ("PROCESSING_LOCK_TIMEOUT_SECONDS", "600"),
];

/// Deviations from the default test setup.
#[derive(Default)]
pub(crate) struct Plan<'a> {
    /// URL of the users' database; by default SQLite in the test's folder.
    pub(crate) database: Option<&'a str>,
    pub(crate) flags: &'a [&'a str],
    pub(crate) environment: &'a [(&'a str, &'a str)],
    /// Use the program's default limits.
    pub(crate) hurried: bool,
    /// Connect to Redis through [`World::wire`].
    pub(crate) wired: bool,
}

pub(crate) struct World {
    pub(crate) line: SimulatedApi,
    pub(crate) weather: SimulatedWeather,
    pub(crate) redis: Redis,
    pub(crate) wire: TcpProxy,
    pub(crate) sender: Arc<WebhookSender>,
    pub(crate) folder: TempDir,
    url: String,
    child: Mutex<Child>,
    http: HttpClient,
}

impl World {
    pub(crate) async fn start() -> Self {
        Self::with(Plan::default()).await
    }

    pub(crate) async fn with(plan: Plan<'_>) -> Self {
        let redis = Redis::start();
        let wire = TcpProxy::to(redis.port());
        let store = match plan.wired {
            true => format!("redis://127.0.0.1:{}/0", wire.port()),
            false => redis.url(),
        };
        let line = SimulatedApi::start("127.0.0.1:0", TOKEN).await.expect("a simulated LINE");
        let weather = SimulatedWeather::start().await.expect("a simulated service");
        let folder = tempfile::tempdir().expect("a folder");
        let database = format!("sqlite:{}/weather.db", folder.path().display());
        let log = |name| File::create(folder.path().join(name)).expect("a file");
        let mut command = Command::new(env!("CARGO_BIN_EXE_weather-bot"));
        command
            .args(["--listen", "127.0.0.1:0", "--database", plan.database.unwrap_or(&database)])
            .args(plan.flags)
            .env("REDIS_URL", store)
            .env("LINE_CHANNEL_SECRET", SECRET)
            .env("LINE_CHANNEL_ACCESS_TOKEN", TOKEN)
            .env("LINE_API_BASE", line.base())
            .env("WEATHER_API_BASE", weather.base())
            .stdin(Stdio::null())
            .stdout(log("stdout"))
            .stderr(log("stderr"));
        if !plan.hurried {
            command.envs(UNHURRIED.iter().copied());
        }
        let child = command.envs(plan.environment.iter().copied()).spawn().expect("the bot starts");
        let url = wait_for("the bot says where it is", PATIENCE, || {
            let said = fs::read_to_string(folder.path().join("stdout")).expect("its output");
            Some(said.strip_prefix("weather-bot on ")?.strip_suffix('\n')?.to_owned())
        });
        let sender = WebhookSender::new(&url, &ChannelSecrets::new(SECRET).expect("a secret"), BOT);
        let (sender, child) = (Arc::new(sender.expect("a sender")), Mutex::new(child));
        Self { line, weather, redis, wire, sender, folder, url, child, http: HttpClient::new() }
    }

    /// Sends a webhook with these events.
    pub(crate) async fn send(&self, events: &[Value]) {
        let delivered = send(&self.sender, events).await.expect("an answer");
        assert_eq!(delivered.status, 200);
    }

    /// The bot's next call to LINE, except loading animations.
    pub(crate) async fn next(&self) -> AcceptedCall {
        loop {
            let said = self.line.next(PATIENCE).await.unwrap_or_else(|| self.silent());
            if said.endpoint != ApiEndpoint::Loading {
                return said;
            }
        }
    }

    fn silent(&self) -> ! {
        panic!("the bot says nothing\n{}", self.log())
    }

    /// The text of the bot's next answer.
    pub(crate) async fn answer(&self) -> String {
        let texts = self.next().await.texts();
        assert_eq!(texts.len(), 1, "one message");
        texts.into_iter().next().expect("a text")
    }

    /// Sends one event while the user holds no lock, and returns the answer.
    pub(crate) async fn ask(&self, event: Value) -> String {
        self.idle().await;
        self.send(&[event]).await;
        self.answer().await
    }

    /// Waits until the lock is free: it is released after the answer, and a test could send sooner.
    pub(crate) async fn idle(&self) {
        self.until("no lock is held", async || {
            self.redis.cli(&["KEYS", "processing:user:*"]).is_empty()
        })
        .await;
    }

    /// Polls until the condition holds.
    pub(crate) async fn until(&self, what: &str, probe: impl AsyncFn() -> bool) {
        let since = tokio::time::Instant::now();
        while !probe().await {
            assert!(since.elapsed() < PATIENCE, "waited in vain: {what}\n{}", self.log());
            sleep(Duration::from_millis(10)).await;
        }
    }

    /// All texts that the bot has sent so far.
    pub(crate) fn said(&self) -> Vec<String> {
        self.line.accepted_calls().iter().flat_map(AcceptedCall::texts).collect()
    }

    /// Status and body of a `GET` on the bot's own listener.
    pub(crate) async fn get(&self, path: &str) -> (u16, String) {
        let url = self.url.replace("/line/webhook", path);
        let reply = self.http.call(get(url.parse().expect("a URL")), PATIENCE).await;
        let reply = reply.expect("an answer");
        (reply.status.as_u16(), String::from_utf8_lossy(&reply.body).into_owned())
    }

    /// The value of a metric; 0 if it is not exported yet.
    pub(crate) async fn metric(&self, name: &str) -> usize {
        let (status, text) = self.get("/metrics").await;
        assert_eq!(status, 200);
        let value = text.lines().find_map(|line| line.strip_prefix(name));
        value.map_or(0, |value| value.trim().parse().expect("a number"))
    }

    pub(crate) fn stdout(&self) -> PathBuf {
        self.folder.path().join("stdout")
    }

    pub(crate) fn log(&self) -> String {
        fs::read_to_string(self.folder.path().join("stderr")).expect("its log")
    }

    /// Sends `SIGTERM`.
    pub(crate) fn terminate(&self) {
        let pid = self.child.lock().expect("no panic").id().to_string();
        let told = Command::new("kill").args(["-TERM", &pid]).status().expect("kill runs");
        assert!(told.success());
    }

    pub(crate) async fn ended(&self) -> ExitStatus {
        let status = async || self.child.lock().expect("no panic").try_wait().expect("a child");
        self.until("the bot ends", async || status().await.is_some()).await;
        status().await.expect("it has ended")
    }

    /// Stops the bot, and checks what must hold after every test.
    pub(crate) async fn end(self) {
        let (_, metrics) = self.get("/metrics").await;
        self.terminate();
        assert!(self.ended().await.success(), "{}", self.log());
        assert_eq!(self.line.violations(), Vec::<String>::new());
        let stdout = fs::read_to_string(self.stdout()).expect("its output");
        let stderr = self.log();
        assert!(!stderr.contains("panicked"), "{stderr}");
        keep_log("weather-bot", &[&stdout, &stderr, &metrics].map(String::as_str).concat());
        let tokens = self.line.accepted_calls().into_iter().filter_map(|said| said.reply_token);
        let private = ["Uf00d", "🥚", "台北", "新竹", "hush", "121.5264"].map(str::to_owned);
        for private in tokens.chain(private) {
            for (name, text) in [("stdout", &stdout), ("stderr", &stderr), ("metrics", &metrics)] {
                assert!(!text.contains(&private), "{private} is in {name}:\n{text}");
            }
        }
    }
}

/// Sends a webhook, again if the connection timed out on a stalled machine: nothing was sent then.
pub(crate) async fn send(
    sender: &WebhookSender,
    events: &[Value],
) -> Result<WebhookResponse, WebhookSendError> {
    loop {
        let sent = sender.send(events).await;
        if sent != Err(WebhookSendError::NotReached(ErrorKind::TimedOut)) {
            return sent;
        }
    }
}

impl Drop for World {
    fn drop(&mut self) {
        let child = self.child.get_mut().expect("no panic");
        let _ = child.kill();
        let _ = child.wait();
    }
}
