//! A server with two tenants, its store, and a browser that is signed in.

use std::sync::Arc;
use std::time::Duration;

use hapax::queue::{ItemId, LeaseRequest, QueueItem, QueueName};
use hapax::{Store, StoreConfig, Tenant};
use hapax_testkit::Browser;
use serde_json::{Value, json};

use crate::http::access::token;
use crate::support::http::HttpResponse;
use crate::support::server::{Server, Setup};
use crate::support::store::TestStore;
use crate::support::{WAIT_TIMEOUT, eventually};

/// A key, reason or payload that would run if it ever became markup; keys have no spaces.
pub(super) const EVIL: &str = "<img/src=x/onerror=window.hacked=1><script>window.hacked=1</script>";

/// The pages, by their names in the address.
pub(super) const PAGES: [&str; 13] = [
    "overview",
    "suppressed",
    "unknown",
    "dead",
    "key",
    "jobs",
    "queues",
    "locks",
    "conflicts",
    "streams",
    "line",
    "tenants",
    "audit",
];

const LEASE: Duration = Duration::from_secs(600);

pub(super) struct Scene {
    pub(super) server: Server,
    pub(super) browser: Browser,
    pub(super) store: Arc<dyn Store>,
    pub(super) file: TestStore,
}

impl Scene {
    /// Tokens whose secrets are their names: `ana` may do everything, `eyes` may only look, both in the
    /// tenant `default`; `eve` may do everything in another one.
    pub(super) async fn start() -> Self {
        Self::start_with(&[]).await
    }

    pub(super) async fn start_with(flags: &[&str]) -> Self {
        Self::start_on(TestStore::sqlite(), flags).await
    }

    pub(super) async fn start_on(file: TestStore, flags: &[&str]) -> Self {
        let tokens = [
            token("ana", "default", "'data', 'admin'"),
            token("eyes", "default", "'read'"),
            token("eve", "other", "'data', 'admin'"),
        ];
        let setup = Setup::on(&file.url()).flags(&["--report-interval", "50ms"]).flags(flags);
        let server = setup.file(&tokens.concat()).start();
        let patient = StoreConfig::default().timeout(WAIT_TIMEOUT);
        let store = hapax::open(&file.url(), &patient).unwrap();
        let browser = Browser::start();
        browser.set_view(1280, 900, "light");
        let scene = Self { server, browser, store, file };
        scene.browser.open(&scene.server.url());
        scene
    }

    /// Signs in on the page, after signing out if somebody is signed in.
    pub(super) fn sign_in(&self, token: &str) {
        if self.is_there(".who button") {
            self.click("Sign out");
        }
        self.wait_for(".sign-in input[name=token]");
        self.fill(".sign-in input", token);
        self.run("document.querySelector('.sign-in form').requestSubmit()");
        self.wait_for(".shell");
        let role = if token == "eyes" { "Read-only" } else { "Operator" };
        eventually("the role is shown", || self.text_of(".who").contains(role));
    }

    /// Opens a page and waits until it shows something.
    pub(super) fn go(&self, page: &str) {
        self.run(&format!("location.hash = '#/{page}'"));
        let name = page.split('/').next().unwrap();
        self.wait_for(&format!("nav a[aria-current][href='#/{name}']"));
        self.wait_for("main:not([aria-busy]) .content > *");
    }

    pub(super) fn run(&self, script: &str) -> Value {
        self.browser.run(script)
    }

    pub(super) fn is_there(&self, selector: &str) -> bool {
        self.run(&format!("return document.querySelector({}) !== null", json!(selector))) == true
    }

    #[track_caller]
    pub(super) fn wait_for(&self, selector: &str) {
        eventually(selector, || self.is_there(selector));
    }

    /// The text that a person sees in the first element of this kind; empty if there is none.
    pub(super) fn text_of(&self, selector: &str) -> String {
        let script = format!(
            "return (document.querySelector({})?.innerText ?? '').replaceAll('\\u00a0', ' ')",
            json!(selector)
        );
        self.run(&script).as_str().unwrap_or_default().to_owned()
    }

    pub(super) fn text(&self) -> String {
        self.text_of("main")
    }

