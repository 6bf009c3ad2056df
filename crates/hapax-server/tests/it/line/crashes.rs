//! The gateway is killed again and again under load, while LINE redelivers events that got no 200.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use hapax::command::{CommandState, Commands};
use hapax::{Operation, StoreConfig, Tenant};
use hapax_line::LineEvent;
use hapax_line::simulator::{WebhookSender, events};
use hapax_testkit::{Redis, free_port, scale};
use serde_json::Value;

use crate::line::bot::Deed;
use crate::line::checker::{Handling, History, Policy, violations};
use crate::line::gateway::Gateway;
use crate::line::harness::{DESTINATION, PATIENCE, Scene, again, secrets, text, user};

const SENDERS: u32 = 4;
const USERS: u32 = 12;

/// The events that LINE sent, and those that got a 200.
#[derive(Clone, Default)]
struct Ledger(Arc<Mutex<(Vec<Value>, HashSet<String>)>>);

impl Ledger {
    fn sent(&self) -> Vec<Value> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).0.clone()
    }

    fn answered(&self) -> HashSet<String> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).1.clone()
    }

    fn note_sent(&self, event: &Value) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).0.push(event.clone());
    }

    fn note_answered(&self, event: &Value) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).1.insert(id(event));
    }
}

fn id(event: &Value) -> String {
    event["webhookEventId"].as_str().expect("an id").to_owned()
}

