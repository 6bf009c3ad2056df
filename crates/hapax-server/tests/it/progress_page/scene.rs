//! A `hapax serve` on a file, the program that serves the page, and what a user sees.

use std::fs;
use std::net::TcpListener;
use std::thread;
use std::time::{Duration, Instant};

use hapax_testkit::Browser;
use progress_page::{Access, PageSettings};
use serde_json::{Value, json};

use crate::http::access::token;
use crate::support::http::HttpRequest;
use crate::support::server::{Server, Setup};
use crate::support::{WAIT_TIMEOUT, eventually};

/// `hapax serve` for a page.
pub(crate) struct Hapax(pub(crate) Server);

impl Hapax {
    fn start(page: &str, configuration: &str) -> Self {
        let flags = ["--sse-origins", page, "--sse-retry", "200ms", "--log-level", "warn"];
        let server = Setup::new().flags(&flags).file(configuration).start();
        server.is_ready(true);
        Self(server)
    }

    pub(crate) fn restart(&mut self) {
        self.0.restart();
        self.0.is_ready(true);
    }

    /// Deletes its store while it does not run.
    pub(crate) fn forget(&self) {
        let files = fs::read_dir(self.0.folder.path()).unwrap().map(|file| file.unwrap().path());
        for file in files.filter(|file| file.to_string_lossy().contains("hapax.db")) {
            fs::remove_file(file).unwrap();
        }
    }

    pub(crate) fn publish(&self, job: &str, stage: &str, seq: u64, percent: u64) {
        self.0.publish_data(job, stage, seq, &json!({ "percent": percent }));
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
        let configuration =
            format!("[sse]\nsecret = '{secret}'\n") + &token("app", "shop", "'data'");
        let access = Access {
            token: "app".into(),
            tenant: "shop".into(),
            secret,
            link_lifetime: Duration::from_secs(2),
        };
        Self::with(&configuration, Some(access), Duration::from_millis(500))
    }

    /// On a hapax that lets only another site read its events.
    pub(crate) fn of_another_origin() -> Self {
        let pace = Duration::from_millis(100);
        Self::with_origin(Some("https://app.example"), "", None, pace)
    }

    fn with(configuration: &str, access: Option<Access>, pace: Duration) -> Self {
        Self::with_origin(None, configuration, access, pace)
    }

    fn with_origin(
        origin: Option<&str>,
        configuration: &str,
        access: Option<Access>,
        pace: Duration,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let hapax = Hapax::start(origin.unwrap_or(&url), configuration);
        let settings =
            PageSettings { hapax: progress_page::Hapax::at(&hapax.0.url(), access), pace };
        thread::spawn(move || serve(listener, settings));
        Self { url, hapax }
    }

    pub(crate) fn of_job(&self, job: &str) -> String {
        format!("{}/#{job}", self.url)
    }

    pub(crate) fn post(&self, path: &str, body: &Value) {
        let request = HttpRequest::new(self.url.trim_start_matches("http://"), "POST", path);
        assert_eq!(request.json(body).status(), 202);
    }
}

#[tokio::main(flavor = "current_thread")]
async fn serve(listener: TcpListener, settings: PageSettings) {
    listener.set_nonblocking(true).unwrap();
    let listener = tokio::net::TcpListener::from_std(listener).unwrap();
    progress_page::serve(listener, settings).await.unwrap();
}

/// The page as a user sees it: the connection's state, the bar, and the list.
const SEEN: &str = "
    const events = Array.from(document.querySelectorAll('#events li'), ({ dataset }) =>
        dataset.gap ? 'gap' : `${dataset.offset} ${dataset.stage} ${dataset.seq}`);
    const state = document.getElementById('state').textContent;
    return { state, percent: document.getElementById('bar').value, events };";

/// Waits until the page shows exactly this.
pub(crate) fn shows(browser: &Browser, state: &str, percent: u64, events: &[&str]) {
    let expected = json!({ "state": state, "percent": percent, "events": events });
    let mut seen = Value::Null;
    let until = Instant::now() + WAIT_TIMEOUT;
    while seen != expected {
        assert!(Instant::now() < until, "expected {expected}, and saw {seen}");
        thread::sleep(Duration::from_millis(10));
        seen = browser.run(SEEN);
    }
}

pub(crate) fn shows_one_at_least(browser: &Browser) {
    eventually("an event is shown", || browser.run(SEEN)["events"] != json!([]));
}
