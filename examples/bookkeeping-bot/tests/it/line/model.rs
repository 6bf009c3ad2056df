//! The reader on an OpenAI-compatible endpoint, which is a stub on loopback.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use bookkeeping_bot::entry::BookkeepingEntry;
use hapax_line::simulator::events;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

use crate::line::support::{USER, World};

const KEY: &str = "k3y-of-the-model";

/// The answers of the stub, and the number of requests that it got.
#[derive(Default)]
struct Stub {
    /// `None`: an error.
    content: Mutex<Option<String>>,
    asked: AtomicUsize,
}

struct Model {
    base: String,
    stub: Arc<Stub>,
    serving: JoinHandle<()>,
}

impl Model {
    async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let base = format!("http://{}/v1", listener.local_addr().expect("an address"));
        let stub = Arc::<Stub>::default();
        let routes = axum::Router::new().route("/v1/chat/completions", post(answer));
        let router = routes.with_state(stub.clone());
        let serving = tokio::spawn(async move { drop(axum::serve(listener, router).await) });
        Self { base, stub, serving }
    }

    fn says(&self, content: impl ToString) {
        *self.stub.content.lock().expect("no panic") = Some(content.to_string());
    }

    fn refuses(&self) {
        *self.stub.content.lock().expect("no panic") = None;
    }

    fn asked(&self) -> usize {
        self.stub.asked.load(Ordering::SeqCst)
    }
}

async fn answer(State(stub): State<Arc<Stub>>, headers: HeaderMap, body: String) -> Response {
    stub.asked.fetch_add(1, Ordering::SeqCst);
    let question: Value = serde_json::from_str(&body).expect("JSON");
    assert_eq!(headers["authorization"], format!("Bearer {KEY}"));
    assert_eq!(question["model"], "a-model");
    assert_eq!(question["messages"][1]["role"], "user");
    let Some(content) = stub.content.lock().expect("no panic").clone() else {
        return StatusCode::INTERNAL_SERVER_ERROR.into_response();
    };
    let choice = json!({ "index": 0, "message": { "role": "assistant", "content": content } });
    let completion = json!({ "id": "x", "object": "chat.completion", "choices": [choice] });
    completion.to_string().into_response()
}

async fn asking(model: &Model) -> World {
    World::new(None, None)
        .await
        .variable("OPENAI_API_BASE", &model.base)
        .variable("OPENAI_API_KEY", KEY)
        .variable("OPENAI_MODEL", "a-model")
        .flag("--lease", "2")
}

fn booking(item: &str, amount: i32) -> Value {
    let mut entry = serde_json::to_value(BookkeepingEntry::example()).expect("JSON");
    entry["品項"] = item.into();
    entry["原幣金額"] = amount.into();
    json!({ "intent": "multi_bookkeeping", "entries": [entry] })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_good_answer_is_booked_edited_and_deleted() {
    let model = Model::start().await;
    let mut world = asking(&model).await;
    world.start();
    model.says(booking("牛肉麵🥚", 180));
    let said = world.say("剛剛吃了牛肉麵一百八🥚").await;
    assert!(said[0].contains("牛肉麵🥚 180 TWD"), "{said:?}");
    assert_ne!(
        world.rows().await[0].entry.transaction_id,
        "20251129-143000",
        "ids are not the model's"
    );
    model.says(json!({ "intent": "update_last_entry", "fields_to_update": { "原幣金額": 200 } }));
    assert_eq!(world.say("其實是兩百🥚").await[0], "修改成功");
    model.says(json!({ "intent": "show" }));
    assert!(world.say("我記了什麼🥚").await[0].contains("原幣金額：200"));
    model.says(json!({ "intent": "delete" }));
    assert_eq!(world.say("不要了🥚").await, ["🗑️ 已刪除：牛肉麵🥚 200 TWD"]);
    world.in_order();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fault_23_group_chat_reaches_the_model_only_when_addressed() {
    let model = Model::start().await;
    let mut world = asking(&model).await;
    world.start();
    model.says(booking("牛肉麵🥚", 180));
    let in_group = |text| events::in_group(events::text(USER, text), "Cf00d1");
    let chat = [
        in_group("剛剛吃了牛肉麵一百八🥚"),
        events::mentioning(in_group("你吃了什麼🥚"), "friend", "Uf00d2", false),
    ];
    assert_eq!(world.deliver(&chat).await, Some(200));
    world.drained().await;
    assert_eq!((model.asked(), world.api.accepted_calls().len()), (0, 0));
    let mentioned = events::mentioning(in_group("牛肉麵一百八🥚"), "bot", "Uf00db07", true);
    for event in [mentioned, in_group("記帳 牛肉麵一百八🥚")] {
        assert_eq!(world.deliver(std::slice::from_ref(&event)).await, Some(200));
        assert!(world.heard(&event).await.texts()[0].contains("牛肉麵🥚 180 TWD"));
    }
    assert_eq!(model.asked(), 2);
    world.in_order();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn model_failures_fall_back_to_rules_or_a_polite_text() {
    let model = Model::start().await;
    let mut world = asking(&model).await;
    world.start();
    for garbage in [
        "好的！",
        r#"{"intent":"multi_bookkeeping","entries":[]}"#,
        &booking("蛋🥚", -5).to_string(),
    ] {
        model.says(garbage);
        assert!(world.say("午餐🥚 100").await[0].contains("午餐🥚 100 TWD"), "{garbage}");
    }
    model.refuses();
    assert!(world.say("晚餐🥚 200").await[0].contains("晚餐🥚 200 TWD"));
    model.serving.abort();
    assert!(world.say("點心🥚 30").await[0].contains("點心🥚 30 TWD"));
    let said = world.say("剛剛吃了牛肉麵一百八🥚").await;
    assert!(said[0].starts_with("智慧解讀暫時無法使用"), "{said:?}");
    assert_eq!(world.booked().await.len(), 5);
    world.in_order();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redelivery_neither_asks_the_model_nor_books_again() {
    let model = Model::start().await;
    let mut world = asking(&model).await;
    for point in ["settled", "done"] {
        let asked = model.asked();
        model.says(booking(&format!("{point}🥚"), 180));
        world.start_dying_at(point);
        let event = events::text(USER, "剛剛吃了牛肉麵一百八🥚");
        let _ = world.deliver(std::slice::from_ref(&event)).await;
        world.ended();
        // The model would give another answer now.
        model.says(booking("別的🥚", 999));
        world.start();
        assert_eq!(world.deliver(&[events::redelivered(&event)]).await, Some(200));
        let said = world.heard(&event).await.texts();
        assert!(said[0].contains(&format!("{point}🥚 180 TWD")), "{said:?}");
        world.drained().await;
        assert_eq!(model.asked(), asked + 1, "{point}");
    }
    assert_eq!(
        world.booked().await,
        [("settled🥚".to_owned(), 180.0), ("done🥚".to_owned(), 180.0)]
    );
    world.in_order();
}
