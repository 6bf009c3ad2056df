//! Two transactions with one key, at every isolation level.

use std::sync::Arc;
use std::time::Duration;

use hapax_core::command::{Begun, CommandConfig, Commands, StoredResponse};
use hapax_core::{Operation, Token};
use tokio::task::JoinSet;
use tokio_postgres::IsolationLevel;

use super::{LEVELS, begin, code_of, is_true, lease_runs_out, someone_waits, start, try_begin};
use crate::{application, client, open};

fn complete(token: &str) -> String {
    format!("hapax_complete('o', 'k', '{token}', 201, body => 'first')")
}

/// The first transaction is still open when the second one is answered: it cannot have waited for it.
#[tokio::test]
async fn sql_duplicate_is_told_in_progress_at_once() {
    let (url, mut first) = application("sql_at_once").await;
    let mut second = client(&url).await;
    for (n, level) in LEVELS.into_iter().enumerate() {
        let arguments = format!("'o', 'k{n}'");
        let tx = start(&mut first, level).await;
        let granted = begin(&tx, &arguments).await;
        let other = start(&mut second, level).await;
        let told = begin(&other, &arguments).await;
        assert_eq!((&*told.state, told.retry_after_ms), ("in-progress", Some(100)), "{level:?}");
        // The second transaction can go on.
        other.batch_execute("INSERT INTO orders VALUES ('another')").await.unwrap();
        other.commit().await.unwrap();
        let sql = format!("hapax_complete('o', 'k{n}', '{}', 200)", granted.token());
        assert!(is_true(&tx, &sql).await);
        tx.commit().await.unwrap();
        assert_eq!(begin(&second, &arguments).await.state, "completed");
    }
}

#[tokio::test]
async fn sql_wait_ends_with_the_first_transaction() {
    let (url, mut first) = application("sql_wait").await;
    let observer = client(&url).await;
    for (n, level) in LEVELS.into_iter().enumerate() {
        for is_committed in [true, false] {
            let key = format!("k{n}{is_committed}");
            let tx = start(&mut first, level).await;
            let granted = begin(&tx, &format!("'o', '{key}'")).await;
            let mut second = client(&url).await;
            let arguments = format!("'o', '{key}', wait => true");
            let waiting = tokio::spawn(async move {
                let other = start(&mut second, level).await;
                let answer = try_begin(&other, &arguments).await;
                let is_usable = other.batch_execute("SELECT 1").await.is_ok();
                let lock_timeout: Option<String> = match is_usable {
                    true => Some(other.query_one("SHOW lock_timeout", &[]).await.unwrap().get(0)),
                    false => None,
                };
                (answer, lock_timeout)
            });
            someone_waits(&observer).await;
            let sql = format!("hapax_complete('o', '{key}', '{}', 201)", granted.token());
            assert!(is_true(&tx, &sql).await);
            match is_committed {
                true => tx.commit().await.unwrap(),
                false => tx.rollback().await.unwrap(),
            }
            let (answer, lock_timeout) = waiting.await.unwrap();
            match (is_committed, level) {
                (true, IsolationLevel::ReadCommitted) => {
                    let told = answer.unwrap();
                    assert_eq!((&*told.state, told.status), ("completed", Some(201)));
                    assert_eq!(lock_timeout.as_deref(), Some("0"), "the setting of the caller");
                }
                // The snapshot is older than the answer: the transaction has to run again.
                (true, _) => assert_eq!(code_of(&answer.unwrap_err()), "40001", "{level:?}"),
                (false, _) => assert_eq!(answer.unwrap().state, "granted", "{level:?}"),
            }
        }
    }
}

#[tokio::test]
async fn sql_wait_is_bounded_by_lock_timeout() {
    let (url, mut first) = application("sql_lock_timeout").await;
    let mut second = client(&url).await;
    for level in LEVELS {
        let tx = start(&mut first, level).await;
        let granted = begin(&tx, "'o', 'k'").await;
        let other = start(&mut second, level).await;
        other.batch_execute("SET LOCAL lock_timeout = '50ms'").await.unwrap();
        assert_eq!(begin(&other, "'o', 'k', wait => true").await.state, "in-progress");
        let kept: String = other.query_one("SHOW lock_timeout", &[]).await.unwrap().get(0);
        assert_eq!(kept, "50ms");
        assert_eq!(begin(&other, "'o', 'another'").await.state, "granted");
        other.rollback().await.unwrap();
        assert!(!granted.token().is_empty());
        tx.rollback().await.unwrap();
    }
}

