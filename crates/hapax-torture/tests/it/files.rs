//! Histories on disk, and the picture of a violation.

use std::process::Command;

use hapax_torture::history::{
    CallOutcome, CommandAnswer, HistoryEntry, LogPosition, Observation, ProxyAnswer, SeenFrame,
    SeenRecord, read_history, write_history,
};
use hapax_torture::{TortureReport, check_history, draw_timeline};

fn entry(client: u32, from: u64, to: u64, what: Observation) -> HistoryEntry {
    HistoryEntry { from, to, client, what }
}

fn take(fence: u64) -> Observation {
    let outcome = CallOutcome::Done(fence);
    Observation::LockTake { key: "report".to_owned(), ttl_ms: 1000, outcome }
}

#[test]
fn torture_history_survives_its_file() {
    let at = LogPosition { epoch: u64::MAX, offset: 3 };
    let text = |text: &str| text.to_owned();
    let history = [
        take(7),
        Observation::RecordGet {
            key: text("r"),
            outcome: CallOutcome::Done(Some(SeenRecord { version: text("\"1\""), value: 1 << 60 })),
        },
        Observation::CommandBegin {
            key: text("c"),
            fingerprint: text("f"),
            rerun: true,
            lease_ms: 1,
            outcome: CallOutcome::Done(CommandAnswer::Replayed(text("\u{0}\n\u{2615}"))),
        },
        Observation::Followed { job: text("j"), frame: SeenFrame::Event(text("s"), 1, at) },
        Observation::ProxyRequest {
            key: text("p"),
            outcome: CallOutcome::Done(ProxyAnswer { body: text("b"), replayed: true }),
        },
        Observation::OutboxCommit {
            id: text("i"),
            key: text("k"),
            outcome: CallOutcome::Unknown(text("cut")),
        },
        Observation::Fault { kind: text("kill-hapax"), target: text("serve-1") },
    ];
    let history = history.map(|what| entry(1, 2, u64::MAX, what));
    let mut file = Vec::new();
    write_history(&history, &mut file).expect("it can be written");
    assert_eq!(read_history(file.as_slice()).expect("it can be read"), history);
    assert!(read_history(b"{}".as_slice()).is_err());
}

#[test]
fn torture_replay_names_the_store_and_seed_of_the_run() {
    let file = tempfile::NamedTempFile::new().expect("a file");
    let store = "redis-sentinel".to_owned();
    let again = Observation::AskedAgain { workload: "locks".to_owned(), keys: 4321 };
    let history = [Observation::RunOn { store, seed: Some(1811) }, take(7), again]
        .map(|what| entry(1, 2, 3, what));
    write_history(&history, file.as_file()).expect("it can be written");
    let mut replay = Command::new(env!("CARGO_BIN_EXE_hapax-torture"));
    let output = replay.arg("--replay").arg(file.path()).output().expect("it runs");
    let table = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{output:?}");
    for line in ["| store | redis-sentinel |", "| seed | 1811 |", "| 4321 (locks 4321) |"] {
        assert!(table.contains(line), "{line:?} is missing in\n{table}");
    }
}

#[test]
fn torture_replay_reads_histories_without_a_seed() {
    let older = r#"{"from":0,"to":0,"client":0,"what":{"RunOn":{"store":"redis"}}}"#;
    let history = read_history(older.as_bytes()).expect("it can be read");
    let report = TortureReport::of(history, 1, Vec::new());
    assert_eq!((report.store.as_str(), report.seed), ("redis", None));
    assert!(report.table().contains("| seed | not recorded |"), "{}", report.table());
}

#[test]
fn torture_picture_shows_both_owners_and_the_fault() {
    let fault = Observation::Fault { kind: "pause-hapax".to_owned(), target: "serve-2".to_owned() };
    let history =
        [entry(1, 1000, 2000, take(7)), entry(0, 1500, 9000, fault), entry(2, 3000, 8000, take(8))];
    let violations = check_history(&history);
    assert_eq!(violations.len(), 1, "{violations:?}");
    let picture = draw_timeline(&history, &violations[0]);
    for part in
        ["client 1", "fence 7", "client 2", "fence 8", "pause-hapax serve-2", "####", "0.003000 s"]
    {
        assert!(picture.contains(part), "{part:?} is missing in\n{picture}");
    }
}
