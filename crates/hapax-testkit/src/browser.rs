//! A headless Chromium, driven over WebDriver.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde_json::{Value, json};
use tempfile::TempDir;
use ureq::Agent;

use crate::command::CLIENT_TIMEOUT;
use crate::ports::with_free_port;
use crate::process::Process;
use crate::{binary, cleanup};

/// A browser with one tab, closed when dropped.
///
/// ```no_run
/// let browser = hapax_testkit::Browser::start();
/// browser.open("http://127.0.0.1:8787/");
/// assert_eq!(browser.run("return document.readyState"), "complete");
/// ```
pub struct Browser {
    // Fields are dropped in this order: the browser ends before its folder is removed.
    driver: Process,
    /// `http://127.0.0.1:PORT/session`, followed by `/ID` as soon as there is a session.
    session: String,
    agent: Agent,
    folder: TempDir,
}

impl Browser {
    /// Starts `chromedriver`, and with it Chromium.
    pub fn start() -> Self {
        with_free_port(|port| {
            let folder = cleanup::temp_folder("browser-");
            let log = folder.path().join("log");
            let driver = Process::new(format!("chromedriver on port {port}"), log);
            driver.spawn(
                Command::new(binary::require("chromedriver"))
                    .arg(format!("--port={port}"))
                    // Keeps all files of driver and browser in the folder.
                    .env("HOME", folder.path())
                    .env("TMPDIR", folder.path())
                    .env_remove("XDG_CONFIG_HOME")
                    .env_remove("XDG_CACHE_HOME")
                    .current_dir(folder.path()),
            );
            let root = format!("http://127.0.0.1:{port}/session");
            let mut browser = Self { driver, session: root, agent: agent(), folder };
            browser.driver.wait_until_ready(|| {
                let status = driver_value(
                    browser.agent.get(format!("http://127.0.0.1:{port}/status")).call(),
                );
                status.is_ok_and(|status| status["ready"] == true)
            })?;
            let made = browser.post("", &capabilities(browser.folder()));
            browser.session += "/";
            browser.session += made["sessionId"].as_str().expect("a session id");
            Ok(browser)
        })
    }

    /// Goes to a page, and returns when it is loaded.
    ///
    /// Nothing is loaded if only the part after the `#` differs, as when a person types it.
    pub fn open(&self, url: &str) {
        self.post("/url", &json!({ "url": url }));
    }

    /// Loads the page again, as by F5.
    pub fn refresh(&self) {
        self.post("/refresh", &json!({}));
    }

    /// Runs JavaScript in the page, and gives what it returns.
    ///
    /// # Panics
    ///
    /// When the script throws; with its message.
    pub fn run(&self, script: &str) -> Value {
        self.post("/execute/sync", &json!({ "script": script, "args": [] }))
    }

    /// Presses and releases a key for each character, in whatever has the focus. Special keys are those of
    /// WebDriver: [`TAB`](Self::TAB), [`ENTER`](Self::ENTER), [`ESCAPE`](Self::ESCAPE) and others of its
    /// private characters.
    pub fn press(&self, keys: &str) {
        let stroke = |key: char| {
            ["keyDown", "keyUp"].map(|kind| json!({ "type": kind, "value": key.to_string() }))
        };
        let strokes: Vec<_> = keys.chars().flat_map(stroke).collect();
        let keyboard = json!({ "type": "key", "id": "keyboard", "actions": strokes });
        self.post("/actions", &json!({ "actions": [keyboard] }));
    }

    /// The key Tab, for [`press`](Self::press).
    pub const TAB: &str = "\u{E004}";
    /// The key Enter.
    pub const ENTER: &str = "\u{E007}";
    /// The key Esc.
    pub const ESCAPE: &str = "\u{E00C}";
    /// The key with an arrow to the left.
    pub const LEFT: &str = "\u{E012}";

