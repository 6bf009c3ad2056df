//! A `hapax serve` on a file, the program that serves the page, and what a user sees.

use std::fs;
use std::net::TcpListener;
use std::process::Command;
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use hapax_testkit::{Browser, free_port, wait_for};
use progress_page::{Access, PageSettings};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tempfile::TempDir;

use crate::support::http::HttpRequest;
use crate::support::{HapaxProcess, PATIENCE, eventually};

/// `hapax serve` on a port of its own; killed when dropped.
pub(crate) struct Hapax {
    process: Mutex<Option<HapaxProcess>>,
    address: String,
    page: String,
    folder: TempDir,
    store: TempDir,
}

impl Hapax {
    fn start(page: &str, configuration: &str) -> Self {
        let hapax = Self {
            process: Mutex::new(None),
            address: format!("127.0.0.1:{}", free_port()),
            page: page.to_owned(),
            folder: tempfile::tempdir().unwrap(),
            store: tempfile::tempdir().unwrap(),
        };
        fs::write(hapax.folder.path().join("hapax.toml"), configuration).unwrap();
        hapax.run();
        hapax
    }

    /// Starts it, and returns when it is ready.
    pub(crate) fn run(&self) {
        let mut command = Command::new(env!("CARGO_BIN_EXE_hapax"));
        command
            .args(["serve", "--listen", &self.address])
            .args(["--store", &format!("sqlite:{}/hapax.db", self.store.path().display())])
            .args(["--sse-origins", &self.page, "--sse-retry", "200ms", "--log-level", "warn"])
            // A busy machine must not fail a store call; the timeout is not tested here.
            .args(["--store-timeout", "20s"])
            .env_clear()
            .current_dir(self.folder.path());
        *self.process.lock().unwrap() = Some(HapaxProcess::start(&mut command));
        let ready = HttpRequest::new(&self.address, "GET", "/readyz");
        eventually("hapax is ready", || ready.status() == 200);
    }

    /// SIGKILL.
    pub(crate) fn kill(&self) {
        drop(self.process.lock().unwrap().take());
    }

    /// Deletes its store while it does not run.
    pub(crate) fn forget(&self) {
        for file in fs::read_dir(self.store.path()).unwrap() {
            fs::remove_file(file.unwrap().path()).unwrap();
        }
    }

    fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Publishes a new event.
    pub(crate) fn publish(&self, job: &str, stage: &str, seq: u64, percent: u64) {
        let event = json!({
            "domain": "scan", "job_id": job, "stage": stage, "seq": seq,
            "data": { "percent": percent },
        });
        assert_eq!(post(&self.address, "/v1/events", &event), 201);
    }
}

/// The program behind the page, and its hapax.
pub(crate) struct Page {
    pub(crate) url: String,
    pub(crate) hapax: Hapax,
}

impl Page {
    /// On a hapax without tokens.
    pub(crate) fn start() -> Self {
        Self::with("", None, Duration::from_millis(100))
    }

    /// On a hapax with tokens, and links that expire before a job is done.
    pub(crate) fn with_short_links() -> Self {
        let secret = "0123456789abcdef0123456789abcdef".to_owned();
        let hash: String = Sha256::digest("app").iter().map(|byte| format!("{byte:02x}")).collect();
        let configuration = format!(
            "[sse]\nsecret = '{secret}'\n\
             [[token]]\nname = 'app'\nsha256 = '{hash}'\ntenant = 'shop'\nscopes = ['data']\n"
        );
        let access = Access {
            token: "app".into(),
            tenant: "shop".into(),
            secret,
            link_lifetime: Duration::from_secs(2),
        };
        Self::with(&configuration, Some(access), Duration::from_millis(500))
    }

    fn with(configuration: &str, access: Option<Access>, pace: Duration) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let hapax = Hapax::start(&url, configuration);
        let settings = PageSettings { hapax: progress_page::Hapax::at(&hapax.url(), access), pace };
        thread::spawn(move || serve(listener, settings));
        Self { url, hapax }
    }

    pub(crate) fn of_job(&self, job: &str) -> String {
        format!("{}/#{job}", self.url)
    }

    pub(crate) fn post(&self, path: &str, body: &Value) {
        assert_eq!(post(self.url.trim_start_matches("http://"), path, body), 202);
    }
}

#[tokio::main(flavor = "current_thread")]
async fn serve(listener: TcpListener, settings: PageSettings) {
    listener.set_nonblocking(true).unwrap();
    let listener = tokio::net::TcpListener::from_std(listener).unwrap();
    progress_page::serve(listener, settings).await.unwrap();
}

/// The status of the response.
fn post(address: &str, path: &str, body: &Value) -> u16 {
    HttpRequest::new(address, "POST", path).json(&body.to_string()).status()
}

/// What a user sees: the connection's state, the bar, and the list.
const SEEN: &str = "
    const events = Array.from(document.querySelectorAll('#events li'), ({ dataset }) =>
        dataset.gap ? 'gap' : `${dataset.offset} ${dataset.stage} ${dataset.seq}`);
    const state = document.getElementById('state').textContent;
    return { state, percent: document.getElementById('bar').value, events };";

/// Waits until the page shows exactly this.
pub(crate) fn shows(browser: &Browser, state: &str, percent: u64, events: &[&str]) {
    let expected = json!({ "state": state, "percent": percent, "events": events });
    let until = Instant::now() + PATIENCE;
    loop {
        let seen = browser.run(SEEN);
        if seen == expected {
            return;
        }
        assert!(Instant::now() < until, "expected {expected}, and saw {seen}");
        thread::sleep(Duration::from_millis(10));
    }
}

/// Waits for the first event.
pub(crate) fn shows_one_at_least(browser: &Browser) {
    wait_for("an event is shown", PATIENCE, || {
        browser.run(SEEN)["events"].as_array().filter(|events| !events.is_empty()).map(|_| ())
    });
}
