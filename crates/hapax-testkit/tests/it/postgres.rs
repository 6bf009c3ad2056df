//! A PostgreSQL server: pauses, crashes, TLS.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::Command;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use hapax_testkit::{Postgres, find_binary, wait_for};

#[test]
fn postgres_restarts_with_its_commits_after_a_kill() {
    let postgres = Postgres::start();
    let url = format!("postgres://postgres@127.0.0.1:{}/postgres", postgres.port());
    assert_eq!(postgres.url(), url);
    postgres.psql("CREATE TABLE things (name text)");
    for round in 0..3 {
        postgres.psql(&format!("INSERT INTO things VALUES ('thing {round}')"));
        postgres.kill();
        postgres.restart();
    }
    let things = postgres.psql("SELECT name, length(name) FROM things ORDER BY name");
    assert_eq!(things, "thing 0|7\nthing 1|7\nthing 2|7");
    assert_eq!(postgres.psql("SHOW fsync"), "on");
}

#[test]
fn postgres_answers_after_a_pause() {
    let postgres = Postgres::start();
    postgres.stop();
    let (sender, answers) = mpsc::channel();
    thread::scope(|scope| {
        scope.spawn(|| sender.send(postgres.psql("SELECT 'late'")));
        let early = answers.recv_timeout(Duration::from_millis(300));
        postgres.cont();
        assert!(early.is_err(), "{early:?}");
        let late = answers.recv_timeout(Duration::from_secs(60));
        assert_eq!(late.as_deref(), Ok("late"));
    });
}

#[test]
fn postgres_can_be_killed_while_paused() {
    let postgres = Postgres::start();
    postgres.stop();
    postgres.kill();
    postgres.restart();
    assert_eq!(postgres.psql("SELECT 1"), "1");
}

/// The server still executes the statement of a client that was killed.
#[test]
fn wait_until_alone_waits_for_every_session() {
    let postgres = Postgres::start();
    let mut client = Command::new(find_binary("psql").unwrap())
        .arg(postgres.url())
        .args(["--no-psqlrc", "--command", "SELECT pg_sleep(1); CREATE TABLE late ()"])
        .spawn()
        .unwrap();
    wait_for("the client's statement", Duration::from_secs(60), || {
        // On a slow machine the statement may have ended already.
        let begun = "SELECT to_regclass('late') IS NOT NULL \
                     OR EXISTS (SELECT FROM pg_stat_activity WHERE wait_event = 'PgSleep')";
        (postgres.psql(begun) == "t").then_some(())
    });
    client.kill().unwrap();
    client.wait().unwrap();
    postgres.wait_until_alone();
    assert_eq!(postgres.psql("SELECT to_regclass('late') IS NOT NULL"), "t");
}

#[test]
fn postgres_takes_settings_and_makes_databases() {
    let postgres = Postgres::with(&[("max_connections", "50")]);
    assert_eq!(postgres.psql("SHOW max_connections"), "50");
    let url = postgres.database("fresh");
    assert!(url.ends_with("/fresh"));
    let current = postgres.psql_in("fresh", "SELECT current_database()");
    assert_eq!(current, "fresh");
    let refused = catch_unwind(AssertUnwindSafe(|| postgres.psql("SELECT nonsense")));
    assert!(refused.is_err());
}

#[test]
fn postgres_tls_is_required_and_verified() {
    let postgres = Postgres::tls();
    let encrypted = "SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()";
    assert_eq!(postgres.psql(encrypted), "t");
    postgres.kill();
    postgres.restart();
    assert_eq!(postgres.psql(encrypted), "t");
    let plain = Command::new("psql")
        .arg(postgres.url())
        .args(["--no-psqlrc", "--command", "SELECT 1"])
        .env("PGSSLMODE", "disable")
        .output()
        .unwrap();
    assert!(!plain.status.success(), "{plain:?}");
    assert!(postgres.ca_path().is_file());
}
