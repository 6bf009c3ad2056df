use bytes::Bytes;
use http::Response;

use crate::replay::fits;
use crate::{Settings, Verdict, keep, not_kept};

/// What to settle a claim with that is in a transaction of yours: the stored form of this answer.
/// `None` where it is none to keep (a 5xx, a 429; see [`Settings::verdicts`]): then roll back, and it
/// is as if nobody had asked.
///
/// One that is larger than [`Settings::limit`] becomes a tombstone: a retry is told that it ran. An
/// `Idempotency-Store` header is obeyed and taken out.
///
/// Together with [`Keyed`](crate::Keyed) this is a whole handler. Whatever it returns early, and
/// wherever its process dies, the transaction is rolled back with everything in it:
///
/// ```
/// use axum::body::Body;
/// use axum::response::{IntoResponse, Response};
/// use bytes::Bytes;
/// use hapax_core::{Step, SystemClock};
/// use hapax_http::{Keyed, Settings, settlement};
/// use hapax_sqlite::{rusqlite::{Connection, TransactionBehavior}, tx};
/// use http::{StatusCode, request::Parts};
///
/// # type Failed = Box<dyn std::error::Error>;
/// fn create_order(
///     database: &mut Connection,
///     settings: &Settings, // with `require_key`
///     parts: &Parts,
///     body: &[u8],
/// ) -> Result<Response, Failed> {
///     let keyed = match Keyed::of(settings, parts, body) {
///         Ok(keyed) => keyed.expect("a key is required"),
///         Err(problem) => return Ok(problem.response().into_response()), // 400
///     };
///     let tx = database.transaction_with_behavior(TransactionBehavior::Immediate)?;
///     let claimed = tx::claim(&tx, &SystemClock, &keyed.key, &keyed.ask)?;
///     let (ticket, _attempt) = match Keyed::granted(claimed) {
///         Ok(granted) => granted,
///         Err(answer) => return Ok(answer.into_response()), // a replay, a 409 or a 422
///     };
///     tx.execute("INSERT INTO orders (item) VALUES (?1)", [body])?;
///     let mut answer = http::Response::new(Bytes::from(format!("order {}", tx.last_insert_rowid())));
///     *answer.status_mut() = StatusCode::CREATED;
///     if let Some(kept) = settlement(settings, &mut answer) {
///         let Step::Done(_) = tx::settle(&tx, &SystemClock, &keyed.key, &ticket.token, &kept)? else {
///             return Err("the order took longer than its claim is remembered".into());
///         };
///         tx.commit()?; // the order and the answer, or neither
///     }
///     Ok(answer.map(Body::from))
/// }
/// # let folder = tempfile::tempdir().unwrap();
/// # let mut database = Connection::open(folder.path().join("shop.db")).unwrap();
/// # hapax_sqlite::migrate(&database).unwrap();
/// # database.execute_batch("CREATE TABLE orders (id INTEGER PRIMARY KEY, item BLOB)").unwrap();
/// # let settings = Settings { require_key: true, ..Settings::default() };
/// # let mut order = |key: &str, item: &str| {
/// #     let request = http::Request::post("/orders").header("idempotency-key", key).body(()).unwrap();
/// #     let (parts, ()) = request.into_parts();
/// #     let answer = create_order(&mut database, &settings, &parts, item.as_bytes()).unwrap();
/// #     (answer.status().as_u16(), answer.headers().contains_key("idempotent-replayed"))
/// # };
/// # assert_eq!(order("k1", "tea"), (201, false));
/// # assert_eq!(order("k1", "tea"), (201, true));
/// # assert_eq!(order("k1", "coffee"), (422, false));
/// # assert_eq!(order("", "tea"), (400, false));
/// # let orders = database.query_row("SELECT count(*) FROM orders", [], |row| row.get(0));
/// # assert_eq!(orders, Ok(1));
/// ```
///
/// On PostgreSQL the same is `hapax_postgres::InTransaction`. A duplicate that comes while the first
/// one's transaction is open is told so with 409 `in-progress` and never waits for it.
pub fn settlement(settings: &Settings, response: &mut Response<Bytes>) -> Option<Bytes> {
    if settings.verdicts.judge(response) != Verdict::Keep {
        return None;
    }
    let (parts, body) = response.clone().into_parts();
    let kept = keep(&parts, body);
    let is_small = kept.body.len() <= settings.limit && fits(&kept, settings.limit);
    let kept = if is_small { kept } else { not_kept(parts.status) };
    Some(kept.encode())
}

#[cfg(test)]
mod tests {
    use hapax_core::command;

    use super::*;

    fn settled(settings: &Settings, response: Response<Bytes>) -> Option<command::StoredResponse> {
        let mut response = response;
        let kept = settlement(settings, &mut response);
        assert!(!response.headers().contains_key("idempotency-store"));
        kept.map(|kept| command::StoredResponse::decode(kept).unwrap())
    }

    fn response(status: u16) -> http::response::Builder {
        Response::builder().status(status)
    }

    #[test]
    fn an_answer_is_kept_without_what_belongs_to_one_client() {
        let response = response(201).header("location", "/orders/1").header("set-cookie", "a=b");
        let kept = settled(&Settings::default(), response.body("order 1".into()).unwrap()).unwrap();
        assert_eq!((kept.status, kept.body), (201, "order 1".into()));
        assert_eq!(kept.headers, [("location".to_owned(), "/orders/1".into())]);
    }

    #[test]
    fn what_a_retry_may_change_is_not_kept() {
        let settings = Settings::default();
        for status in [401, 403, 408, 425, 429, 500, 502, 503, 504] {
            let response = response(status).body(Bytes::new()).unwrap();
            assert_eq!(settled(&settings, response), None, "{status}");
        }
        let never = response(200).header("idempotency-store", "Never").body(Bytes::new());
        assert_eq!(settled(&settings, never.unwrap()), None);
        let said = response(500).extension(Verdict::Keep).body(Bytes::new());
        assert_eq!(settled(&settings, said.unwrap()).unwrap().status, 500);
    }

    #[test]
    fn an_answer_beyond_the_limit_leaves_a_tombstone() {
        let settings = Settings { limit: 4, ..Settings::default() };
        let large = settled(&settings, response(201).body("12345".into()).unwrap());
        assert_eq!(large, Some(not_kept(http::StatusCode::CREATED)));
        let wordy = response(201).header("location", "/1").body(Bytes::new()).unwrap();
        assert_eq!(settled(&settings, wordy), Some(not_kept(http::StatusCode::CREATED)));
        let small = settled(&settings, response(201).body("1234".into()).unwrap());
        assert_eq!(small.unwrap().body, "1234");
    }
}
