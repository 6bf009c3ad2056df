//! `hapax record` against a real server.

use crate::cli_support::Server;
use crate::support::has;

fn version(server: &Server, key: &str) -> String {
    let shown = server.run(["record", "get", key, "-i"]).ok();
    let line = shown.lines().find_map(|line| line.strip_prefix("ETag: ")).expect("an ETag");
    line.trim_matches('"').to_owned()
}

#[test]
fn record_is_put_read_patched_and_deleted() {
    let server = Server::start();
    let key = "user:U1:last_transaction";
    let put = server.run(["record", "put", key, r#"{"amount":100,"note":"tea"}"#, "--ttl", "1h"]);
    assert_eq!(put.ok(), "created\n");
    let changed = server.run(["record", "put", key, r#"{"amount":1.50,"note":"x"}"#]);
    assert_eq!(changed.ok(), "changed\n");
    // As it was written, digit for digit.
    assert_eq!(server.run(["record", "get", key]).ok(), "{\"amount\":1.50,\"note\":\"x\"}\n");
    let patched = server.run(["record", "patch", key, r#"{"amount":90,"note":null}"#]).json();
    assert_eq!(patched, serde_json::json!({"amount": 90}));
    let shown = server.run(["record", "get", key, "--show-version"]).ok();
    assert!(shown.contains("ETag: \"") && shown.contains("Hapax-Expires-In-Ms: "), "{shown}");
    assert!(shown.ends_with("\n\n{\"amount\":90}\n"), "{shown}");
    server.run(["record", "delete", key]).ok();
    has(&server.run(["record", "get", key]).failed(3), &["record-missing"]);
    server.run(["record", "delete", key]).failed(3);
    server.run(["record", "patch", key, "{}"]).failed(3);
}

#[test]
fn record_second_change_of_a_version_is_refused() {
    let server = Server::start();
    server.run(["record", "put", "cart", "1"]).ok();
    let version = version(&server, "cart");
    server.run(["record", "put", "cart", "2", "--if-match", &version]).ok();
    for action in [&["put", "cart", "3"][..], &["patch", "cart", "3"], &["delete", "cart"]] {
        let arguments = [&["record"], action, &["--if-match", &version]].concat();
        has(&server.run(arguments).failed(4), &["version-mismatch", "read it again"]);
    }
    assert_eq!(server.run(["record", "get", "cart"]).ok(), "2\n");
    server.run(["record", "put", "cart", "4", "--if-none-match"]).failed(4);
    server.run(["record", "put", "other", "4", "--if-none-match"]).ok();
    let both = ["record", "put", "x", "1", "--if-none-match", "--if-match", "y"];
    server.run(both).failed(2);
}

#[test]
fn record_value_comes_from_file_and_standard_input() {
    let server = Server::start();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("cart.json");
    std::fs::write(&file, "[1,2]").unwrap();
    server.run(["record", "put", "a", &format!("@{}", file.display())]).ok();
    assert_eq!(server.run(["record", "get", "a"]).ok(), "[1,2]\n");
    server.run_with_input(&["record", "put", "b"], b"[3]").ok();
    server.run_with_input(&["record", "put", "c", "-"], b"[4]").ok();
    assert_eq!(server.run(["record", "get", "b"]).ok(), "[3]\n");
    assert_eq!(server.run(["record", "get", "c"]).ok(), "[4]\n");
    server.run(["record", "put", "d", "@no-such-file"]).failed(1);
    server.run(["record", "put", "d", "{broken"]).failed(1);
    server.run(["record", "get", "d"]).failed(3);
}
