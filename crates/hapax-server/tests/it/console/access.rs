//! Signing in and out, keyboard, narrow windows, and switching the console off.

use hapax_testkit::Browser;
use serde_json::json;

use super::scene::{PAGES, Scene};
use crate::support::eventually;
use crate::support::server::{Server, Setup};

#[tokio::test(flavor = "multi_thread")]
async fn console_is_used_by_keyboard_alone() {
    let scene = Scene::start().await;
    scene.wait_for(".sign-in input[name=token]");
    eventually("the server is ready", || scene.text_of(".sign-in").contains("Ready"));
    scene.browser.press(&format!("wrong{}", Browser::ENTER));
    eventually("the token is refused", || {
        scene.text_of(".sign-in .problem").contains("does not know that token")
    });
    scene.browser.errors();
    // The wrong token is selected, so that the next one replaces it.
    scene.browser.press(&format!("ana{}", Browser::ENTER));
    scene.wait_for(".shell h1");
    assert_eq!(scene.text_of("main h1"), "Overview");

    assert_eq!(scene.post("/v1/locks/l1", &json!({ "ttl_ms": 600_000 })).status, 201);
    scene.go("locks");
    scene.shows(&["hidden"]);
    scene.run("document.querySelector('[data-reveal]').focus()");
    scene.browser.press(Browser::ENTER);
    scene.wait_for("dialog[open]");
    scene.browser.press(Browser::ESCAPE);
    eventually("Esc closes the dialog", || !scene.is_there("dialog"));
    assert_eq!(scene.run("return document.activeElement.dataset.reveal"), json!(""));
    scene.browser.press(Browser::ENTER);
    scene.wait_for("dialog[open]");
    scene.browser.press(&format!("why not{}", Browser::ENTER));
    scene.shows(&["Revealed", "l1"]);
    scene.is_audited("reveal", "why not");

    scene.go("unknown");
    scene.browser.press("/");
    assert_eq!(scene.run("return document.activeElement.name"), json!("operation"));
    scene.go("tenants");
    scene.browser.press("/");
    eventually("the search of keys is open", || {
        scene.run("return document.activeElement?.name") == json!("key")
    });
    scene.is_clean();
}

#[tokio::test(flavor = "multi_thread")]
async fn console_session_ends_with_sign_out() {
    let scene = Scene::start().await;
    scene.sign_in("ana");
    assert_eq!(scene.run("return document.cookie"), json!(""), "scripts do not see the cookie");
    scene.browser.refresh();
    scene.wait_for(".shell h1");
    scene.click("Sign out");
    scene.wait_for(".sign-in input[name=token]");
    scene.is_clean();
    let status = "return fetch('/v1/operator/overview').then((answer) => answer.status)";
    assert_eq!(scene.run(status), json!(401));
}

#[tokio::test(flavor = "multi_thread")]
async fn console_pages_load_cleanly_and_are_labelled() {
    let scene = Scene::start().await;
    scene.run_twice("pay", "k1", "paid");
    scene.bury("a", "no such topic").await;
    scene.sign_in("ana");
    for page in PAGES {
        scene.go(page);
        let unlabelled = scene.run(
            "const named = (one) => one.labels?.length > 0 || one.getAttribute('aria-label');
             return [...document.querySelectorAll('input, select, textarea')]
                 .filter((one) => !named(one)).map((one) => one.outerHTML)",
        );
        assert_eq!(unlabelled, json!([]), "{page}");
        let tables = scene.run(
            "return [...document.querySelectorAll('table')].filter((one) => !one.caption
                 || [...one.querySelectorAll('th')].some((head) => head.scope !== 'col')).length",
        );
        assert_eq!(tables, json!(0), "{page}: tables have captions and heads");
        let headings = "return document.querySelectorAll('main h1').length";
        assert_eq!(scene.run(headings), json!(1), "{page}");
        assert!(!scene.is_there("main .problem:not([hidden])"), "{page}: {}", scene.text());
        let foreign = scene.run(
            "return performance.getEntriesByType('resource').map((one) => one.name)
                 .filter((name) => !name.startsWith(location.origin))",
        );
        assert_eq!(foreign, json!([]), "{page}");
        let calls = scene.run(
            "return performance.getEntriesByType('resource').map((one) => new URL(one.name).pathname)
                 .filter((path) => !/^\\/(console|v1|readyz)\\b/.test(path))",
        );
        assert_eq!(calls, json!([]), "{page} calls something that is not public");
        scene.is_clean();
    }
}

