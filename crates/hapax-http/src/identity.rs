use hapax_core::{ClaimRequest, Fingerprint, InvalidKey, Key, MAX_NAME, Tenant};
use http::HeaderMap;
use http::header::{AUTHORIZATION, COOKIE, HeaderName, HeaderValue};
use http::request::Parts;

use crate::{Problem, ProblemKind, Settings};

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
    ///
    /// All values count, in their order: where there are two, nobody knows which of them the service
    /// will believe, and a caller who adds a foreign one must not end up in that one's place.
    fn tenant(&self, tenant: &Tenant, headers: &HeaderMap) -> Option<Tenant> {
        let all = |name| headers.get_all(name).iter().map(HeaderValue::as_bytes).collect();
        let (kind, values): (&str, Vec<&[u8]>) = match self {
            Self::Single => return Some(tenant.clone()),
            Self::Authorization => ("authorization", all(&AUTHORIZATION)),
            Self::Header(name) => ("header", all(name)),
            Self::Cookie(name) => ("cookie", cookies(headers, name)),
        };
        let anonymous = *self == Self::Authorization && !headers.contains_key(COOKIE);
        if values.is_empty() && !anonymous {
            return None;
        }
        let mut parts = vec![kind.as_bytes()];
        parts.extend(values);
        let hash = Fingerprint::of(&parts);
        Some(tenant.scoped(&hash.as_str()[..32]).expect("a short hexadecimal text"))
    }
}

fn cookies<'a>(headers: &'a HeaderMap, name: &str) -> Vec<&'a [u8]> {
    let lines = headers.get_all(COOKIE).iter().map(HeaderValue::as_bytes);
    lines
        .flat_map(|line| line.split(|&byte| byte == b';'))
        .filter_map(|pair| {
            let equals = pair.iter().position(|&byte| byte == b'=')?;
            let (found, value) = (pair[..equals].trim_ascii(), pair[equals + 1..].trim_ascii());
            (found == name.as_bytes()).then_some(value)
        })
        .collect()
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
        // A byte outside ASCII becomes a character that no key may have.
        String::from_utf8_lossy(line).into_owned()
    };
    Key::lock(&Tenant::default(), &key).map_err(InvalidIdempotencyKey::NotAKey)?;
    Ok(Some(key))
}

/// A request with a key, for handlers whose own database transaction carries claim, effect and
/// answer. Such a route has no layer; inside its transaction it
///
/// 1. claims [`key`](Keyed::key) with [`ask`](Keyed::ask) (`hapax_postgres::InTransaction`,
///    `hapax_sqlite::tx`), and asks [`Keyed::granted`] what that came to,
/// 2. does its work,
/// 3. settles with [`settlement`](crate::settlement)`(…)`, and commits.
///
/// There is a whole handler at [`settlement`](crate::settlement).
#[derive(Clone, Debug)]
pub struct Keyed {
    /// Whose claim it is, of what.
    pub key: Key,
    /// The question, with the request's fingerprint.
    pub ask: ClaimRequest,
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
        let operation = operation(settings, parts);
        let key = Key::command(&tenant, &operation, &name).map_err(|e| invalid(e.to_string()))?;
        let fingerprint = settings.fingerprint.request(parts, body);
        let ask = ClaimRequest::new(settings.lease)
            .retention(settings.retention)
            .fingerprint(Some(fingerprint.clone()))
            .on_unknown(settings.on_unknown);
        Ok(Some(Self { key, ask, tenant, operation, name, fingerprint }))
    }
}

/// The key, where the method is one that has keys.
pub(crate) fn key_of(settings: &Settings, parts: &Parts) -> Result<Option<String>, Problem> {
    if !settings.has_keys(&parts.method) {
        return Ok(None);
    }
    let key = parse_key(&parts.headers).map_err(|error| invalid(error.to_string()))?;
    if key.is_none() && settings.require_key {
        return Err(Problem::new(
            ProblemKind::KeyMissing,
            "send an Idempotency-Key header with a value of your own, the same for every retry",
        ));
    }
    Ok(key)
}

pub(crate) fn tenant_of(settings: &Settings, parts: &Parts) -> Result<Tenant, Problem> {
    settings.scope.tenant(&settings.tenant, &parts.headers).ok_or_else(|| {
        Problem::new(
            ProblemKind::ScopeMissing,
            "a key belongs to its caller: send credentials (Authorization, unless the service is \
             configured for a cookie or another header)",
        )
    })
}

fn invalid(detail: String) -> Problem {
    Problem::new(ProblemKind::InvalidKey, detail)
}

/// `METHOD /path`; a path that cannot be part of a name is represented by its hash.
fn operation(settings: &Settings, parts: &Parts) -> String {
    let operation = match &settings.path {
        Some(path) => format!("{} {}", parts.method, path(parts)),
        None => format!("{} {}", parts.method, parts.uri.path()),
    };
    if operation.len() <= MAX_NAME && operation.bytes().all(|byte| (0x20..0x7f).contains(&byte)) {
        return operation;
    }
    format!("{} sha256:{}", parts.method, Fingerprint::of(&[operation.as_bytes()]).as_str())
}
