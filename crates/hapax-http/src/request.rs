use std::borrow::Cow;

use bytes::Bytes;
use hapax_core::{
    ClaimRequest, Claimed, Fingerprint, InvalidKey, Key, MAX_NAME, Operation, Tenant, Ticket,
};
use http::header::{AUTHORIZATION, COOKIE, HeaderName, HeaderValue};
use http::request::Parts;
use http::{HeaderMap, Method, Response};

use crate::config::HeadVerdict;
use crate::fingerprint::METHOD_OVERRIDES;
use crate::replay::{RunOrRespond, capture, decide, fits, tombstone};
use crate::{FullBody, IdempotencyConfig, Problem, ProblemKind, Verdict};

pub(crate) const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");

/// How the caller of a request is identified. A key means something only together with its caller,
/// so that no caller gets a response that was made for another one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum CallerScope {
    /// A hash of all credentials in the head: `Authorization`, and the headers of
    /// [`with_credential_headers`](IdempotencyConfig::with_credential_headers). An empty one is
    /// none.
    ///
    /// A request with a `Cookie` beside no credentials, or beside nothing but Basic, is refused:
    /// the cookie may be what tells its caller from another one. A request with neither is
    /// anonymous. Digest credentials change with every request and need another scope.
    #[default]
    Authorization,
    /// A hash of this header, which a trusted hop sets.
    Header(HeaderName),
    /// A hash of this cookie.
    Cookie(String),
    /// All requests have the same caller.
    Single,
}

impl CallerScope {
    /// The tenant of the caller; `None` where the caller cannot be identified.
    ///
    /// All values of a repeated header count, in their order: the service may believe any of them,
    /// so a caller who adds another one's credentials must not get that one's tenant.
    fn tenant(&self, config: &IdempotencyConfig, headers: &HeaderMap) -> Option<Tenant> {
        let (kind, values): (&str, Vec<Cow<'_, [u8]>>) = match self {
            Self::Single => return Some(config.tenant.clone()),
            Self::Authorization => credentials(&config.credential_headers, headers)?,
            Self::Header(name) => ("header", borrowed(non_empty(headers, name))),
            Self::Cookie(name) => ("cookie", borrowed(cookies(headers, name))),
        };
        if values.is_empty() && *self != Self::Authorization {
            return None;
        }
        let mut parts = vec![kind.as_bytes()];
        parts.extend(values.iter().map(Cow::as_ref));
        config.tenant.scoped(&Fingerprint::of(&parts).as_str()[..32]).ok()
    }
}

/// The credentials in the head, none for an anonymous caller; `None` where a cookie may be what
/// tells the caller from another one.
fn credentials<'a>(
    names: &[HeaderName],
    headers: &'a HeaderMap,
) -> Option<(&'static str, Vec<Cow<'a, [u8]>>)> {
    let mut authorization = non_empty(headers, &AUTHORIZATION);
    authorization.retain(|value| !is_bare_scheme(value));
    let others: Vec<Vec<u8>> = names
        .iter()
        .flat_map(|name| non_empty(headers, name).into_iter().map(|value| with_name(name, value)))
        .collect();
    let only_basic = others.is_empty() && authorization.iter().all(|value| is_basic(value));
    if only_basic && !non_empty(headers, &COOKIE).is_empty() {
        return None;
    }
    if others.is_empty() {
        return Some(("authorization", borrowed(authorization)));
    }
    let authorization = authorization.into_iter().map(|value| with_name(&AUTHORIZATION, value));
    Some(("credentials", authorization.chain(others).map(Cow::Owned).collect()))
}

/// `name:value`: no header name contains a colon, so that two pairs never give the same bytes.
fn with_name(name: &HeaderName, value: &[u8]) -> Vec<u8> {
    [name.as_str().as_bytes(), b":", value].concat()
}

fn borrowed(values: Vec<&[u8]>) -> Vec<Cow<'_, [u8]>> {
    values.into_iter().map(Cow::Borrowed).collect()
}

