//! The gateway is killed again and again under load, while LINE redelivers events that got no 200.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use hapax::command::{CommandState, Commands};
use hapax::{Operation, StoreConfig, Tenant};
use hapax_line::LineEvent;
use hapax_line::simulator::{WebhookSender, events};
use hapax_testkit::{free_port, scale};
use serde_json::Value;

use crate::line::bot::Reaction;
use crate::line::checker::{Handling, History, Policy, violations};
use crate::line::gateway::Gateway;
use crate::line::harness::{DESTINATION, Scene, WAIT_TIMEOUT, again, secrets, text, user};
use crate::support::store::{TestStore, tests_on_stores};

const SENDERS: u32 = 4;
const USERS: u32 = 12;

/// The events that LINE sent, and those that got a 200.
#[derive(Default)]
struct Ledger {
    sent: Mutex<Vec<Value>>,
    answered: Mutex<HashSet<String>>,
}

impl Ledger {
    fn sent(&self) -> Vec<Value> {
        self.sent.lock().unwrap().clone()
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
    ledger: Arc<Ledger>,
    number: u32,
    calm: Arc<AtomicBool>,
) {
    let mut count = 0;
    while !calm.load(Ordering::SeqCst) {
        count += 1;
        let who = user((number + count * SENDERS) % USERS);
        let event = if count % 3 == 0 { events::follow(&who) } else { text(&who) };
        scene_tokens.note(std::slice::from_ref(&event));
        ledger.sent.lock().unwrap().push(event.clone());
        let mut delivery = event.clone();
        let taken = async |delivery: &Value| {
            let sent = sender.send(std::slice::from_ref(delivery)).await;
            sent.is_ok_and(|answer| answer.status == 200)
        };
        while !taken(&delivery).await {
            delivery = again(&event);
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        ledger.answered.lock().unwrap().insert(id(&event));
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
    let options = StoreConfig::default().timeout(WAIT_TIMEOUT);
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
    let dead = gateway.dead();
    let is_dead = |event: &&Value| dead.iter().any(|letter| letter["id"] == key(event));
    sent.iter().filter(is_dead).map(id).collect()
}

async fn storm(scene: &Scene, policy: Policy) -> History {
    let (port, lives) = (free_port(), 5 * scale() as usize);
    let calls = AtomicUsize::new(0);
    // Some events take long enough for a kill during their work.
    scene.bot.does(move |_| match calls.fetch_add(1, Ordering::SeqCst) % 4 {
        0 => Reaction::After(Duration::from_millis(500)),
        _ => Reaction::After(Duration::from_millis(10)),
    });
    let mut gateway = start(scene, port, policy, 0);
    let url = format!("http://127.0.0.1:{port}/line/webhook");
    let (ledger, calm) = (Arc::<Ledger>::default(), Arc::new(AtomicBool::new(false)));
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
        drop(gateway);
        done_by.push(done(&scene.store_url, &ledger.sent()).await);
        gateway = start(scene, port, policy, life);
    }
    calm.store(true, Ordering::SeqCst);
    for sender in senders {
        sender.await.expect("LINE lives");
    }
    gateway.idle();
    let sent = ledger.sent();
    History {
        answered: ledger.answered.lock().unwrap().clone(),
        sent: sent.iter().map(id).collect(),
        handled: handled(scene),
        told: told(scene, &sent),
        dead: dead(&gateway, &sent),
        done_by,
    }
}

async fn survives(store: TestStore, policy: Policy) {
    let history = storm(&Scene::on(store).await, policy).await;
    let wrong = violations(&history, policy);
    assert!(wrong.is_empty(), "{} wrong: {:#?}", wrong.len(), &wrong[..wrong.len().min(20)]);
    // The kills did interrupt work, so the check is not vacuous.
    let cut_off = history.handled.iter().filter(|one| !one.ended).count();
    assert!(cut_off > 0, "no kill found anything at work");
    assert!(history.done_by.iter().any(|done| !done.is_empty()), "the store knew of nothing done");
    assert!(policy == Policy::Rerun || !history.dead.is_empty());
}

tests_on_stores! {
    |store| survives(store, Policy::Rerun);
    line_kills_repeat_only_events_in_work_on_redis on redis,
    line_kills_repeat_only_events_in_work_on_sqlite on sqlite,
}

tests_on_stores! {
    |store| survives(store, Policy::Refuse);
    line_refuse_never_handles_twice_on_redis on redis,
    line_refuse_never_handles_twice_on_sqlite on sqlite,
}