/// The texts of a page whose contrast to their background is less than 4.5 to 1 (WCAG 2, level AA).
const FAINT_TEXTS: &str = "
    const canvas = document.createElement('canvas').getContext('2d', { willReadFrequently: true });
    const rgba = (colour) => {
        canvas.clearRect(0, 0, 1, 1);
        canvas.fillStyle = colour;
        canvas.fillRect(0, 0, 1, 1);
        return [...canvas.getImageData(0, 0, 1, 1).data];
    };
    const behind = (one) => {
        for (let at = one; at; at = at.parentElement) {
            const colour = rgba(getComputedStyle(at).backgroundColor);
            if (colour[3] === 255) return colour;
        }
        return [255, 255, 255, 255];
    };
    const luminance = (colour) => {
        const [r, g, b] = colour.slice(0, 3).map((part) => part / 255)
            .map((part) => (part <= 0.03928 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4));
        return 0.2126 * r + 0.7152 * g + 0.0722 * b;
    };
    const contrast = (one) => {
        const [low, high] = [rgba(getComputedStyle(one).color), behind(one)].map(luminance).sort((a, b) => a - b);
        return (high + 0.05) / (low + 0.05);
    };
    const hasText = (one) => [...one.childNodes].some((node) => node.nodeType === 3 && node.data.trim());
    return [...document.querySelectorAll('body *')]
        .filter((one) => hasText(one) && one.getClientRects().length > 0 && contrast(one) < 4.5)
        .map((one) => `${one.outerHTML.slice(0, 80)} ${contrast(one).toFixed(2)}`)";

#[tokio::test(flavor = "multi_thread")]
async fn console_texts_have_contrast_in_light_and_dark() {
    let scene = Scene::start().await;
    scene.run_twice("pay", "k1", "paid");
    scene.lose("pay", "k2");
    scene.bury("a", "no such topic").await;
    assert_eq!(scene.post("/v1/locks/l1", &json!({ "ttl_ms": 600_000 })).status, 201);
    scene.sign_in("ana");
    for scheme in ["light", "dark"] {
        scene.browser.set_view(1280, 900, scheme);
        for page in PAGES {
            scene.go(page);
            assert_eq!(scene.run(FAINT_TEXTS), json!([]), "{page} in {scheme}");
        }
        scene.go("locks");
        scene.click("Force release…");
        scene.wait_for("dialog[open]");
        assert_eq!(scene.run(FAINT_TEXTS), json!([]), "the dialog in {scheme}");
        scene.browser.press(Browser::ESCAPE);
        eventually("the dialog is closed", || !scene.is_there("dialog"));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn console_pages_fit_a_narrow_window() {
    let scene = Scene::start().await;
    scene.run_twice("pay", "k1", "paid");
    scene.lose("pay", "k2");
    scene.bury("a", "a reason that is long enough to need several lines in a narrow window").await;
    scene.enqueue("b").await;
    scene.sign_in("ana");
    scene.browser.set_view(360, 740, "dark");
    for page in PAGES {
        scene.go(page);
        let wide = scene.run("return document.documentElement.scrollWidth - window.innerWidth");
        assert_eq!(wide, json!(0), "{page} is wider than the window");
    }
    let link =
        "return document.querySelector(\"nav a[href='#/overview']\").getClientRects().length";
    assert_eq!(scene.run(link), json!(0), "the navigation is closed");
    scene.click("Menu");
    assert_eq!(scene.run(link), json!(1));
    scene.run("document.querySelector(\"nav a[href='#/overview']\").click()");
    eventually("choosing a page closes it", || scene.run(link) == json!(0));
    scene.is_clean();
}

#[test]
fn console_is_open_on_loopback_without_tokens() {
    let server = Server::start();
    let browser = Browser::start();
    browser.open(&server.url());
    eventually("the console is there", || {
        let who = browser.run("return document.querySelector('.who')?.innerText ?? ''");
        who.as_str().is_some_and(|who| who.contains("Operator") && !who.contains("Sign out"))
    });
    let masked = "return fetch('/v1/operator/locks?reveal=false').then((answer) => answer.status)";
    assert_eq!(browser.run(masked), json!(200));
    assert_eq!(browser.errors(), Vec::<String>::new());
}

#[test]
fn console_off_serves_nothing_of_it() {
    let server = Setup::memory().flags(&["--console", "off"]).start();
    for path in ["/", "/console/main.js", "/v1/session"] {
        server.get(path).is(404, "not-found");
    }
    assert_eq!(server.get("/v1/operator/overview").status(), 200, "scripts go on");
}

#[tokio::test(flavor = "multi_thread")]
async fn console_reveal_never_offers_no_reveal() {
    let scene = Scene::start_with(&["--console-reveal", "never"]).await;
    assert_eq!(scene.post("/v1/locks/l1", &json!({ "ttl_ms": 600_000 })).status, 201);
    scene.sign_in("ana");
    scene.go("locks");
    scene.shows(&["hidden"]);
    assert_eq!(scene.action_buttons(), json!(["Force release…"]), "without a reveal");
    let asked = "return fetch('/v1/operator/locks?reveal=true').then((answer) => answer.status)";
    assert_eq!(scene.run(asked), json!(403));
}
