//! `kill -9` of the proxy and of the upstream, at chosen moments and at random, while requests run.
//!
//! Under `refuse` no key ever runs twice, none is in progress past its lease, and no client ever gets
//! a response that differs from the first.

use std::collections::HashMap;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::proxy_support::client::{Reply, keyed, try_send};
use crate::proxy_support::upstream::{Log, Seen};
use crate::proxy_support::{Proxy, Upstream, until};
use crate::support::KillOnDrop;
use crate::support::store::{TestStore, tests_on_stores};
use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use hapax_testkit::free_port;
use http_body_util::Channel;
use hyper::StatusCode;
use hyper::header::HeaderMap;
use rustix::process::{Pid, Signal, kill_process};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::Instant;

const LEASE: Duration = Duration::from_secs(1);
/// Long enough for a loaded machine; a stuck key stays stuck for ever.
const SLACK: Duration = Duration::from_secs(10);
const KEYS: usize = 4;
const ROUNDS: u32 = 25;

/// The moment of the kill.
#[derive(Clone, Copy, Debug)]
enum Moment {
    /// After this many milliseconds.
    AtRandom(u64),
    /// The upstream has the request and has done nothing.
    Arrived,
    /// The upstream has acted and sent nothing.
    Executed,
    /// The upstream has sent half of its response.
    HalfSaid,
    /// The upstream has sent its response.
    Answered,
    /// The proxy is between two of its own steps, for the first or a later request.
    Failpoint(&'static str, u64),
}

impl Moment {
    fn of(round: u32) -> Self {
        match round % 6 {
            0 => Self::Arrived,
            1 => Self::Executed,
            2 => Self::HalfSaid,
            3 => Self::Answered,
            _ => Self::AtRandom(random() % 60),
        }
    }

    /// Kills every other round at one of the proxy's own steps.
    fn of_proxy(round: u32) -> Self {
        let pass = 1 + random() % KEYS as u64;
        match round % 6 {
            1 => Self::Failpoint("granted", pass),
            3 => Self::Failpoint("answered", pass),
            5 => Self::Failpoint("settled", pass),
            _ => Self::of(round / 2),
        }
    }

    fn word(self) -> &'static str {
        match self {
            Self::AtRandom(_) => "random",
            Self::Arrived => "arrived",
            Self::Executed => "executed",
            Self::HalfSaid => "half-said",
            Self::Answered => "answered",
            Self::Failpoint(..) => "failpoint",
        }
    }
}

impl Moment {
    /// Kills at a random time while requests run, or after them: at any other moment, the upstream or
    /// the proxy itself has killed already.
    async fn kill_during(self, asking: impl Future<Output = ()>, kill: impl FnOnce()) {
        if let Self::AtRandom(ms) = self {
            let kill = async {
                tokio::time::sleep(Duration::from_millis(ms)).await;
                kill();
            };
            tokio::join!(asking, kill);
        } else {
            asking.await;
            kill();
        }
    }
}

fn random() -> u64 {
    getrandom::u64().expect("randomness")
}

/// Acts, responds, and kills at the moment that the request names.
async fn act(
    key: &str,
    moment: &str,
    record: impl FnOnce() -> String,
    kill: impl Fn() + Send + 'static,
) -> Response {
    let kill_at = |now: &str| {
        if moment == now {
            kill();
        }
    };
    kill_at("arrived");
    let answer = record();
    kill_at("executed");
    tokio::time::sleep(Duration::from_millis(random() % 40)).await;
    let (mut sender, body) = Channel::<Bytes>::new(1);
    let (half, answered) = (moment == "half-said", moment == "answered");
    let text = format!("{key}: {answer}");
    tokio::spawn(async move {
        let (first, second) = text.split_at(text.len() / 2);
        let _ = sender.send_data(first.to_owned().into()).await;
        if half {
            kill();
        }
        let _ = sender.send_data(second.to_owned().into()).await;
        drop(sender);
        if answered {
            tokio::time::sleep(Duration::from_millis(random() % 4)).await;
            kill();
        }
    });
    (StatusCode::CREATED, Body::new(body)).into_response()
}

/// All responses of each key.
#[derive(Default)]
struct Heard(HashMap<String, Vec<Reply>>);

