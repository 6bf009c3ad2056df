//! `hapax token new`, and a server that accepts its token.

use crate::cli_support::{Setup, hapax, run};
use crate::support::has;
use sha2::{Digest, Sha256};

#[test]
fn token_lines_hold_the_hash_the_server_accepts() {
    let new = ["token", "new", "--name", "check\"out", "--tenant", "shop"];
    let made = run(hapax().args(new).args(["--scope", "data", "--scope", "admin"])).ok();
    let (token, lines) = made.split_once("\n\n").expect("the token, then the lines");
    let file: toml::Table = lines.parse().expect("TOML");
    let rule = &file["token"][0];
    let hash: String = Sha256::digest(token).iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(rule["sha256"].as_str(), Some(hash.as_str()));
    assert_eq!(rule["name"].as_str(), Some("check\"out"));
    assert_eq!(rule["tenant"].as_str(), Some("shop"));
    assert_eq!(rule["scopes"].as_array().map(Vec::len), Some(2));
    assert!(!lines.contains(token));

    let server = Setup::memory().file(lines).start();
    has(&server.run(["lock", "show", "x"]).failed(1), &["HAPAX_TOKEN"]);
    run(server.command(["lock", "show", "x"]).env("HAPAX_TOKEN", token)).ok();
    server.run(["lock", "show", "x", "--token", token]).ok();
    server.run(["lock", "show", "x", "--token", "another"]).failed(1);
}

#[test]
fn token_is_new_every_time() {
    let new = || run(hapax().args(["token", "new", "--name", "ci", "--json"])).json();
    let (first, second) = (new(), new());
    assert_ne!(first["token"], second["token"]);
    assert_eq!(first["scopes"], serde_json::json!(["data"]));
    assert_eq!(first["tenant"], "default");
}

#[test]
fn token_refuses_what_the_server_would_not_take() {
    let new = |more: [&str; 2]| run(hapax().args(["token", "new", "--name", "ci"]).args(more));
    new(["--tenant", ""]).failed(2);
    new(["--tenant", "two words"]).failed(2);
    new(["--scope", "everything"]).failed(2);
}

#[test]
fn fault_36_token_new_refuses_names_that_the_server_refuses() {
    let long = "x".repeat(256);
    for name in ["", "\x7f", "a\nb", &long] {
        has(&run(hapax().args(["token", "new", "--name", name])).failed(2), &["name"]);
        let file = format!(
            "[[token]]\nname = {}\nsha256 = '{}'\nscopes = ['data']",
            toml::Value::from(name),
            "0".repeat(64)
        );
        has(&Setup::memory().file(&file).refused(), &["name"]);
    }
}
