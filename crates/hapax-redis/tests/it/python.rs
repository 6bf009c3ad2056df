//! A Python service without hapax (`SET NX EX`, `DEL`, `GET`, `SET EX`) shares locks and records with hapax.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use hapax_core::document::{DocumentError, Documents, MatchCondition};
use hapax_core::lock::{LockError, Locks};
use hapax_testkit::Redis;
use serde_json::{Value, json};

struct Service {
    process: Child,
    questions: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Service {
    fn start(redis: &Redis) -> Self {
        let python = hapax_testkit::python().expect(
            "HAPAX_TEST_PYTHON is not set; run ./test.sh, which installs what the tests need",
        );
        let mut process = Command::new(python)
            .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/seed_services.py"))
            .arg(redis.url())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("Python starts");
        let questions = process.stdin.take().unwrap();
        let answers = BufReader::new(process.stdout.take().unwrap());
        Self { process, questions, answers }
    }

    fn ask(&mut self, question: Value) -> Value {
        writeln!(self.questions, "{question}").unwrap();
        let mut answer = String::new();
        self.answers.read_line(&mut answer).unwrap();
        serde_json::from_str(&answer).expect("the service answers")
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[tokio::test]
async fn python_and_hapax_locks_exclude_each_other() {
    let redis = Redis::start();
    let mut python = Service::start(&redis);
    let locks = Locks::new(Arc::new(crate::common::patient(&redis.url())));
    let key = "processing:user:U4af4980629";
    let (ttl, no_wait) = (Duration::from_secs(60), Duration::ZERO);

    // Held by Python: hapax gets the remaining time, and cannot release the lock.
    assert_eq!(python.ask(json!(["lock", key, 60])), json!(true));
    let Err(LockError::Held { retry_after }) = locks.take(key, ttl, no_wait).await else {
        panic!("hapax took a lock that Python holds");
    };
    assert!(retry_after <= ttl);
    let view = locks.look(key).await.unwrap();
    assert!(view.held && view.fence.is_none());
    let foreign = hapax_core::Token::presented("1");
    assert!(matches!(locks.release(key, &foreign).await, Err(LockError::Lost)));
    assert!(locks.look(key).await.unwrap().held);
    python.ask(json!(["unlock", key]));

    // Held by hapax: Python is refused, sees the TTL, and gets the lock after the release.
    let ticket = locks.take(key, ttl, no_wait).await.unwrap();
    assert_eq!(python.ask(json!(["lock", key, 60])), json!(false));
    assert!(python.ask(json!(["ttl", key])).as_u64().unwrap() <= 60);
    locks.release(key, &ticket.token).await.unwrap();
    assert_eq!(python.ask(json!(["lock", key, 60])), json!(true));

    // Python deletes any lock; hapax's late release does not affect the next owner.
    python.ask(json!(["unlock", key]));
    let late = locks.take(key, ttl, no_wait).await.unwrap();
    python.ask(json!(["unlock", key]));
    assert_eq!(python.ask(json!(["lock", key, 60])), json!(true));
    assert!(matches!(locks.release(key, &late.token).await, Err(LockError::Lost)));
    assert_eq!(python.ask(json!(["lock", key, 60])), json!(false));
}

#[tokio::test]
async fn python_and_hapax_records_are_the_same_plain_json() {
    let redis = Redis::start();
    let mut python = Service::start(&redis);
    let documents = Documents::new(Arc::new(crate::common::patient(&redis.url())));
    let key = "user:U123456789abcdef:last_transaction";
    let lunch = json!({"交易ID": "20251129-143000", "品項": "午餐", "原幣金額": 100.0});

    assert_eq!(python.ask(json!(["set", key, lunch, 3600])), json!(true));
    let read = documents.get::<Value>(key).await.unwrap().unwrap();
    assert_eq!(read.value, lunch);
    assert!(read.expires_in.is_some_and(|left| left <= Duration::from_secs(3600)));

    // Python reads hapax's edit, with the new TTL.
    let ttl = Some(Duration::from_secs(1800));
    let edit = json!({"品項": "工作午餐"});
    let edited = documents.patch(key, &edit, &read.version.clone().into(), ttl).await.unwrap();
    assert_eq!(python.ask(json!(["get", key])), edited.value);
    assert!(python.ask(json!(["ttl", key])).as_u64().unwrap() <= 1800);

    // After a write by Python, hapax's edit of an older version is a conflict.
    let dinner = json!({"交易ID": "20251129-140100", "品項": "晚餐"});
    python.ask(json!(["set", key, dinner, 3600]));
    for version in [read.version, edited.version] {
        let late = documents.patch(key, &edit, &version.into(), ttl).await;
        assert!(matches!(late, Err(DocumentError::Conflict)));
    }
    assert_eq!(python.ask(json!(["get", key])), dinner);
    documents.delete(key, &MatchCondition::Present).await.unwrap();
    assert_eq!(python.ask(json!(["get", key])), json!(null));
}