fn non_empty<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Vec<&'a [u8]> {
    let values = headers.get_all(name).iter().map(HeaderValue::as_bytes);
    values.filter(|value| !value.trim_ascii().is_empty()).collect()
}

/// Whether an `Authorization` names its scheme and has no credentials, as a client sends whose
/// token is empty.
fn is_bare_scheme(value: &[u8]) -> bool {
    let schemes = [&b"basic"[..], b"bearer", b"digest", b"negotiate", b"token"];
    schemes.iter().any(|scheme| value.trim_ascii().eq_ignore_ascii_case(scheme))
}

fn is_basic(value: &[u8]) -> bool {
    let scheme = value.trim_ascii_start().split(u8::is_ascii_whitespace).next();
    scheme.is_some_and(|scheme| scheme.eq_ignore_ascii_case(b"basic"))
}

fn cookies<'a>(headers: &'a HeaderMap, name: &str) -> Vec<&'a [u8]> {
    let lines = headers.get_all(COOKIE).iter().map(HeaderValue::as_bytes);
    lines
        .flat_map(|line| line.split(|&byte| byte == b';'))
        .filter_map(|pair| {
            let equals = pair.iter().position(|&byte| byte == b'=')?;
            let (found, value) = (pair[..equals].trim_ascii(), pair[equals + 1..].trim_ascii());
            (found == name.as_bytes() && !value.is_empty()).then_some(value)
        })
        .collect()
}

/// Why an `Idempotency-Key` header is not valid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidIdempotencyKey {
    /// There are several headers.
    #[error("there are several Idempotency-Key headers; send one")]
    Repeated,
    /// The header starts with a quote, and is not an RFC 8941 string.
    #[error("Idempotency-Key starts with a quote but is no RFC 8941 string; send \"key\" or key")]
    NotAString,
    /// The key is empty, too long, or not printable ASCII.
    #[error("Idempotency-Key: {0}")]
    NotAKey(InvalidKey),
}

/// Reads the `Idempotency-Key` header: an RFC 8941 string (`"k1"`), or the same text bare (`k1`).
///
/// ```
/// use http::{HeaderMap, HeaderValue};
/// use hapax_http::parse_key;
/// let key = |value| {
///     let mut headers = HeaderMap::new();
///     headers.insert("idempotency-key", HeaderValue::from_static(value));
///     parse_key(&headers)
/// };
/// assert_eq!(key("\"8e03978e\"").unwrap().as_deref(), Some("8e03978e"));
/// assert_eq!(key("8e03978e").unwrap().as_deref(), Some("8e03978e"));
/// assert!(key("").is_err());
/// assert!(key("\"8e03978e").is_err());
/// ```
pub fn parse_key(headers: &HeaderMap) -> Result<Option<String>, InvalidIdempotencyKey> {
    let mut lines = headers.get_all(IDEMPOTENCY_KEY).iter();
    let Some(line) = lines.next() else { return Ok(None) };
    if lines.next().is_some() {
        return Err(InvalidIdempotencyKey::Repeated);
    }
    let line = line.as_bytes().trim_ascii();
    let key = if line.first() == Some(&b'"') {
        match sfv::Parser::new(line).parse::<sfv::Item>() {
            Ok(sfv::Item { bare_item: sfv::BareItem::String(text), params })
                if params.is_empty() =>
            {
                text.as_str().to_owned()
            }
            _ => return Err(InvalidIdempotencyKey::NotAString),
        }
    } else {
        // A byte outside ASCII becomes a character that is refused below.
        String::from_utf8_lossy(line).into_owned()
    };
    Key::lock(&Tenant::default(), &key).map_err(InvalidIdempotencyKey::NotAKey)?;
    Ok(Some(key))
}

