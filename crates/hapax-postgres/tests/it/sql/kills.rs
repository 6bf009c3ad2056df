//! `kill -9` of psql between any two statements: the order, its answer and its message are all there, or none is.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use hapax_testkit::{find_binary, scale, wait_for};

use super::PATIENT;
use crate::{SERVER, application};

/// One transaction: claim, effect, message, answer. `\gset` keeps the row in variables of psql.
fn statements(key: usize) -> [String; 7] {
    [
        "BEGIN;".to_owned(),
        format!("SELECT * FROM hapax_begin('CreateOrder', '{key}') \\gset"),
        format!("SELECT hapax_receive('shop', '{key}');"),
        format!("INSERT INTO orders VALUES ('{key}');"),
        format!("SELECT hapax_enqueue('orders', '{key}', 'placed');"),
        format!("SELECT hapax_complete('CreateOrder', '{key}', :'token', 201, body => 'placed');"),
        "COMMIT;".to_owned(),
    ]
}

/// An interactive psql.
struct Psql {
    process: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Psql {
    fn start(url: &str) -> Self {
        let mut process = Command::new(find_binary("psql").unwrap())
            .args(["--no-psqlrc", "--no-align", "--tuples-only", "--quiet"])
            .args(["--set", "ON_ERROR_STOP=1", "--dbname", url])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let input = process.stdin.take().unwrap();
        let output = BufReader::new(process.stdout.take().unwrap());
        Self { process, input, output }
    }

    /// Runs a statement to its end.
    fn run(&mut self, statement: &str) {
        writeln!(self.input, "{statement}\n\\echo done").unwrap();
        self.input.flush().unwrap();
        let mut line = String::new();
        while line.trim_end() != "done" {
            line.clear();
            let read = self.output.read_line(&mut line).unwrap();
            assert_ne!(read, 0, "psql ended at {statement}");
        }
    }

    fn kill(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }
}

impl Drop for Psql {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn psql_killed_between_statements_leaves_all_or_nothing() {
    let (url, own) = application("sql_kills").await;
    let steps = statements(0).len();
    for key in 0..steps * scale() as usize {
        let (statements, last) = (statements(key), key % steps);
        let mut psql = Psql::start(&url);
        statements[..=last].iter().for_each(|statement| psql.run(statement));
        psql.kill();
        // The server notices a dead client at the next read; until then the transaction is open.
        let sessions = "SELECT count(*) FROM pg_stat_activity WHERE datname = 'sql_kills' \
                        AND application_name = 'psql' AND pid <> pg_backend_pid()";
        wait_for("the end of the session", PATIENT, || {
            (SERVER.psql_in("sql_kills", sessions) == "0").then_some(())
        });
        let counts = format!(
            "SELECT (SELECT count(*) FROM orders WHERE id = '{key}'), \
                    (SELECT count(*) FROM hapax_outbox WHERE key = '{key}'), \
                    (SELECT count(*) FROM hapax_claims WHERE name = '{key}')"
        );
        let is_committed = last + 1 == steps;
        let expected = if is_committed { "1|1|2" } else { "0|0|0" };
        assert_eq!(SERVER.psql_in("sql_kills", &counts), expected, "after {}", statements[last]);

        // The caller runs the whole transaction again: it is granted, or told the answer.
        let begun = super::begin(&own, &format!("'CreateOrder', '{key}'")).await;
        match is_committed {
            true => assert_eq!(begun.body.as_deref(), Some(&b"placed"[..])),
            false => assert_eq!((&*begun.state, begun.attempt), ("granted", Some(1))),
        }
    }
}