impl Heard {
    /// Two concurrent clients for each key; the first key's request names the moment of the kill.
    async fn ask(&mut self, url: &str, keys: &[String], moment: Moment) {
        let asked = keys.iter().enumerate().flat_map(|(i, key)| [(i, key), (i, key)]);
        let asked = asked.map(|(i, key)| {
            let word = if i == 0 { moment.word() } else { "never" };
            let request = keyed(url, key).header("x-moment", word);
            let key = key.clone();
            tokio::spawn(async move { (key, try_send(request, "a").await) })
        });
        for asked in asked.collect::<Vec<_>>() {
            if let (key, Ok(reply)) = asked.await.unwrap() {
                self.0.entry(key).or_default().push(reply);
            }
        }
    }

    /// Retries until the outcome is final, which is soon after the lease.
    async fn settle(&mut self, url: &str, keys: &[String]) {
        let deadline = Instant::now() + LEASE + SLACK;
        for key in keys {
            let last = until("a last word", async || {
                let reply =
                    try_send(keyed(url, key).header("x-moment", "never"), "a").await.ok()?;
                if reply.problem() == "in-progress" {
                    assert!(Instant::now() < deadline, "{key} is in progress past its lease");
                    return None;
                }
                (!["upstream-unreachable", "store-unavailable"].contains(&reply.problem().as_str()))
                    .then_some(reply)
            })
            .await;
            self.0.entry(key.clone()).or_default().push(last);
        }
    }

    /// At most one execution, and equal responses; a complete response is replayed for ever.
    fn check(&self, executions: &HashMap<String, usize>, moment: Moment) {
        for (key, replies) in &self.0 {
            let runs = executions.get(key).copied().unwrap_or(0);
            assert!(runs <= 1, "{key} ran {runs} times ({moment:?})");
            let answers: Vec<_> =
                replies.iter().filter(|reply| reply.status == StatusCode::CREATED).collect();
            let Some(first) = answers.first() else { continue };
            assert!(first.text().starts_with(&format!("{key}: ")), "another key's answer");
            assert!(answers.iter().all(|answer| answer.body == first.body), "{key} {moment:?}");
            let last = replies.last().expect("a last word");
            let kept = last.status == StatusCode::CREATED;
            assert!(kept, "{key} was answered, then {} ({moment:?})", last.problem());
        }
    }

    fn last_words(&self) -> HashMap<String, usize> {
        let mut words = HashMap::new();
        for replies in self.0.values() {
            let last = replies.last().expect("a last word");
            let word = if last.status == 201 { "answered".to_owned() } else { last.problem() };
            *words.entry(word).or_default() += 1;
        }
        words
    }
}

fn keys(round: u32) -> Vec<String> {
    (0..KEYS).map(|i| format!("r{round}-k{i}")).collect()
}

/// The process to kill.
type Victim = Arc<Mutex<Option<Pid>>>;

async fn upstream_that_kills(victim: Victim) -> Upstream {
    let orders = post(async move |State(log): State<Log>, headers: HeaderMap| {
        let text = |name| headers.get(name).map_or("", |v| v.to_str().unwrap()).to_owned();
        let (key, moment) = (text("idempotency-key"), text("x-moment"));
        let seen = Seen { uri: "/orders".parse().unwrap(), headers, body: Bytes::new() };
        let kill = move || {
            if let Some(pid) = victim.lock().unwrap().take() {
                let _ = kill_process(pid, Signal::KILL);
            }
        };
        act(&key, &moment, || log.note(seen).to_string(), kill).await
    });
    Upstream::with(Router::new().route("/orders", orders)).await
}

