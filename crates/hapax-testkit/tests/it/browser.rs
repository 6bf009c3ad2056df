//! The browser loads pages, runs scripts, and leaves nothing behind.

use std::fs;
use std::time::Duration;

use hapax_testkit::{Browser, wait_for};

const WAIT_TIMEOUT: Duration = Duration::from_secs(60);

#[test]
fn browser_opens_scripts_and_refreshes_a_page() {
    let browser = Browser::start();
    browser.open("data:text/html,<title>A page</title><p>text");
    assert_eq!(browser.run("return document.title"), "A page");
    browser.run("document.title = 'changed'");
    assert_eq!(browser.run("return document.title"), "changed");
    browser.refresh();
    assert_eq!(browser.run("return document.title"), "A page");
    assert_eq!(browser.run("return {n: [1, null]}"), serde_json::json!({"n": [1, null]}));
}

#[test]
#[should_panic(expected = "no such thing")]
fn browser_panics_with_the_message_of_a_script() {
    Browser::start().run("throw new Error('no such thing')");
}

#[test]
fn closed_browser_leaves_no_process() {
    let browser = Browser::start();
    let folder = browser.folder().display().to_string();
    assert!(processes_that_name(&folder) > 1);
    browser.close();
    wait_for("all of its processes end", WAIT_TIMEOUT, || {
        (processes_that_name(&folder) == 0).then_some(())
    });
}

fn processes_that_name(folder: &str) -> usize {
    let processes = fs::read_dir("/proc").unwrap().filter_map(|entry| {
        let line = fs::read(entry.ok()?.path().join("cmdline")).ok()?;
        String::from_utf8_lossy(&line).contains(folder).then_some(())
    });
    processes.count()
}
