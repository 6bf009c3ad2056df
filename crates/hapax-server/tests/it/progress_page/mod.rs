//! `examples/progress-page` in a real browser: reloads and restarts show each event once.

mod scene;

use hapax_testkit::Browser;
use scene::{Page, shows};
use serde_json::json;

use crate::support::eventually;

#[test]
fn progress_page_survives_reload_and_server_restart() {
    let mut page = Page::start();
    let browser = Browser::start();

    page.hapax.publish("j1", "vision", 10, 10);
    browser.open(&page.of_job("j1"));
    shows(&browser, "live", 10, &["1 vision 10"]);
    page.hapax.publish("j1", "vision", 11, 25);
    shows(&browser, "live", 25, &["1 vision 10", "2 vision 11"]);

    browser.refresh();
    shows(&browser, "live", 25, &["1 vision 10", "2 vision 11"]);
    page.hapax.publish("j1", "rule", 20, 40);
    // A late one with a lower seq is shown, and does not move the bar back.
    page.hapax.publish("j1", "vision", 12, 30);
    let before = ["1 vision 10", "2 vision 11", "3 rule 20", "4 vision 12"];
    shows(&browser, "live", 40, &before);

    browser.run("window.loaded = 'before the kill'");
    page.hapax.0.kill();
    shows(&browser, "reconnecting", 40, &before);
    page.hapax.restart();
    shows(&browser, "live", 40, &before);
    for (stage, seq, percent) in [("answer", 30, 55), ("reward", 40, 90), ("done", 51, 100)] {
        page.hapax.publish("j1", stage, seq, percent);
    }
    let all = [&before[..], &["5 answer 30", "6 reward 40", "7 done 51"]].concat();
    shows(&browser, "finished", 100, &all);
    assert_eq!(browser.run("return window.loaded"), "before the kill");

    browser.refresh();
    shows(&browser, "finished", 100, &all);
}

#[test]
fn progress_page_shows_gap_after_log_was_recreated() {
    let mut page = Page::start();
    let browser = Browser::start();
    page.hapax.publish("j1", "vision", 10, 10);
    page.hapax.publish("j1", "rule", 20, 40);
    browser.open(&page.of_job("j1"));
    shows(&browser, "live", 40, &["1 vision 10", "2 rule 20"]);

    page.hapax.0.kill();
    page.hapax.forget();
    page.hapax.restart();
    page.hapax.publish("j1", "vision", 13, 5);
    shows(&browser, "live", 5, &["gap", "1 vision 13"]);
    page.hapax.publish("j1", "done", 51, 100);
    shows(&browser, "finished", 100, &["gap", "1 vision 13", "2 done 51"]);
}

/// The events that the program's own worker publishes.
const STEPS: [&str; 7] = [
    "1 vision 10",
    "2 vision 11",
    "3 rule 20",
    "4 answer 30",
    "5 answer 31",
    "6 reward 40",
    "7 done 51",
];

#[test]
fn progress_page_button_job_continues_after_restart() {
    let mut page = Page::start();
    let browser = Browser::start();
    browser.open(&page.url);
    shows(&browser, "no job", 0, &[]);
    browser.run("document.getElementById('start').click()");
    scene::shows_one_at_least(&browser);
    page.hapax.restart();
    shows(&browser, "finished", 100, &STEPS);
    browser.refresh();
    shows(&browser, "finished", 100, &STEPS);
}

#[test]
fn progress_page_resumes_job_of_dead_worker() {
    let page = Page::start();
    let browser = Browser::start();
    browser.open(&page.of_job("j1"));
    page.hapax.publish("j1", "vision", 10, 10);
    page.hapax.publish("j1", "vision", 11, 25);
    shows(&browser, "live", 25, &STEPS[..2]);
    for _ in 0..2 {
        page.post("/jobs", &json!({ "job": "j1" }));
    }
    shows(&browser, "finished", 100, &STEPS);
}

#[test]
fn progress_page_survives_links_that_expire() {
    let page = Page::with_short_links();
    let browser = Browser::start();
    browser.open(&page.of_job("j1"));
    // With its first link, whose time is over before the job is.
    shows(&browser, "live", 0, &[]);
    page.post("/jobs", &json!({ "job": "j1" }));
    shows(&browser, "finished", 100, &STEPS);
    let links = "return performance.getEntriesByType('resource')
        .filter(({ name }) => name.endsWith('/link')).length";
    assert!(browser.run(links).as_u64() > Some(1), "the first link was good for two seconds");
}

#[test]
fn fault_46_page_at_localhost_is_live_or_says_why_not() {
    let browser = Browser::start();
    let page = Page::start();
    page.hapax.publish("j1", "vision", 10, 10);
    browser.open(&page.of_job("j1").replace("127.0.0.1", "localhost"));
    shows(&browser, "live", 10, &["1 vision 10"]);

    let refused = Page::of_another_origin();
    browser.open(&refused.of_job("j1"));
    eventually("the page says why", || {
        let reason = browser.run("return document.getElementById('reason').textContent");
        reason.as_str().is_some_and(|reason| reason.contains("--sse-origins"))
    });
}
