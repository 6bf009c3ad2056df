//! Every curl line of the README and the guides prints what is shown there, and so do the `hapax`
//! commands that need only a server. `…` stands for what differs from run to run.

use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Command, Stdio};

use crate::proxy_support::proxied;
use crate::support::server::Setup;

/// Pairs of a command and what is printed after it.
fn examples(text: &str) -> Vec<(String, String)> {
    let mut examples = Vec::new();
    let mut inside = false;
    for line in text.lines() {
        match line.strip_prefix("$ ") {
            _ if line.starts_with("```") => inside = line == "```console",
            Some(command) if inside => examples.push((command.to_owned(), String::new())),
            None if inside => {
                let (_, printed): &mut (String, String) = examples.last_mut().expect("a command");
                printed.push_str(line);
            }
            _ => {}
        }
    }
    examples.retain(|(command, _)| RUN.iter().any(|run| command.starts_with(run)));
    examples
}

/// How the lines begin that are run.
const RUN: [&str; 7] =
    ["curl", "echo", "python3", "hapax publish", "hapax follow scan", "hapax queue show", RELAY];
/// A command that never ends: its first line counts.
const RELAY: &str = "hapax relay --from sqlite:hapax.db --to stdout";

/// In the server's folder, with `hapax` at hand.
fn run(command: &str, folder: &Path, address: &str) -> String {
    let bin = Path::new(env!("CARGO_BIN_EXE_hapax")).parent().unwrap().display();
    let path = std::env::var("PATH").unwrap_or_default();
    let mut process = Command::new("sh")
        .args(["-c", &format!("{}{command}", if command == RELAY { "exec " } else { "" })])
        .current_dir(folder)
        .env("PATH", format!("{bin}:{path}"))
        .env("HAPAX_SERVER", format!("http://{address}"))
        // A busy machine must not fail a store call.
        .env("HAPAX_STORE_TIMEOUT", "20s")
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut printed = BufReader::new(process.stdout.take().unwrap());
    let mut answer = String::new();
    if command == RELAY {
        printed.read_line(&mut answer).unwrap();
        process.kill().unwrap();
    } else {
        printed.read_to_string(&mut answer).unwrap();
    }
    process.wait().unwrap();
    answer.replace(['\r', '\n'], "")
}

fn between<'a>(answer: &'a str, from: &str, to: impl Fn(char) -> bool) -> Option<&'a str> {
    let (_, rest) = answer.split_once(from)?;
    rest.split(to).next()
}

/// Whether the pieces between the `…` follow each other in the answer, from its start to its end.
fn answers(answer: &str, printed: &str) -> bool {
    let Some((first, pieces)) = printed.split_once('…') else { return answer == printed };
    let Some(mut rest) = answer.strip_prefix(first) else { return false };
    let (middle, last) = pieces.rsplit_once('…').unwrap_or(("", pieces));
    for piece in middle.split('…') {
        match rest.find(piece) {
            Some(at) => rest = &rest[at + piece.len()..],
            None => return false,
        }
    }
    rest.ends_with(last)
}

#[tokio::test(flavor = "multi_thread")]
async fn docs_curl_lines_answer_as_printed() {
    // The README's service that counts its runs, behind a proxy.
    let (_upstream, proxy) = proxied(&[]).await;
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
    for (file, at_least) in [
        ("README.md", 6),
        ("docs/locks.md", 2),
        ("docs/commands.md", 1),
        ("docs/records.md", 2),
        ("docs/server.md", 4),
        ("docs/http.md", 25),
        ("docs/events.md", 15),
        ("docs/inbox.md", 7),
        ("docs/outbox.md", 3),
    ] {
        let server = Setup::new().start();
        let (address, folder) = (&server.address, server.folder.path());
        let text = std::fs::read_to_string(format!("{root}/{file}")).unwrap();
        let examples = examples(&text);
        assert!(examples.len() >= at_least, "{file} has lost its examples");
        let (mut token, mut epoch) = (String::new(), String::new());
        for (command, printed) in examples {
            // Later lines use the token and the epoch that an earlier line printed.
            let command = command
                .replace("localhost:8787", address)
                .replace("localhost:8788", &proxy.address)
                .replace("\"token\":\"…\"", &format!("\"token\":\"{token}\""))
                .replace("Hapax-Token: …", &format!("Hapax-Token: {token}"))
                .replace("…-", &format!("{epoch}-"));
            let answer = run(&command, folder, address);
            assert!(answers(&answer, &printed), "{file}: {command}\n got {answer}\n not {printed}");
            if let Some(given) = between(&answer, "\"token\":\"", |c| c == '"') {
                token = given.to_owned();
            }
            if let Some(given) = between(&answer, "\"epoch\":", |c| !c.is_ascii_digit()) {
                epoch = given.to_owned();
            }
        }
    }
}