/// Reads everything about the key from a request's head: the caller, the operation and the key
/// itself. `None` where the request has no key and needs none.
pub(crate) fn parse_head(
    config: &IdempotencyConfig,
    parts: &Parts,
) -> Result<Option<Key>, Problem> {
    if !config.takes_key(&parts.method) {
        return refuse_disguised_method(config, parts).map(|()| None);
    }
    let invalid = |detail: String| Problem::new(ProblemKind::InvalidKey, detail);
    let Some(key) = parse_key(&parts.headers).map_err(|error| invalid(error.to_string()))? else {
        if config.require_key {
            return Err(Problem::new(
                ProblemKind::KeyMissing,
                "send an Idempotency-Key header with a value of your own, the same for every retry",
            ));
        }
        return Ok(None);
    };
    let tenant = config.scope.tenant(config, &parts.headers).ok_or_else(|| {
        let detail = match config.scope {
            CallerScope::Authorization => {
                "a key belongs to its caller, and a cookie beside no credentials, or beside nothing \
                 but Basic, does not say which part of it identifies the caller: send a token, or \
                 configure the scope (--scope cookie:NAME, header:NAME or single)"
            }
            _ => {
                "a key belongs to its caller: send the header or cookie that the service is \
                 configured to identify callers by"
            }
        };
        Problem::new(ProblemKind::ScopeMissing, detail)
    })?;
    let key = Key::command(&tenant, Operation(&operation_of(config, parts)), &key);
    key.map(Some).map_err(|error| invalid(error.to_string()))
}

/// Refuses a method that takes no key and asks the service to be treated as one that does, where
/// the request has a key or needs one: the service would run it unprotected.
fn refuse_disguised_method(config: &IdempotencyConfig, parts: &Parts) -> Result<(), Problem> {
    if !config.require_key && !parts.headers.contains_key(IDEMPOTENCY_KEY) {
        return Ok(());
    }
    let means_keyed = |value: &HeaderValue| {
        let is_named = |method: &Method| {
            value.as_bytes().trim_ascii().eq_ignore_ascii_case(method.as_str().as_bytes())
        };
        config.methods.iter().any(|method| config.takes_key(method) && is_named(method))
    };
    let mut overrides = METHOD_OVERRIDES.iter().flat_map(|name| parts.headers.get_all(name));
    if overrides.any(means_keyed) {
        return Err(Problem::invalid(
            "the method takes no key, and a method override names one that does; send the request \
             with that method itself; nothing was run",
        ));
    }
    Ok(())
}

/// `METHOD /path`; a path that cannot be part of a key is represented by its hash.
fn operation_of(config: &IdempotencyConfig, parts: &Parts) -> String {
    let operation = match &config.path {
        Some(path) => format!("{} {}", parts.method, path(parts)),
        None => format!("{} {}", parts.method, parts.uri.path()),
    };
    if operation.len() <= MAX_NAME && operation.bytes().all(|byte| (0x20..0x7f).contains(&byte)) {
        return operation;
    }
    format!("{} sha256:{}", parts.method, Fingerprint::of(&[operation.as_bytes()]).as_str())
}

