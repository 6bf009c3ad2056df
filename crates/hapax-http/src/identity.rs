use hapax_core::{Ask, Fingerprint, InvalidKey, Key, MAX_NAME, Tenant};
use http::header::{AUTHORIZATION, COOKIE, HeaderName};
use http::request::Parts;
use http::{HeaderMap, StatusCode};

use crate::{Problem, Settings};

pub(crate) const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");

/// Who is asking. A key means something only together with its caller, so that nobody gets an answer
/// that was made for somebody else.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Scope {
    /// A hash of `Authorization`. A request with a `Cookie` and no `Authorization` is refused: its
    /// caller cannot be told. One with neither is anonymous.
    #[default]
    Authorization,
    /// A hash of this header, which a trusted hop sets.
    Header(HeaderName),
    /// A hash of this cookie.
    Cookie(String),
    /// Everybody is the same caller.
    Single,
}

impl Scope {
    /// The tenant for this caller; `None` where the caller cannot be told.
    fn tenant(&self, tenant: &Tenant, headers: &HeaderMap) -> Option<Tenant> {
        let who: Option<Vec<u8>> = match self {
            Self::Single => return Some(tenant.clone()),
            Self::Authorization => match headers.get(AUTHORIZATION) {
                None if headers.contains_key(COOKIE) => None,
                who => Some(who.map_or(Vec::new(), |v| v.as_bytes().to_vec())),
            },
            Self::Header(name) => headers.get(name).map(|v| v.as_bytes().to_vec()),
            Self::Cookie(name) => cookie(headers, name),
        };
        let hash = Fingerprint::of(&[&who?]);
        Some(tenant.scoped(&hash.as_str()[..32]).expect("a short hexadecimal text"))
    }
}

fn cookie(headers: &HeaderMap, name: &str) -> Option<Vec<u8>> {
    let lines = headers.get_all(COOKIE).iter().filter_map(|line| line.to_str().ok());
    let mut pairs = lines.flat_map(|line| line.split(';')).filter_map(|pair| pair.split_once('='));
    pairs.find(|(n, _)| n.trim() == name).map(|(_, value)| value.trim().as_bytes().to_vec())
}

/// Why an `Idempotency-Key` is none.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidIdempotencyKey {
    /// There are several.
    #[error("there are several Idempotency-Key headers; send one")]
    Doubled,
    /// It starts as a quoted string and is none.
    #[error("Idempotency-Key starts with a quote but is no RFC 8941 string; send \"key\" or key")]
    NotAString,
    /// It is empty, too long, or not printable ASCII.
    #[error("Idempotency-Key: {0}")]
    NotAKey(InvalidKey),
}

/// The key of a request: an RFC 8941 string (`"k1"`), or the same text bare (`k1`).
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
        return Err(InvalidIdempotencyKey::Doubled);
    }
    let key = if line.as_bytes().first() == Some(&b'"') {
        match sfv::Parser::new(line.as_bytes()).parse::<sfv::Item>() {
            Ok(sfv::Item { bare_item: sfv::BareItem::String(text), params })
                if params.is_empty() =>
            {
                text.as_str().to_owned()
            }
            _ => return Err(InvalidIdempotencyKey::NotAString),
        }
    } else {
        // A byte outside ASCII becomes a character that no key may have.
        String::from_utf8_lossy(line.as_bytes()).into_owned()
    };
    Key::lock(&Tenant::default(), &key).map_err(InvalidIdempotencyKey::NotAKey)?;
    Ok(Some(key))
}

/// A request with a key, for handlers whose own database transaction carries claim, effect and
/// answer: pass [`key`](Keyed::key) and [`ask`](Keyed::ask) to `hapax_postgres` or `hapax_sqlite`
/// inside it.
#[derive(Clone, Debug)]
pub struct Keyed {
    /// Whose claim it is, of what.
    pub key: Key,
    /// The question, with the request's fingerprint.
    pub ask: Ask,
    pub(crate) tenant: Tenant,
    pub(crate) operation: String,
    pub(crate) name: String,
    pub(crate) fingerprint: Fingerprint,
}

impl Keyed {
    /// The identity of a request; `None` where it has no key and needs none.
    pub fn of(settings: &Settings, parts: &Parts, body: &[u8]) -> Result<Option<Self>, Problem> {
        let Some(name) = key_of(settings, parts)? else { return Ok(None) };
        let tenant = tenant_of(settings, parts)?;
        let operation = operation(parts);
        let key = Key::command(&tenant, &operation, &name).map_err(|e| invalid(e.to_string()))?;
        let fingerprint = settings.fingerprint.request(parts, body);
        let ask = Ask::new(settings.lease)
            .retention(settings.retention)
            .fingerprint(Some(fingerprint.clone()))
            .on_unknown(settings.on_unknown);
        Ok(Some(Self { key, ask, tenant, operation, name, fingerprint }))
    }
}

/// The key, where the method is one that has keys.
pub(crate) fn key_of(settings: &Settings, parts: &Parts) -> Result<Option<String>, Problem> {
    if !settings.methods.contains(&parts.method) {
        return Ok(None);
    }
    let key = parse_key(&parts.headers).map_err(|error| invalid(error.to_string()))?;
    if key.is_none() && settings.require_key {
        return Err(Problem::new(
            StatusCode::BAD_REQUEST,
            "key-missing",
            "This request needs an Idempotency-Key",
            "send an Idempotency-Key header with a value of your own, the same for every retry",
        ));
    }
    Ok(key)
}

pub(crate) fn tenant_of(settings: &Settings, parts: &Parts) -> Result<Tenant, Problem> {
    settings.scope.tenant(&settings.tenant, &parts.headers).ok_or_else(|| {
        Problem::new(
            StatusCode::BAD_REQUEST,
            "scope-missing",
            "Nobody can tell who is asking",
            "a key belongs to its caller: send Authorization, or configure the scope (a cookie, a \
             header that a trusted hop sets, or single)",
        )
    })
}

fn invalid(detail: String) -> Problem {
    Problem::new(StatusCode::BAD_REQUEST, "invalid-key", "The Idempotency-Key is not valid", detail)
}

/// `METHOD /path`; a path that is too long for a name is represented by its hash.
fn operation(parts: &Parts) -> String {
    let operation = format!("{} {}", parts.method, parts.uri.path());
    if operation.len() <= MAX_NAME {
        return operation;
    }
    format!("{} sha256:{}", parts.method, Fingerprint::of(&[operation.as_bytes()]).as_str())
}