/// Two transactions that wait for each other: one of them is told in-progress, and none is aborted.
#[tokio::test]
async fn sql_deadlock_is_told_in_progress() {
    let (url, first) = application("sql_deadlock").await;
    let second = client(&url).await;
    for own in [&first, &second] {
        own.batch_execute("BEGIN; SET LOCAL deadlock_timeout = '10ms'").await.unwrap();
    }
    begin(&first, "'o', 'a'").await;
    begin(&second, "'o', 'b'").await;
    let crossed = async {
        tokio::join!(
            async {
                let told = begin(&first, "'o', 'b', wait => true").await.state;
                first.batch_execute("COMMIT").await.unwrap();
                told
            },
            async {
                let told = begin(&second, "'o', 'a', wait => true").await.state;
                second.batch_execute("COMMIT").await.unwrap();
                told
            }
        )
    };
    let (one, other) = crossed.await;
    assert!([&*one, &*other].contains(&"in-progress"), "{one} {other}");
}

#[tokio::test]
async fn sql_rollback_leaves_nothing() {
    let (_, mut own) = application("sql_rollback").await;
    for level in LEVELS {
        let tx = start(&mut own, level).await;
        let granted = begin(&tx, "'o', 'k'").await;
        assert_eq!(granted.attempt, Some(1));
        assert!(is_true(&tx, &complete(granted.token())).await);
        assert!(is_true(&tx, "hapax_receive('c', 'm')").await);
        tx.batch_execute("SELECT hapax_enqueue('t', 'k', 'x')").await.unwrap();
        tx.batch_execute("SELECT hapax_lock('l'), hapax_record_put('r', '1')").await.unwrap();
        tx.rollback().await.unwrap();
        for table in ["hapax_claims", "hapax_outbox", "hapax_records"] {
            assert!(is_true(&own, &format!("NOT EXISTS (SELECT FROM {table})")).await, "{table}");
        }
    }
}

/// A transaction that was told in-progress keeps no lock: the owner completes while it is open.
#[tokio::test]
async fn sql_in_progress_does_not_hold_up_the_owner() {
    let (url, mut own) = application("sql_no_hold_up").await;
    let commands = Commands::new(Arc::new(open(&url)));
    for (n, level) in LEVELS.into_iter().enumerate() {
        for wait in [false, true] {
            let key = format!("k{n}{wait}");
            let begun = commands.begin(Operation("o"), &key, &CommandConfig::default()).await;
            let Ok(Begun::Granted { ticket, .. }) = begun else { panic!("{begun:?}") };
            let tx = start(&mut own, level).await;
            let told = begin(&tx, &format!("'o', '{key}', wait => {wait}")).await;
            assert_eq!(told.state, "in-progress", "{level:?}");
            assert!(told.retry_after_ms.unwrap() > 100, "the rest of the lease: {told:?}");
            let wrong = format!("hapax_complete('o', '{key}', 'another', 200)");
            assert!(!is_true(&tx, &wrong).await);
            let response = StoredResponse { status: 200, headers: vec![], body: "x".into() };
            commands.complete(Operation("o"), &key, &ticket.token, &response).await.unwrap();
            tx.commit().await.unwrap();
        }
    }
}