/// A request with a key, for handlers whose own database transaction carries claim, effect and
/// response. Such a route has no layer; inside its transaction it
///
/// 1. claims [`key`](KeyedRequest::key) with [`claim`](KeyedRequest::claim), and passes the result
///    to [`KeyedRequest::granted`],
/// 2. does its work,
/// 3. settles with [`KeyedRequest::settled_value`], and commits.
///
/// Whatever such a handler returns early, and wherever its process dies, the transaction is rolled
/// back with everything in it:
///
/// ```
/// use axum::body::Body;
/// use axum::response::{IntoResponse, Response};
/// use bytes::Bytes;
/// use hapax_core::Step;
/// use hapax_http::{IdempotencyConfig, KeyedRequest};
/// use hapax_sqlite::{HapaxTransaction, rusqlite::{Connection, TransactionBehavior}};
/// use http::{StatusCode, request::Parts};
///
/// # type Failed = Box<dyn std::error::Error>;
/// fn create_order(
///     database: &mut Connection,
///     config: &IdempotencyConfig, // with a required key
///     parts: &Parts,
///     body: &[u8],
/// ) -> Result<Response, Failed> {
///     let keyed = match KeyedRequest::parse(config, parts, body) {
///         Ok(keyed) => keyed.ok_or("the configuration requires a key")?,
///         Err(problem) => return Ok(problem.response().into_response()), // 400
///     };
///     let tx = database.transaction_with_behavior(TransactionBehavior::Immediate)?;
///     let claimed = tx.hapax().claim(keyed.key(), keyed.claim())?;
///     let (ticket, _attempt) = match KeyedRequest::granted(claimed) {
///         Ok(granted) => granted,
///         Err(response) => return Ok(response.into_response()), // a replay, a 409 or a 422
///     };
///     tx.execute("INSERT INTO orders (item) VALUES (?1)", [body])?;
///     let order = Bytes::from(format!("order {}", tx.last_insert_rowid()));
///     let mut response = http::Response::new(order);
///     *response.status_mut() = StatusCode::CREATED;
///     if let Some(value) = KeyedRequest::settled_value(config, &mut response) {
///         let Step::Done(_) = tx.hapax().settle(keyed.key(), &ticket.token, value)?
///         else {
///             return Err("the order took longer than its claim is remembered".into());
///         };
///         tx.commit()?; // the order and the response, or neither
///     }
///     Ok(response.map(Body::from))
/// }
/// # let folder = tempfile::tempdir().unwrap();
/// # let mut database = Connection::open(folder.path().join("shop.db")).unwrap();
/// # hapax_sqlite::migrate(&database).unwrap();
/// # database.execute_batch("CREATE TABLE orders (id INTEGER PRIMARY KEY, item BLOB)").unwrap();
/// # let config = IdempotencyConfig::new().with_required_key(true);
/// # let mut order = |key: &str, item: &str| {
/// #     let request = http::Request::post("/orders").header("idempotency-key", key).body(()).unwrap();
/// #     let (parts, ()) = request.into_parts();
/// #     let response = create_order(&mut database, &config, &parts, item.as_bytes()).unwrap();
/// #     (response.status().as_u16(), response.headers().contains_key("idempotent-replayed"))
/// # };
/// # assert_eq!(order("k1", "tea"), (201, false));
/// # assert_eq!(order("k1", "tea"), (201, true));
/// # assert_eq!(order("k1", "coffee"), (422, false));
/// # assert_eq!(order("", "tea"), (400, false));
/// # let orders = database.query_row("SELECT count(*) FROM orders", [], |row| row.get(0));
/// # assert_eq!(orders, Ok(1));
/// ```
///
/// A duplicate that comes while the first one's transaction is open gets 409 `in-progress` and never
/// waits for it.
#[derive(Clone, Debug)]
pub struct KeyedRequest {
    key: Key,
    claim: ClaimRequest,
}

impl KeyedRequest {
    /// Reads a request; `None` where it has no key and needs none.
    pub fn parse(
        config: &IdempotencyConfig,
        parts: &Parts,
        body: &[u8],
    ) -> Result<Option<Self>, Problem> {
        Ok(parse_head(config, parts)?.map(|key| Self::new(config, key, parts, body)))
    }

    pub(crate) fn new(config: &IdempotencyConfig, key: Key, parts: &Parts, body: &[u8]) -> Self {
        let claim = ClaimRequest::labelled(config.lease, config.label.as_deref())
            .retention(config.retention)
            .fingerprint(Some(config.fingerprint.of_request(parts, body)))
            .on_unknown(config.on_unknown);
        Self { key, claim }
    }

    /// The key to claim: caller, operation and `Idempotency-Key`.
    pub fn key(&self) -> &Key {
        &self.key
    }

    /// The claim to ask for, with the request's fingerprint.
    pub fn claim(&self) -> &ClaimRequest {
        &self.claim
    }

