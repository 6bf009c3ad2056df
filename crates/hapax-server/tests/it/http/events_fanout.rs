//! More followers of one job than one fan-out group takes; some leave and return, some stop reading.

use std::sync::Arc;
use std::time::Duration;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde_json::json;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;

use crate::support::server::{Server, Setup};

/// Enough for hundreds of megabytes on a busy machine.
const WAIT_TIMEOUT: Duration = Duration::from_secs(600);

/// More than one fan-out group.
const FOLLOWERS: u64 = 1100;
const PUBLISHERS: u64 = 4;
const EVENTS: u64 = 30;

/// How a follower behaves.
#[derive(Clone, Copy, PartialEq)]
enum Habit {
    Steady,
    /// Disconnects after this many events, and reconnects.
    Leaves(u64),
    /// Reads nothing for a while.
    Dozes,
}

/// Follows to the end; checks that each event comes once and in order.
async fn follow(address: Arc<str>, habit: Habit) {
    let mut last: Option<(String, u64)> = None;
    loop {
        let mut stream = TcpStream::connect(&*address).await.unwrap();
        let id =
            last.as_ref().map(|(id, _)| format!("Last-Event-ID: {id}\r\n")).unwrap_or_default();
        let ask = format!("GET /v1/jobs/scan/crowd/events HTTP/1.1\r\nHost: {address}\r\n{id}\r\n");
        stream.write_all(ask.as_bytes()).await.unwrap();
        let mut lines = BufReader::new(stream).lines();
        let status = lines.next_line().await.unwrap().unwrap();
        if status.contains(" 204 ") {
            break;
        }
        assert!(status.contains(" 200 "), "{status}");
        let mut seen = 0;
        while let Some(line) = lines.next_line().await.unwrap() {
            assert!(!line.starts_with("event: gap"));
            let Some(id) = line.strip_prefix("id: ") else { continue };
            let offset: u64 = id.split_once('-').unwrap().1.parse().unwrap();
            assert_eq!(offset, last.map_or(0, |(_, offset)| offset) + 1);
            last = Some((id.to_owned(), offset));
            seen += 1;
            match habit {
                Habit::Leaves(after) if seen == after => break,
                Habit::Dozes if seen % 40 == 1 => {
                    tokio::time::sleep(Duration::from_millis(200)).await
                }
                _ => {}
            }
        }
    }
    assert_eq!(last.map(|(_, offset)| offset), Some(PUBLISHERS * EVENTS + 1));
}

/// A server without limits on streams and writes: this many clients are slow on a busy machine.
fn server() -> Server {
    let limits = ["--header-timeout", "--idle-timeout", "--sse-write-timeout"];
    let limits = limits.into_iter().flat_map(|limit| [limit, "10m"]);
    Setup::memory().flags(&["--in-flight", "10000"]).flags(&limits.collect::<Vec<_>>()).start()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fanout_sends_each_event_once_and_in_order() {
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }).unwrap();
    let server = Arc::new(server());
    let address: Arc<str> = server.address.as_str().into();
    let mut followers = Vec::new();
    for i in 0..FOLLOWERS {
        let habit = match i % 20 {
            0 => Habit::Leaves(1 + i % 50),
            1 => Habit::Dozes,
            _ => Habit::Steady,
        };
        followers.push(tokio::spawn(follow(address.clone(), habit)));
    }
    let publishers: Vec<_> = (0..PUBLISHERS)
        .map(|p| {
            let server = server.clone();
            tokio::task::spawn_blocking(move || {
                let data = json!("x".repeat(3000));
                for seq in 0..EVENTS {
                    server.publish_data("crowd", &format!("p{p}"), seq, &data);
                }
            })
        })
        .collect();
    for publisher in publishers {
        publisher.await.unwrap();
    }
    let closing = server.clone();
    tokio::task::spawn_blocking(move || closing.finish("crowd")).await.unwrap();
    let all = async {
        for follower in followers {
            follower.await.unwrap();
        }
    };
    tokio::time::timeout(WAIT_TIMEOUT, all).await.expect("all come to the end");
}
