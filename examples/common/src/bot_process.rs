//! A LINE bot as a child process, for its tests.

use std::fs::{self, File};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use hapax_line::ChannelSecrets;
use hapax_line::simulator::{SimulatedApi, WebhookResponse, WebhookSendError, WebhookSender};
use hapax_testkit::wait_for;
use serde_json::Value;

use crate::demo::{BOT, SECRET, TOKEN};

/// Timeout for every wait.
pub const TIMEOUT: Duration = Duration::from_secs(60);

/// A running bot, killed when dropped.
pub struct BotProcess {
    /// Sends webhooks to the bot.
    pub sender: Arc<WebhookSender>,
    child: Mutex<Child>,
    url: String,
    log: PathBuf,
}

impl BotProcess {
    /// Starts the program, and waits until it says where it listens. Its output is appended to
    /// `log`.
    pub fn start(command: &mut Command, line: &SimulatedApi, log: &Path) -> Self {
        let before = read(log).len();
        let file = File::options().create(true).append(true).open(log).expect("a log");
        command
            .args(["--listen", "127.0.0.1:0"])
            .env("LINE_CHANNEL_SECRET", SECRET)
            .env("LINE_CHANNEL_ACCESS_TOKEN", TOKEN)
            .env("LINE_API_BASE", line.base())
            .stdin(Stdio::null())
            .stdout(file.try_clone().expect("a log"))
            .stderr(file);
        let mut child = command.spawn().expect("the bot starts");
        let url = wait_for("the bot says where it listens", TIMEOUT, || {
            let output = read(log);
            let ended = child.try_wait().expect("a child").is_some();
            assert!(!ended, "the bot ended: {}", &output[before..]);
            let (_, rest) = output[before..].split_once("-bot on ")?;
            rest.split_once('\n').map(|(url, _)| url.to_owned())
        });
        let secrets = ChannelSecrets::new(SECRET).expect("a secret");
        let sender = Arc::new(WebhookSender::new(&url, &secrets, BOT).expect("a URL"));
        Self { sender, child: Mutex::new(child), url, log: log.to_owned() }
    }

    fn child(&self) -> MutexGuard<'_, Child> {
        self.child.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends `SIGTERM`.
    pub fn terminate(&self) {
        let pid = self.child().id().to_string();
        let told = Command::new("kill").args(["-TERM", &pid]).status().expect("kill runs");
        assert!(told.success());
    }

    /// Waits until the program has exited by itself.
    pub fn ended(&self) -> ExitStatus {
        wait_for("the bot ends", TIMEOUT, || self.child().try_wait().expect("a child"))
    }

    /// Status and body of a `GET` on the bot's own listener.
    pub fn get(&self, path: &str) -> (u16, String) {
        let url = self.url.replace("/line/webhook", path);
        let config = ureq::Agent::config_builder().http_status_as_error(false);
        let agent: ureq::Agent = config.timeout_global(Some(TIMEOUT)).build().into();
        let mut response = agent.get(&url).call().expect("an answer");
        (response.status().as_u16(), response.body_mut().read_to_string().expect("text"))
    }

    /// The program's output so far.
    pub fn output(&self) -> String {
        read(&self.log)
    }
}

fn read(log: &Path) -> String {
    fs::read_to_string(log).unwrap_or_default()
}

/// Sends a webhook, again if the connection timed out on a stalled machine: nothing was sent then.
pub async fn send(
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

impl Drop for BotProcess {
    fn drop(&mut self) {
        let mut child = self.child();
        let _ = child.kill();
        let _ = child.wait();
    }
}
