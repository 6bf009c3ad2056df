//! A handler whose own transaction carries claim, effect and response.

use std::sync::{Arc, Mutex};

use crate::common::{post, send};
use axum::Router;
use axum::body::to_bytes;
use axum::extract::Request;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use hapax_http::{IdempotencyConfig, KeyedRequest, capture};
use hapax_sqlite::rusqlite::{Connection, TransactionBehavior};
use hapax_sqlite::{HapaxTransaction, migrate};

struct Shop {
    database: Mutex<Connection>,
    config: IdempotencyConfig,
}

/// Creates an order. A crash between any two statements rolls everything back.
fn create(shop: &Shop, keyed: &KeyedRequest, item: &str, crash: bool) -> Response {
    let mut database = shop.database.lock().unwrap();
    let transaction = database.transaction_with_behavior(TransactionBehavior::Immediate).unwrap();
    let claimed = transaction.hapax().claim(keyed.key(), keyed.claim()).unwrap();
    let (ticket, _) = match KeyedRequest::granted(claimed) {
        Ok(granted) => granted,
        Err(answer) => return answer.into_response(),
    };
    transaction.execute("INSERT INTO orders (item) VALUES (?1)", [item]).unwrap();
    let id = transaction.last_insert_rowid().to_string();
    if crash {
        return StatusCode::INTERNAL_SERVER_ERROR.into_response();
    }
    let response = (StatusCode::CREATED, [("location", format!("/orders/{id}"))], id.clone());
    let (parts, _) = response.into_response().into_parts();
    let stored = capture(&parts, id.clone().into()).encode();
    let _ = transaction.hapax().settle(keyed.key(), &ticket.token, stored).unwrap();
    transaction.commit().unwrap();
    Response::from_parts(parts, id.into())
}

fn app(shop: Arc<Shop>) -> Router {
    Router::new().fallback(move |request: Request| async move {
        let (parts, body) = request.into_parts();
        let body = to_bytes(body, 1024).await.unwrap();
        let item = std::str::from_utf8(&body).unwrap();
        match KeyedRequest::parse(&shop.config, &parts, &body) {
            Ok(Some(keyed)) => create(&shop, &keyed, item, parts.headers.contains_key("crash")),
            Ok(None) => StatusCode::BAD_REQUEST.into_response(),
            Err(problem) => problem.response().into_response(),
        }
    })
}

#[tokio::test]
async fn transaction_stores_order_and_response_or_neither() {
    let folder = tempfile::tempdir().unwrap();
    let database = Connection::open(folder.path().join("shop.db")).unwrap();
    migrate(&database).unwrap();
    database.execute_batch("CREATE TABLE orders (id INTEGER PRIMARY KEY, item TEXT)").unwrap();
    let config = IdempotencyConfig::new().with_required_key(true);
    let shop = Arc::new(Shop { database: Mutex::new(database), config });
    let app = app(shop.clone());
    let orders = || -> i64 {
        let database = shop.database.lock().unwrap();
        database.query_row("SELECT count(*) FROM orders", [], |row| row.get(0)).unwrap()
    };

    let mut crashing = post("k", "tea");
    crashing.headers_mut().insert("crash", "1".parse().unwrap());
    assert_eq!(send(&app, crashing).await.status, 500);
    assert_eq!(orders(), 0);

    let first = send(&app, post("k", "tea")).await;
    assert_eq!((first.status.as_u16(), first.header("location")), (201, Some("/orders/1")));
    let again = send(&app, post("k", "tea")).await;
    assert_eq!((again.status.as_u16(), again.header("location")), (201, Some("/orders/1")));
    assert!(again.is_replay() && !first.is_replay());
    assert_eq!(again.body, first.body);
    assert_eq!(send(&app, post("k", "coffee")).await.code(), "key-reused");
    assert_eq!(orders(), 1);
    let unkeyed = Request::post("/orders").body("".into()).unwrap();
    assert_eq!(send(&app, unkeyed).await.code(), "key-missing");
}