    /// Waits until the page shows all of these.
    #[track_caller]
    pub(super) fn shows(&self, parts: &[&str]) {
        for part in parts {
            let mut seen = String::new();
            let waited = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                eventually(&format!("the page shows {part:?}"), || {
                    seen = self.text();
                    seen.contains(part)
                });
            }));
            assert!(waited.is_ok(), "{part:?} is not in:\n{seen}");
        }
    }

    #[track_caller]
    pub(super) fn lacks(&self, parts: &[&str]) {
        let text = self.text();
        for part in parts {
            assert!(!text.contains(part), "{part:?} is in:\n{text}");
        }
    }

    /// Waits for a visible button with this text, and clicks on it.
    #[track_caller]
    pub(super) fn click(&self, text: &str) {
        let script = format!(
            "const wanted = [...document.querySelectorAll('button, main a')].find((one) =>
                 one.textContent === {} && !one.disabled && one.getClientRects().length > 0);
             wanted?.focus();
             wanted?.click();
             return wanted !== undefined",
            json!(text)
        );
        eventually(&format!("there is a button {text:?}"), || self.run(&script) == true);
    }

    pub(super) fn fill(&self, selector: &str, text: &str) {
        let script = format!(
            "const input = document.querySelector({});
             input.value = {};
             input.dispatchEvent(new Event('change', {{ bubbles: true }}))",
            json!(selector),
            json!(text)
        );
        self.run(&script);
    }

    /// Writes a note into the open dialog and confirms; what the dialog said.
    #[track_caller]
    pub(super) fn confirm(&self, note: &str) -> String {
        self.wait_for("dialog[open]");
        let said = self.text_of("dialog");
        self.fill("dialog input[name=note]", note);
        self.run("document.querySelector('dialog [data-confirm]').click()");
        eventually("the dialog is closed", || {
            let problem = self.text_of("dialog .problem");
            assert_eq!(problem, "", "the action was refused");
            !self.is_there("dialog")
        });
        said
    }

    /// Reveals what the page hides.
    #[track_caller]
    pub(super) fn reveal(&self, note: &str) {
        self.run("document.querySelector('[data-reveal]').click()");
        self.confirm(note);
        self.shows(&["Revealed"]);
        self.wait_for("main:not([aria-busy])");
    }

    /// Buttons that would change or reveal something: all of them ask first, and so end in dots.
    pub(super) fn action_buttons(&self) -> Value {
        self.run(
            "return [...document.querySelectorAll('main button')]
                 .filter((one) => one.getClientRects().length > 0 && one.textContent.includes('…'))
                 .map((one) => one.textContent)",
        )
    }

    /// Asserts that a reader sees this page without a way to act, and another tenant nothing of it.
    #[track_caller]
    pub(super) fn is_guarded(&self, page: &str, public: &[&str], private: &[&str]) {
        self.sign_in("eyes");
        self.go(page);
        self.shows(public);
        self.lacks(private);
        assert_eq!(self.action_buttons(), json!([]), "a reader can act");
        self.sign_in("eve");
        self.go(page);
        self.lacks(private);
        self.lacks(public);
    }

    /// Asserts that nothing was run that a key or payload has brought, and that the browser has nothing to
    /// complain about.
    #[track_caller]
    pub(super) fn is_clean(&self) {
        assert_eq!(self.run("return window.hacked ?? null"), Value::Null);
        assert!(!self.is_there("main img, main script, dialog img"));
        assert_eq!(self.browser.errors(), Vec::<String>::new());
    }

    /// What the audit log says, newest first: who, action, result, note.
    pub(super) fn audit(&self) -> Vec<[String; 4]> {
        let page = self.get("/v1/operator/audit");
        let text = |row: &Value, name: &str| row[name].as_str().unwrap_or_default().to_owned();
        let rows = page["items"].as_array().unwrap().iter();
        rows.map(|row| ["who", "action", "result", "note"].map(|name| text(row, name))).collect()
    }

    /// Asserts that an action of `ana` is in the audit log with its note.
    #[track_caller]
    pub(super) fn is_audited(&self, action: &str, note: &str) {
        let wanted = ["ana", action, "done", note].map(str::to_owned);
        eventually(&format!("{action} is audited"), || self.audit().contains(&wanted));
    }

    pub(super) fn get(&self, path: &str) -> Value {
        let answer = self.server.get(path).bearer("ana").send();
        assert_eq!(answer.status, 200, "{path}: {}", answer.text());
        answer.json()
    }

    pub(super) fn post(&self, path: &str, body: &Value) -> HttpResponse {
        self.server.post(path).bearer("ana").json(body).send()
    }

    /// Begins a command that nobody will end.
    pub(super) fn lose(&self, operation: &str, key: &str) {
        let path = format!("/v1/commands/{operation}/{}", encoded(key));
        assert_eq!(self.post(&path, &json!({ "lease_ms": 1 })).status, 201);
    }

    /// Runs a command and repeats it: a first run and a replay.
    pub(super) fn run_twice(&self, operation: &str, key: &str, body: &str) {
        let path = format!("/v1/commands/{operation}/{}", encoded(key));
        let begin = json!({ "fingerprint": "a" });
        let token = self.post(&path, &begin).json()["token"].clone();
        let end = json!({ "token": token, "status": 201, "body": body });
        assert_eq!(self.server.put(&path).bearer("ana").json(end).status(), 200);
        assert_eq!(self.post(&path, &begin).status, 200);
    }

    pub(super) fn publish(&self, job: &str, seq: u64, data: &str) {
        let event = json!({
            "domain": "scan", "job_id": job, "stage": format!("step{seq}"), "seq": seq,
            "data": { "text": data },
        });
        assert_eq!(self.post("/v1/events", &event).status, 201);
    }

    pub(super) async fn enqueue(&self, key: &str) -> ItemId {
        let item = QueueItem::new(&Tenant::default(), "orders", format!("payload {EVIL}"));
        let item = item.key(key).header("origin", "shop");
        let queue = QueueName::outbox();
        let _ = self.store.enqueue(&queue, std::slice::from_ref(&item)).await.unwrap();
        item.id
    }

    /// A dead letter; nothing else must wait in the queue.
    pub(super) async fn bury(&self, key: &str, reason: &str) -> ItemId {
        let id = self.enqueue(key).await;
        let (queue, take) = (QueueName::outbox(), LeaseRequest::new(1, LEASE));
        let leased = self.store.lease(&queue, &take).await.unwrap();
        assert_eq!(leased.iter().map(|leased| leased.item.id).collect::<Vec<_>>(), [id]);
        let _ = self.store.bury(&queue, &take.token, id, reason).await.unwrap();
        id
    }
}

pub(super) fn encoded(text: &str) -> String {
    percent_encoding::utf8_percent_encode(text, percent_encoding::NON_ALPHANUMERIC).to_string()
}