    /// Shows pages in this size from now on, which may be narrower than a window can be, and in the colour
    /// scheme `light` or `dark`.
    pub fn set_view(&self, width: u32, height: u32, scheme: &str) {
        let size =
            json!({ "width": width, "height": height, "deviceScaleFactor": 1, "mobile": false });
        self.call_devtools("Emulation.setDeviceMetricsOverride", &size);
        let features = json!({ "features": [{ "name": "prefers-color-scheme", "value": scheme }] });
        self.call_devtools("Emulation.setEmulatedMedia", &features);
    }

    /// A picture of what is seen, as PNG.
    pub fn picture(&self) -> Vec<u8> {
        let url = format!("{}/screenshot", self.session);
        let picture = driver_value(self.agent.get(url).call())
            .unwrap_or_else(|problem| panic!("/screenshot: {problem}\n{}", self.driver.log_tail()));
        BASE64_STANDARD.decode(picture.as_str().expect("a picture")).expect("base64")
    }

    /// What the browser has logged as an error since the last call: failed loads, exceptions that no script
    /// caught, and what a page's policy has refused.
    pub fn errors(&self) -> Vec<String> {
        let entries = self.post("/se/log", &json!({ "type": "browser" }));
        let entries = entries.as_array().into_iter().flatten();
        let severe = entries.filter(|entry| entry["level"] == "SEVERE");
        severe.map(|entry| entry["message"].as_str().unwrap_or_default().to_owned()).collect()
    }

    /// The folder that holds its profile, and whatever else it writes.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Closes it now rather than when dropped.
    pub fn close(self) {}

    fn call_devtools(&self, command: &str, parameters: &Value) {
        self.post("/goog/cdp/execute", &json!({ "cmd": command, "params": parameters }));
    }

    fn post(&self, command: &str, body: &Value) -> Value {
        let url = format!("{}{command}", self.session);
        driver_value(self.agent.post(url).send(body.to_string()))
            .unwrap_or_else(|problem| panic!("{command}: {problem}\n{}", self.driver.log_tail()))
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // Chromium's other processes end by themselves when the first one is gone.
        self.driver.kill_family();
    }
}

fn agent() -> Agent {
    let config = Agent::config_builder().http_status_as_error(false);
    // Longer than the driver's own timeouts, so that its error message arrives.
    config.timeout_global(Some(CLIENT_TIMEOUT + Duration::from_secs(15))).build().into()
}

fn capabilities(folder: &Path) -> Value {
    let timeout = u64::try_from(CLIENT_TIMEOUT.as_millis()).expect("a timeout in milliseconds");
    json!({ "capabilities": { "alwaysMatch": {
        "timeouts": { "pageLoad": timeout, "script": timeout },
        "goog:loggingPrefs": { "browser": "ALL" },
        "goog:chromeOptions": {
            "binary": binary::require("chromium"),
            "args": [
                "--headless=new",
                // Root may not have the sandbox, and the pages are our own.
                "--no-sandbox",
                // Containers have little shared memory.
                "--disable-dev-shm-usage",
                "--disable-gpu",
                // No requests to the browser's vendor.
                "--disable-background-networking",
                "--no-first-run",
                // Pictures have no scroll bars.
                "--hide-scrollbars",
                format!("--user-data-dir={}", folder.join("profile").display()),
            ],
        },
    } } })
}

/// The value of the driver's response, or the text of its error.
fn driver_value(
    response: Result<ureq::http::Response<ureq::Body>, ureq::Error>,
) -> Result<Value, String> {
    let mut response = response.map_err(|error| format!("the driver does not respond: {error}"))?;
    let text = response.body_mut().read_to_string().map_err(|error| error.to_string())?;
    let mut body: Value = serde_json::from_str(&text).map_err(|_| text)?;
    let value = body["value"].take();
    match value["error"].as_str() {
        Some(error) => Err(format!("{error}: {}", value["message"].as_str().unwrap_or_default())),
        None => Ok(value),
    }
}
