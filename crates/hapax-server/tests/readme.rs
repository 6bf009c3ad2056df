//! Every curl line of the README and of the guides answers as printed there. `…` stands for what
//! differs from run to run.

use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};

struct Server(
    Child,
    #[expect(dead_code, reason = "held open while it runs")] BufReader<ChildStdout>,
);

impl Server {
    /// On a free port, in a folder of its own, as `cargo run --release` starts it.
    fn start(folder: &Path) -> (Self, String) {
        let mut process = Command::new(env!("CARGO_BIN_EXE_hapax"))
            .args(["serve", "--listen", "127.0.0.1:0"])
            .current_dir(folder)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("the server starts");
        let mut printed = BufReader::new(process.stdout.take().unwrap());
        let mut lines = printed.by_ref().lines();
        let address = lines
            .find_map(|line| {
                line.ok()?.split_once("http://").map(|(_, address)| address.to_owned())
            })
            .expect("the server says where it listens");
        (Self(process, printed), address.trim().to_owned())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

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
    examples.retain(|(command, _)| command.starts_with("curl"));
    examples
}

/// Whether the pieces between the `…` follow each other in the answer, from its start to its end.
fn answers(answer: &str, printed: &str) -> bool {
    let pieces: Vec<_> = printed.split('…').collect();
    let Some(mut rest) = answer.strip_prefix(pieces[0]) else { return false };
    for piece in &pieces[1..] {
        match rest.find(piece) {
            Some(at) => rest = &rest[at + piece.len()..],
            None => return false,
        }
    }
    rest.is_empty() || pieces.last() == Some(&"")
}

#[test]
fn every_curl_line_answers_as_printed() {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
    for (file, at_least) in [
        ("README.md", 7),
        ("docs/locks.md", 2),
        ("docs/commands.md", 1),
        ("docs/records.md", 2),
        ("docs/server.md", 4),
        ("docs/http.md", 15),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let (_server, address) = Server::start(folder.path());
        let text = std::fs::read_to_string(format!("{root}/{file}")).unwrap();
        let examples = examples(&text);
        assert!(examples.len() >= at_least, "{file} has lost its examples");
        let mut token = String::new();
        for (command, printed) in examples {
            // A token that an earlier line got is what a later line presents.
            let command = command
                .replace("localhost:8787", &address)
                .replace("\"token\":\"…\"", &format!("\"token\":\"{token}\""))
                .replace("Hapax-Token: …", &format!("Hapax-Token: {token}"));
            let output = Command::new("sh").args(["-c", &command]).output().unwrap();
            let answer = String::from_utf8(output.stdout).unwrap().replace(['\r', '\n'], "");
            assert!(answers(&answer, &printed), "{file}: {command}\n got {answer}\n not {printed}");
            if let Some((_, rest)) = answer.split_once("\"token\":\"") {
                token = rest.split('"').next().unwrap_or_default().to_owned();
            }
        }
    }
}