    pub(crate) fn refresh_token(&mut self) {
        self.claim = self.claim.with_fresh_token();
    }

    /// Reads the result of a claim inside your own transaction: the ticket and the number of the
    /// attempt, or the response to give instead of running.
    pub fn granted(claimed: Claimed) -> Result<(Ticket, u32), Box<Response<FullBody>>> {
        match decide(claimed.try_into()) {
            RunOrRespond::Run { ticket, attempt } => Ok((ticket, attempt)),
            RunOrRespond::Respond(_, response) => Err(response),
        }
    }

    /// The value to settle a claim with inside your own transaction: the stored form of this
    /// response. `None` where the response is not kept (a 5xx, a 429; see
    /// [`Verdicts`](crate::Verdicts)): roll back then.
    ///
    /// A response larger than [`max_body`](IdempotencyConfig::with_max_body) becomes a tombstone: a
    /// retry learns that the request ran. An `Idempotency-Store` header is obeyed and removed. The
    /// `grpc-status` of a gRPC response counts where it is among the headers.
    pub fn settled_value(
        config: &IdempotencyConfig,
        response: &mut Response<Bytes>,
    ) -> Option<Bytes> {
        if let HeadVerdict::Decided(Verdict::GiveBack | Verdict::Unknown) =
            config.verdicts.judge(response)
        {
            return None;
        }
        let (parts, body) = response.clone().into_parts();
        let captured = capture(&parts, body);
        let is_small = captured.body.len() <= config.max_body && fits(&captured, config.max_body);
        let stored = if is_small { captured } else { tombstone(parts.status) };
        Some(stored.encode())
    }
}

#[cfg(test)]
mod tests {
    use hapax_core::command::StoredResponse;
    use http::StatusCode;

    use super::*;

    fn settle(config: &IdempotencyConfig, response: Response<Bytes>) -> Option<StoredResponse> {
        let mut response = response;
        let value = KeyedRequest::settled_value(config, &mut response);
        assert!(!response.headers().contains_key("idempotency-store"));
        value.map(|value| StoredResponse::decode(value).unwrap())
    }

    fn response(status: u16) -> http::response::Builder {
        Response::builder().status(status)
    }

    #[test]
    fn settled_value_leaves_out_cookies() {
        let response = response(201).header("location", "/orders/1").header("set-cookie", "a=b");
        let response = response.body("order 1".into()).unwrap();
        let stored = settle(&IdempotencyConfig::new(), response).unwrap();
        assert_eq!((stored.status, stored.body), (201, "order 1".into()));
        assert_eq!(stored.headers, [("location".to_owned(), "/orders/1".into())]);
    }

    #[test]
    fn settled_value_is_none_where_a_retry_may_run() {
        let config = IdempotencyConfig::new();
        for status in [401, 403, 408, 425, 429, 500, 502, 503, 504] {
            let response = response(status).body(Bytes::new()).unwrap();
            assert_eq!(settle(&config, response), None, "{status}");
        }
        let never = response(200).header("idempotency-store", "Never").body(Bytes::new());
        assert_eq!(settle(&config, never.unwrap()), None);
        let kept = response(500).extension(Verdict::Keep).body(Bytes::new());
        assert_eq!(settle(&config, kept.unwrap()).unwrap().status, 500);
    }

    #[test]
    fn settled_value_is_a_tombstone_above_max_body() {
        let config = IdempotencyConfig::new().with_max_body(4);
        let large = settle(&config, response(201).body("12345".into()).unwrap());
        assert_eq!(large, Some(tombstone(StatusCode::CREATED)));
        let headers = response(201).header("location", "/1").body(Bytes::new()).unwrap();
        assert_eq!(settle(&config, headers), Some(tombstone(StatusCode::CREATED)));
        let small = settle(&config, response(201).body("1234".into()).unwrap());
        assert_eq!(small.unwrap().body, "1234");
    }
}