/// LINE's side: sends one event after another, each until it gets a 200, and some once more after
/// that.
async fn send(
    sender: WebhookSender,
    scene_tokens: crate::line::leaks::Tokens,
    ledger: Ledger,
    number: u32,
    calm: Arc<AtomicBool>,
) {
    let mut count = 0;
    while !calm.load(Ordering::SeqCst) {
        count += 1;
        let who = user((number + count * SENDERS) % USERS);
        let event = if count % 3 == 0 { events::follow(&who) } else { text(&who) };
        scene_tokens.note(std::slice::from_ref(&event));
        ledger.note_sent(&event);
        let mut delivery = event.clone();
        while !sender
            .send(std::slice::from_ref(&delivery))
            .await
            .is_ok_and(|answer| answer.status == 200)
        {
            delivery = again(&event);
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        ledger.note_answered(&event);
        if count % 5 == 0 {
            let _ = sender.send(&[again(&event)]).await;
        }
        // A steady load instead of a flood.
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// The id under which an event is stored.
fn key(event: &Value) -> String {
    let event = LineEvent::parse(&DESTINATION.into(), &event.to_string()).expect("an event");
    event.id(&Tenant::default()).to_string()
}

/// The events that the store, and not only the gateway, has recorded as done.
pub(crate) async fn done(store: &str, sent: &[Value]) -> HashSet<String> {
    let options = StoreConfig::default().timeout(PATIENCE);
    let commands = Commands::new(hapax::open(store, &options).expect("a store"));
    let mut done = HashSet::new();
    for event in sent {
        let view = commands.look(Operation("line"), &key(event)).await.expect("an answer");
        if view.is_some_and(|view| matches!(view.state, CommandState::Completed { .. })) {
            done.insert(id(event));
        }
    }
    done
}

fn start(scene: &Scene, port: u16, policy: Policy, life: usize) -> Gateway {
    let policy = if policy == Policy::Rerun { "rerun" } else { "refuse" };
    // Events that are handled without the store are not durable, so none may be accepted while the
    // store stalls. Leases are short enough to wait for, and longer than a machine stalls.
    let flags = ["--on-unknown", policy, "--on-store-error", "closed", "--lease", "6s"];
    let start = scene.gateway().flags(&flags).flags(&["--max-attempts", "1000"]);
    start.port(port).path(&format!("/life/{life}")).start()
}

fn handled(scene: &Scene) -> Vec<Handling> {
    let life = |path: &str| path.rsplit('/').next().and_then(|life| life.parse().ok());
    let handling = |call: crate::line::bot::Call| Handling {
        event: id(&call.event),
        life: life(&call.path).expect("a life"),
        ended: call.ended,
    };
    scene.bot.calls().into_iter().map(handling).collect()
}

fn told(scene: &Scene, sent: &[Value]) -> Vec<String> {
    let of = |token: &String| sent.iter().find(|event| event["replyToken"] == token.as_str());
    scene.told().iter().map(|token| id(of(token).expect("an event's token"))).collect()
}

fn dead(gateway: &Gateway, sent: &[Value]) -> HashSet<String> {
    let dead: HashSet<_> = gateway
        .dead()
        .iter()
        .map(|letter| letter["id"].as_str().expect("an id").to_owned())
        .collect();
    sent.iter().filter(|event| dead.contains(&key(event))).map(id).collect()
}

async fn storm(scene: &Scene, policy: Policy) -> History {
    let (port, lives) = (free_port(), 5 * scale() as usize);
    let calls = AtomicUsize::new(0);
    // Some events take long enough for a kill during their work.
    scene.bot.does(move |_| match calls.fetch_add(1, Ordering::SeqCst) % 4 {
        0 => Deed::After(Duration::from_millis(500)),
        _ => Deed::After(Duration::from_millis(10)),
    });
    let mut gateway = start(scene, port, policy, 0);
    let url = format!("http://127.0.0.1:{port}/line/webhook");
    let (ledger, calm) = (Ledger::default(), Arc::new(AtomicBool::new(false)));
    let senders: Vec<_> = (0..SENDERS)
        .map(|number| {
            let sender = WebhookSender::new(&url, &secrets(), DESTINATION).expect("a URL");
            tokio::spawn(send(sender, scene.tokens.clone(), ledger.clone(), number, calm.clone()))
        })
        .collect();
    let mut done_by = Vec::new();
    for life in 1..=lives {
        let so_far = scene.bot.calls().len();
        scene.bot.begun(so_far + 10);
        // A different moment in each life: the kill may come anywhere.
        std::thread::sleep(Duration::from_millis((life * 37 % 150) as u64));
        gateway.kill();
        done_by.push(done(&scene.store, &ledger.sent()).await);
        gateway = start(scene, port, policy, life);
    }
    calm.store(true, Ordering::SeqCst);
    for sender in senders {
        sender.await.expect("LINE lives");
    }
    gateway.idle();
    let sent = ledger.sent();
    History {
        answered: ledger.answered(),
        sent: sent.iter().map(id).collect(),
        handled: handled(scene),
        told: told(scene, &sent),
        dead: dead(&gateway, &sent),
        done_by,
    }
}

async fn survives(scene: &Scene, policy: Policy) {
    let history = storm(scene, policy).await;
    let wrong = violations(&history, policy);
    assert!(wrong.is_empty(), "{} wrong: {:#?}", wrong.len(), &wrong[..wrong.len().min(20)]);
    // The kills did interrupt work, so the check is not vacuous.
    let cut_off = history.handled.iter().filter(|one| !one.ended).count();
    assert!(cut_off > 0, "no kill found anything at work");
    assert!(history.done_by.iter().any(|done| !done.is_empty()), "the store knew of nothing done");
    assert!(policy == Policy::Rerun || !history.dead.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn line_kills_repeat_only_events_in_work_on_redis() {
    let redis = Redis::start();
    survives(&Scene::on_redis(&redis).await, Policy::Rerun).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn line_kills_repeat_only_events_in_work_on_sqlite() {
    survives(&Scene::on_sqlite().await, Policy::Rerun).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn line_refuse_never_handles_twice_on_redis() {
    let redis = Redis::start();
    survives(&Scene::on_redis(&redis).await, Policy::Refuse).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn line_refuse_never_handles_twice_on_sqlite() {
    survives(&Scene::on_sqlite().await, Policy::Refuse).await;
}
