//! 100,000 rows behind a page: a page is as large as ever, and cursors reach every row once.

use std::collections::BTreeSet;
use std::time::Duration;

use hapax::activity::key_hash;
use hapax::sqlite::rusqlite::{Connection, TransactionBehavior};
use hapax::{ClaimRequest, Key, Operation, Tenant};
use serde_json::{Value, json};

use super::scene::Scene;
use crate::support::http::HttpRequest;
use crate::support::store::TestStore;
use crate::support::{eventually, has};

const ROWS: usize = 100_000;
/// The rows of one call, which is the most that the API gives, and of a page of the console.
const LARGEST_PAGE: usize = 1000;
const CONSOLE_PAGE: usize = 50;

/// The lists with many rows: page of the console, path with a query, name of the rows in the answer, member that names a row.
const LISTS: [(&str, &str, &str, &str); 3] = [
    ("unknown", "/v1/operator/commands?state=unknown&", "commands", "key"),
    ("locks", "/v1/operator/locks?", "locks", "key"),
    ("dead", "/v1/queues/outbox/dead?", "items", "id"),
];

/// Copies a row of a table until there are [`ROWS`] of its kind, with other values in some columns; `n` is the number of
/// the copy.
fn copy_row(file: &Connection, table: &str, which: &str, changed: &[(&str, &str)]) {
    let columns = format!("SELECT name FROM pragma_table_info('{table}')");
    let mut columns = file.prepare(&columns).unwrap();
    let columns = columns.query_map([], |row| row.get::<_, String>(0)).unwrap();
    let columns: Vec<_> = columns.map(Result::unwrap).collect();
    let value = |column: &String| {
        let changed = changed.iter().find(|(name, _)| name == column);
        changed.map_or(format!("t.{column}"), |(_, value)| (*value).to_owned())
    };
    let values: Vec<_> = columns.iter().map(value).collect();
    let sql = format!(
        "WITH RECURSIVE copies (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM copies WHERE n < {}) \
         INSERT INTO {table} ({}) SELECT {} FROM copies, {table} AS t WHERE {which}",
        ROWS - 1,
        columns.join(", "),
        values.join(", "),
    );
    assert_eq!(file.execute(&sql, []).unwrap(), ROWS - 1, "{sql}");
}

/// A scene with [`ROWS`] unknown outcomes, locks and dead letters each.
async fn filled_scene() -> Scene {
    let scene = Scene::start().await;
    scene.lose("pay", "0");
    assert_eq!(scene.post("/v1/locks/0", &json!({ "ttl_ms": 3_600_000 })).status, 201);
    scene.bury("customer", "no such topic").await;
    let TestStore::Sqlite(folder) = &scene.file else { unreachable!() };
    let mut file = Connection::open(folder.path().join("hapax.db")).unwrap();
    file.busy_timeout(crate::support::WAIT_TIMEOUT).unwrap();
    // Takes the write lock at once: a transaction that begins with a read does not wait for the server's writes.
    let filling = file.transaction_with_behavior(TransactionBehavior::Immediate).unwrap();
    for kind in ["command", "lock"] {
        let which = format!("t.kind = '{kind}' AND t.name = '0'");
        copy_row(&filling, "hapax_claims", &which, &[("name", "printf('%06d', n)")]);
    }
    let id = "printf('%08x', n) || substr(t.id, 9)";
    let changed = [("seq", "t.seq + n"), ("id", id), ("key", "'k' || n")];
    copy_row(&filling, "hapax_outbox", "t.state IN (4, 5)", &changed);
    filling.commit().unwrap();
    scene
}

fn names(page: &Value, rows: &str, name: &str) -> Vec<String> {
    let rows = page[rows].as_array().unwrap().iter();
    rows.map(|row| row[name].as_str().unwrap().to_owned()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn console_lists_100_000_rows_by_cursor() {
    let scene = filled_scene().await;
    for (_, path, rows, name) in LISTS {
        let read = |after: &str| {
            let path = format!("{path}limit={LARGEST_PAGE}{after}");
            // Not compared with the OpenAPI document, which would take longer than everything else.
            let page = HttpRequest::new(&scene.server.address, "GET", &path).bearer("ana").send();
            let page = page.json();
            (names(&page, rows, name), page["next"].as_str().map(str::to_owned))
        };
        let (mut seen, mut pages, mut after) = (BTreeSet::new(), 0, String::new());
        loop {
            let (found, next) = read(&after);
            pages += 1;
            assert!(found.len() == LARGEST_PAGE || next.is_none(), "{path}: {}", found.len());
            let first = found.first().cloned();
            for name in found {
                assert!(seen.insert(name), "{path}: a row comes twice");
            }
            // With offsets, a row that goes meanwhile would make the next page skip one.
            if pages == 2 {
                take_away(&scene, rows, &first.unwrap());
            }
            match next {
                Some(next) => after = format!("&after={next}"),
                None => break,
            }
        }
        assert_eq!((seen.len(), pages / 10), (ROWS, 10), "{path}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn key_of_a_caller_is_found_among_100_000_commands() {
    let scene = filled_scene().await;
    let caller = Tenant::default().scoped("abc").unwrap();
    let key = Key::command(&caller, Operation("refund"), "r1").unwrap();
    let hour = Duration::from_secs(3600);
    scene.store.claim(&key, &ClaimRequest::new(hour).retention(hour)).await.unwrap();
    // The console's search does not know the caller.
    let found = scene.get("/v1/operator/keys/command/refund/r1");
    assert_eq!((&found["state"], &found["key_hash"]), (&json!("pending"), &json!(key_hash(&key))));
    let missing = scene.server.get("/v1/operator/keys/command/refund/r2").bearer("ana");
    missing.is(404, "command-missing");
}

/// An operator decides about a row that was listed.
fn take_away(scene: &Scene, rows: &str, name: &str) {
    let path = match rows {
        "commands" => format!("/v1/operator/commands/pay/{name}"),
        "locks" => format!("/v1/operator/locks/{name}"),
        _ => format!("/v1/queues/outbox/dead/{name}"),
    };
    assert_eq!(scene.server.delete(&path).bearer("ana").status(), 204, "{path}");
}

#[tokio::test(flavor = "multi_thread")]
async fn console_turns_pages_with_100_000_rows_behind() {
    let scene = filled_scene().await;
    scene.sign_in("ana");
    scene.shows(&["100,000 commands with an unknown outcome", "100,000 dead letters in outbox"]);
    for (page, _, _, _) in LISTS {
        scene.go(page);
        let shown = || {
            scene.run(
                "return [...document.querySelectorAll('main .paged tbody tr')]
                     .map((row) => row.querySelector('[data-focus]').dataset.focus)",
            )
        };
        let turned = |button: &str, number: u32| {
            scene.click(button);
            scene.shows(&[&format!("Page {number}")]);
            shown()
        };
        eventually("the page is full", || shown().as_array().unwrap().len() == CONSOLE_PAGE);
        scene.shows(&["Page 1"]);
        let first = shown();
        let second = turned("Next ›", 2);
        let third = turned("Next ›", 3);
        assert_eq!(third.as_array().unwrap().len(), CONSOLE_PAGE, "{page}");
        assert!(first != second && second != third, "{page}");
        assert_eq!(turned("‹ Previous", 2), second, "{page}");
        if page == "unknown" {
            scene.click("Release all that match…");
            scene.wait_for("dialog[open]");
            let said = scene.text_of("dialog");
            has(&said, &["Release at least 1,000 commands with an unknown outcome."]);
            scene.click("Cancel");
        }
        scene.is_clean();
    }
}