async fn the_proxy_dies(store: TestStore, rounds: u32) {
    let store = &store.url();
    let victim = Victim::default();
    let upstream = upstream_that_kills(victim.clone()).await;
    let flags = ["--lease", "1s", "--wait", "200ms"];
    for round in 0..rounds * hapax_testkit::scale() {
        let (moment, keys) = (Moment::of_proxy(round), keys(round));
        let mut heard = Heard::default();
        let proxy = match moment {
            Moment::Failpoint(point, pass) => {
                Proxy::doomed(&upstream.url(), store, &flags, &format!("{point}:{pass}"))
            }
            _ => Proxy::start(&upstream.url(), store, &flags),
        };
        *victim.lock().unwrap() = Some(proxy.pid());
        let url = proxy.url("/orders");
        let kill = || {
            // A late kill finds no process any more.
            *victim.lock().unwrap() = None;
            drop(proxy);
        };
        moment.kill_during(heard.ask(&url, &keys, moment), kill).await;
        let next = Proxy::start(&upstream.url(), store, &flags);
        heard.settle(&next.url("/orders"), &keys).await;
        heard.check(&upstream.log.executions(), moment);
        let _ = writeln!(std::io::stderr(), "round {round} {moment:?}: {:?}", heard.last_words());
    }
}

tests_on_stores! {
    |store| the_proxy_dies(store, ROUNDS);
    proxy_killed_never_runs_twice_on_sqlite on sqlite,
    proxy_killed_never_runs_twice_on_redis on redis,
}

tests_on_stores! {
    |store| the_proxy_dies(store, ROUNDS.div_ceil(2));
    proxy_killed_never_runs_twice_on_postgres on postgres,
}

const PORT: &str = "HAPAX_TEST_UPSTREAM_PORT";
const FILE: &str = "HAPAX_TEST_UPSTREAM_FILE";

/// Starts an upstream in a process of its own, so that it can be killed. Its effects are in a file.
async fn start_upstream(port: u16, file: &Path) -> KillOnDrop {
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact", "proxy_kills::upstream_process"])
        .env(PORT, port.to_string())
        .env(FILE, file)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    until("the upstream listens", async || TcpStream::connect(("127.0.0.1", port)).await.ok())
        .await;
    KillOnDrop(child)
}

/// Not a test: the process of [`start_upstream`].
#[tokio::test(flavor = "multi_thread")]
#[ignore = "an upstream for the other tests"]
async fn upstream_process() {
    let (Ok(port), Ok(file)) = (std::env::var(PORT), std::env::var(FILE)) else { return };
    let file = PathBuf::from(file);
    let orders = post(async move |headers: HeaderMap| {
        let text = |name| headers.get(name).map_or("", |v| v.to_str().unwrap()).to_owned();
        let (key, moment) = (text("idempotency-key"), text("x-moment"));
        let record = || {
            let mut done = std::fs::File::options().append(true).create(true).open(&file).unwrap();
            // One write, so that a kill leaves either the whole line or nothing.
            done.write_all(format!("{key}\n").as_bytes()).unwrap();
            random().to_string()
        };
        let kill = || {
            let _ = kill_process(rustix::process::getpid(), Signal::KILL);
        };
        act(&key, &moment, record, kill).await
    });
    let port: u16 = port.parse().unwrap();
    let listener = TcpListener::bind(("127.0.0.1", port)).await.unwrap();
    axum::serve(listener, Router::new().route("/orders", orders)).await.unwrap();
}

fn executions(file: &Path) -> HashMap<String, usize> {
    let mut counts = HashMap::new();
    for key in std::fs::read_to_string(file).unwrap_or_default().lines() {
        *counts.entry(key.to_owned()).or_default() += 1;
    }
    counts
}

#[tokio::test(flavor = "multi_thread")]
async fn proxy_upstream_killed_never_runs_twice() {
    let store = TestStore::sqlite();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("executions");
    let port = free_port();
    let flags = ["--lease", "1s", "--wait", "200ms"];
    let proxy = Proxy::start(&format!("http://127.0.0.1:{port}"), &store.url(), &flags);
    let url = proxy.url("/orders");
    for round in 0..ROUNDS * hapax_testkit::scale() {
        let (moment, keys) = (Moment::of(round), keys(round));
        let mut heard = Heard::default();
        let upstream = start_upstream(port, &file).await;
        moment.kill_during(heard.ask(&url, &keys, moment), || drop(upstream)).await;
        let _next = start_upstream(port, &file).await;
        heard.settle(&url, &keys).await;
        heard.check(&executions(&file), moment);
        let _ = writeln!(std::io::stderr(), "round {round} {moment:?}: {:?}", heard.last_words());
    }
}
