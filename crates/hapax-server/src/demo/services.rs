//! The services behind hapax in the demo, none of which knows anything about duplicates.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use axum::{Router, serve};
use bytes::Bytes;
use futures_util::stream;
use hapax::queue::{QueueItem, QueueName};
use hapax::{Store, Tenant};
use http_body_util::StreamBody;
use hyper::body::Frame;
use tokio::net::TcpListener;
use tokio::time::Instant;

use super::dice::Dice;

/// The URLs of the services, each on a port of its own.
pub(super) struct DemoServices {
    pub(super) shop: String,
    pub(super) warehouse: String,
    pub(super) bot: String,
}

struct Shop {
    store: Arc<dyn Store>,
    orders: AtomicU64,
    dice: Dice,
}

struct Warehouse {
    opened: Instant,
    dice: Dice,
}

impl DemoServices {
    pub(super) async fn start(store: Arc<dyn Store>) -> anyhow::Result<Self> {
        let shop = Arc::new(Shop { store, orders: AtomicU64::new(1), dice: Dice::new() });
        let warehouse = Arc::new(Warehouse { opened: Instant::now(), dice: Dice::new() });
        let bot = Arc::new(Dice::new());
        let shop = Router::new()
            .route("/orders", post(take_order))
            .route("/refunds", post(take_order))
            .with_state(shop);
        let warehouse = Router::new().route("/events", post(receive_event)).with_state(warehouse);
        let bot = Router::new().route("/callback", post(answer_user)).with_state(bot);
        Ok(Self {
            shop: listen(shop).await?,
            warehouse: listen(warehouse).await? + "/events",
            bot: listen(bot).await? + "/callback",
        })
    }
}

async fn listen(router: Router) -> io::Result<String> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    tokio::spawn(async move { serve(listener, router).await });
    Ok(format!("http://{address}"))
}

/// Takes an order and tells the warehouse through the outbox. Some orders fail, and the answer of some is
/// cut off, so that nobody knows their outcome.
async fn take_order(State(shop): State<Arc<Shop>>) -> Response {
    shop.dice.pause(10..250).await;
    if shop.dice.percent(4) {
        return (StatusCode::INTERNAL_SERVER_ERROR, "the cash register is jammed").into_response();
    }
    let order = shop.orders.fetch_add(1, Ordering::Relaxed);
    let topic = if order.is_multiple_of(5) { "invoices" } else { "orders" };
    let payload = format!("{{\"order\":{order}}}");
    let item = QueueItem::new(&Tenant::default(), topic, payload)
        .key(&format!("customer-{}", order % 12))
        .content_type("application/json");
    if shop.store.enqueue(&QueueName::outbox(), &[item]).await.is_err() {
        return (StatusCode::SERVICE_UNAVAILABLE, "the order book is away").into_response();
    }
    if shop.dice.percent(2) {
        let cut = stream::once(async { Err::<Frame<Bytes>, _>(io::Error::other("power cut")) });
        return Response::new(Body::new(StreamBody::new(cut)));
    }
    (StatusCode::CREATED, format!("{{\"order\":{order}}}")).into_response()
}

/// How long the warehouse is open, and then closed, in seconds.
const OPEN: u64 = 75;
const CLOSED: u64 = 12;

/// Takes most events, stumbles over some, never takes some invoices, and closes now and then.
async fn receive_event(
    State(warehouse): State<Arc<Warehouse>>,
    headers: HeaderMap,
) -> (StatusCode, &'static str) {
    warehouse.dice.pause(2..40).await;
    let topic = headers.get("hapax-topic").and_then(|topic| topic.to_str().ok());
    if warehouse.opened.elapsed().as_secs() % (OPEN + CLOSED) >= OPEN {
        (StatusCode::SERVICE_UNAVAILABLE, "closed for stocktaking")
    } else if topic == Some("invoices") && warehouse.dice.percent(15) {
        (StatusCode::UNPROCESSABLE_ENTITY, "no such customer")
    } else if warehouse.dice.percent(8) {
        (StatusCode::INTERNAL_SERVER_ERROR, "a shelf fell over")
    } else {
        (StatusCode::OK, "")
    }
}

/// Thinks for a moment, in which users tap again.
async fn answer_user(State(dice): State<Arc<Dice>>) -> StatusCode {
    dice.pause(200..900).await;
    if dice.percent(3) { StatusCode::INTERNAL_SERVER_ERROR } else { StatusCode::OK }
}