/// A snapshot from before a change must not be answered from: the answer would be wrong.
#[tokio::test]
async fn sql_old_snapshot_is_a_serialization_failure() {
    let (url, mut own) = application("sql_old_snapshot").await;
    let other = client(&url).await;
    let snapshot = "SELECT count(*) FROM orders";
    for (n, level) in LEVELS.into_iter().enumerate().skip(1) {
        // The claim was granted after the snapshot.
        let tx = start(&mut own, level).await;
        tx.batch_execute(snapshot).await.unwrap();
        let later = begin(&other, &format!("'o', 'new{n}'")).await;
        assert_eq!(code_of(&try_begin(&tx, &format!("'o', 'new{n}'")).await.unwrap_err()), "40001");
        tx.rollback().await.unwrap();
        let tx = start(&mut own, level).await;
        tx.batch_execute(snapshot).await.unwrap();
        let newest = begin(&other, &format!("'o', 'newest{n}'")).await;
        let sql = format!("SELECT hapax_complete('o', 'newest{n}', '{}', 200)", newest.token());
        assert_eq!(super::error_code(&tx, &sql).await, "40001");
        tx.rollback().await.unwrap();

        // The claim was completed after the snapshot, which shows it as unknown.
        let brief = begin(&other, &format!("'o', 'brief{n}', lease => '1 ms'")).await;
        lease_runs_out(&other).await;
        let tx = start(&mut own, level).await;
        tx.batch_execute(snapshot).await.unwrap();
        let done = format!("hapax_complete('o', 'brief{n}', '{}', 200)", brief.token());
        assert!(is_true(&other, &done).await);
        assert_eq!(
            code_of(&try_begin(&tx, &format!("'o', 'brief{n}'")).await.unwrap_err()),
            "40001"
        );
        tx.rollback().await.unwrap();

        // The claim was completed after the snapshot, which shows it as pending.
        let tx = start(&mut own, level).await;
        tx.batch_execute(snapshot).await.unwrap();
        let done = format!("hapax_complete('o', 'new{n}', '{}', 200)", later.token());
        assert!(is_true(&other, &done).await);
        assert_eq!(code_of(&try_begin(&tx, &format!("'o', 'new{n}'")).await.unwrap_err()), "40001");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn sql_effect_runs_in_one_of_many_transactions() {
    let (url, own) = application("sql_race").await;
    for (n, level) in LEVELS.into_iter().enumerate() {
        let mut running = JoinSet::new();
        for racer in 0..12 {
            let url = url.clone();
            running.spawn(async move {
                let mut own = client(&url).await;
                let arguments = format!("'o', 'k{n}', wait => {}", racer % 2 == 0);
                loop {
                    let tx = start(&mut own, level).await;
                    let told = match try_begin(&tx, &arguments).await {
                        Ok(told) => told,
                        Err(error) => {
                            assert_eq!(code_of(&error), "40001");
                            continue;
                        }
                    };
                    match &*told.state {
                        "granted" => {
                            let insert = format!("INSERT INTO orders VALUES ('{n}')");
                            tx.batch_execute(&insert).await.unwrap();
                            let sql =
                                format!("hapax_complete('o', 'k{n}', '{}', 200)", told.token());
                            assert!(is_true(&tx, &sql).await);
                            if tx.commit().await.is_ok() {
                                return true;
                            }
                        }
                        "completed" => return false,
                        "in-progress" => {
                            drop(tx);
                            tokio::time::sleep(Duration::from_millis(5)).await;
                        }
                        other => panic!("{other}"),
                    }
                }
            });
        }
        let runs = running.join_all().await.into_iter().filter(|ran| *ran).count();
        assert_eq!(runs, 1, "{level:?}");
        assert!(is_true(&own, &format!("count(*) = 1 FROM orders WHERE id = '{n}'")).await);
    }
}

/// A transaction pooler gives each transaction another connection, and keeps none of their settings.
#[tokio::test]
async fn sql_functions_leave_no_session_state() {
    let (url, own) = application("sql_pooler").await;
    let (second, third) = (client(&url).await, client(&url).await);
    let state = "SELECT coalesce(string_agg(name || '=' || setting, ',' ORDER BY name), '') \
                 FROM pg_settings WHERE name IN ('search_path', 'lock_timeout', 'enable_seqscan', \
                 'enable_bitmapscan', 'role')";
    let before: String = own.query_one(state, &[]).await.unwrap().get(0);
    let granted = begin(&own, "'o', 'k', wait => true").await;
    assert_eq!(begin(&second, "'o', 'k', wait => true").await.state, "in-progress");
    assert!(is_true(&third, &complete(granted.token())).await);
    assert_eq!(begin(&second, "'o', 'k'").await.state, "completed");
    for session in [&own, &second, &third] {
        assert_eq!(session.query_one(state, &[]).await.unwrap().get::<_, String>(0), before);
    }
    let locks = "NOT EXISTS (SELECT FROM pg_locks WHERE locktype = 'advisory' AND database = \
                 (SELECT oid FROM pg_database WHERE datname = current_database()))";
    assert!(is_true(&own, locks).await, "no lock outlives its transaction");
}

/// Waiters on other nodes are woken at the commit, unless the claim was begun in the same transaction.
#[tokio::test]
async fn sql_completion_notifies_waiters() {
    use listener::notifications;
    let (url, own) = application("sql_notify").await;
    let mut heard = notifications(&url).await;
    let key = |name| hapax_core::Key::command(&hapax_core::Tenant::default(), Operation("o"), name);
    own.batch_execute("BEGIN").await.unwrap();
    let same = begin(&own, "'o', 'same'").await;
    assert!(is_true(&own, &format!("hapax_complete('o', 'same', '{}', 200)", same.token())).await);
    own.batch_execute("COMMIT").await.unwrap();
    let earlier = begin(&own, "'o', 'earlier'").await;
    // The transaction of the failure begins in a later millisecond than the grant.
    lease_runs_out(&own).await;
    let token = Token::presented(earlier.token());
    assert!(is_true(&own, &format!("hapax_fail('o', 'earlier', '{}')", token.as_str())).await);
    let digest = format!("{:x}", key("earlier").unwrap().digest());
    let first = tokio::time::timeout(super::PATIENT, heard.recv()).await.unwrap().unwrap();
    assert_eq!(first, digest);
}

mod listener {
    use std::future::poll_fn;

    use tokio::sync::mpsc;
    use tokio_postgres::{AsyncMessage, NoTls};

    /// The payloads of notifications for waiters.
    pub(super) async fn notifications(url: &str) -> mpsc::UnboundedReceiver<String> {
        let (client, mut connection) = tokio_postgres::connect(url, NoTls).await.unwrap();
        let (heard, receiver) = mpsc::unbounded_channel();
        tokio::spawn(async move {
            while let Some(Ok(message)) = poll_fn(|cx| connection.poll_message(cx)).await {
                if let AsyncMessage::Notification(note) = message {
                    let _ = heard.send(note.payload().to_owned());
                }
            }
        });
        client.batch_execute("LISTEN hapax_wake").await.unwrap();
        // The connection ends with its client.
        std::mem::forget(client);
        receiver
    }
}
