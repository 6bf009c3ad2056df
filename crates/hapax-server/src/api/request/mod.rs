//! One API request, parsed strictly: path, query, headers and body, each at most once and well-formed.

pub(super) mod admission;
pub(super) mod auth;
pub(super) mod fields;
pub(super) mod headers;
mod local_only;
pub(super) mod reveal;
pub(super) mod session;
mod strict_json;

use std::ops::RangeInclusive;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::body::Bytes;
use axum::extract::{FromRequest, Request};
use hapax::{Tenant, Token};
use hapax_http::{MemoryBudget, ReservedMemory, json_cost};
use hyper::header::{CONTENT_ENCODING, CONTENT_TYPE, HeaderMap};
use hyper::{Method, Uri};
use percent_encoding::percent_decode_str;
use serde_json::Value;
use tokio::time::Instant;

use crate::api::app::AppState;
use crate::api::sse::signed_link::SignedLink;
use crate::daemon::body;
use crate::problem::{Problem, ProblemKind};
use auth::{ApiCaller, Credentials};
use fields::{JsonFields, quote_name};
use headers::{HAPAX_NOTE, HAPAX_TOKEN, single_header};

/// The most bytes of an operator's note.
pub(crate) const MAX_NOTE: usize = 500;

/// A parsed request to an endpoint under `/v1`.
pub(crate) struct ApiRequest {
    /// When it was admitted.
    pub(crate) received: Instant,
    pub(crate) tenant: Tenant,
    pub(crate) caller: Arc<str>,
    /// The signed link that stands for a token; the caller may read only its jobs.
    pub(crate) link: Option<Arc<SignedLink>>,
    pub(crate) credentials: Credentials,
    /// Whether the caller may do all that an operator may; otherwise `read` is the most.
    pub(crate) is_admin: bool,
    segments: Vec<String>,
    query: Vec<(String, String)>,
    pub(crate) headers: HeaderMap,
    body: Bytes,
    /// The memory of the body, and of its parsed form.
    memory: Mutex<ReservedMemory>,
    budget: MemoryBudget,
}

impl FromRequest<AppState> for ApiRequest {
    type Rejection = Problem;

    async fn from_request(request: Request, app: &AppState) -> Result<Self, Problem> {
        let received = Instant::now();
        let (parts, body) = request.into_parts();
        let takes_body = matches!(parts.method, Method::POST | Method::PUT | Method::PATCH);
        // Read the body first: a client that is still sending often misses a refusal.
        let (limit, within) = (app.settings.body_limit, app.settings.body_timeout);
        let (body, memory) = body::read(body, limit, within, &app.memory).await?;
        app.check_store_fit()?;
        let segments = path_segments(&parts.uri)?;
        let query = parse_query(&parts.uri)?;
        if takes_body {
            check_content_type(&parts.method, &parts.headers)?;
        }
        let caller = parts.extensions.get::<ApiCaller>().cloned();
        let ApiCaller { name: caller, tenant, link, credentials, is_admin } =
            caller.expect("admission sets the caller of every `/v1` request");
        let (headers, budget) = (parts.headers, app.memory.clone());
        let memory = Mutex::new(memory);
        Ok(Self {
            received,
            tenant,
            caller,
            link,
            credentials,
            is_admin,
            segments,
            query,
            headers,
            body,
            memory,
            budget,
        })
    }
}

impl ApiRequest {
    /// A segment of the path after `/v1/<feature>/`, percent-decoded.
    pub(crate) fn segment(&self, i: usize) -> &str {
        self.segments.get(i).map_or("", String::as_str)
    }

    /// The fields of the JSON body; an empty body has none.
    pub(crate) fn json_fields(&self) -> Result<JsonFields, Problem> {
        self.reserve_for_parsing()?;
        JsonFields::parse(&self.body)
    }

    /// The JSON body as a tree.
    pub(crate) fn json_value(&self) -> Result<Value, Problem> {
        let body = self.json_body()?;
        self.reserve_for_parsing()?;
        serde_json::from_slice(&body).map_err(|_| Problem::invalid("the body is not JSON"))
    }

    /// Reserves memory for the parsed body until the request has been handled.
    fn reserve_for_parsing(&self) -> Result<(), Problem> {
        self.reserve(self.parsing_cost())
    }

    /// The memory that the parsed body takes.
    pub(crate) fn parsing_cost(&self) -> usize {
        json_cost(&self.body)
    }

    /// Reserves more memory until the request has been handled.
    pub(crate) fn reserve(&self, bytes: usize) -> Result<(), Problem> {
        let mut memory = self.memory.lock().unwrap_or_else(PoisonError::into_inner);
        memory.grow(&self.budget, bytes)
    }

    pub(crate) fn json_body(&self) -> Result<Bytes, Problem> {
        strict_json::check(&self.body).map_err(Problem::invalid)?;
        Ok(self.body.clone())
    }

    /// The `Hapax-Token` header, for requests without a body.
    pub(crate) fn token_header(&self) -> Result<Token, Problem> {
        let Some(value) = single_header(&self.headers, &HAPAX_TOKEN)? else {
            return Err(Problem::invalid("header `Hapax-Token` is missing"));
        };
        match value.to_str() {
            Ok(token) if (1..=Token::MAX).contains(&token.len()) => Ok(Token::presented(token)),
            _ => Err(Problem::invalid(format!(
                "header `Hapax-Token` takes 1 to {} bytes of printable ASCII",
                Token::MAX
            ))),
        }
    }

    /// The `Hapax-Note` header, an operator's reason for an action: percent-encoded UTF-8.
    pub(crate) fn note(&self) -> Result<Option<String>, Problem> {
        let Some(value) = single_header(&self.headers, &HAPAX_NOTE)? else { return Ok(None) };
        let refused = || {
            Problem::invalid(format!(
                "header `Hapax-Note` takes at most {MAX_NOTE} bytes of UTF-8 without control \
                 characters, percent-encoded"
            ))
        };
        let text = value.to_str().map_err(|_| refused())?;
        let note = percent_decode("header `Hapax-Note`", text).map_err(|_| refused())?;
        if note.len() > MAX_NOTE || note.contains(char::is_control) {
            return Err(refused());
        }
        Ok(Some(note).filter(|note| !note.trim().is_empty()))
    }

    /// Refuses a job that the signed link does not cover.
    pub(crate) fn check_link_covers(&self, domain: &str, job_id: &str) -> Result<(), Problem> {
        match &self.link {
            Some(link) if !link.covers(domain, job_id) => {
                Err(Problem::new(ProblemKind::Forbidden, "`access` is a link for another job"))
            }
            _ => Ok(()),
        }
    }

    pub(crate) fn expect_no_query(&self) -> Result<(), Problem> {
        let [] = self.query_parameters([])?;
        Ok(())
    }

    /// A duration, for requests that accept no other query parameter.
    pub(crate) fn query_millis(
        &self,
        name: &str,
        range: RangeInclusive<u64>,
    ) -> Result<Option<Duration>, Problem> {
        let [text] = self.query_parameters([name])?;
        text.map(|text| parse_query_number(name, text, range).map(Duration::from_millis))
            .transpose()
    }

    /// The values of these query parameters, each at most once; any other is refused.
    pub(crate) fn query_parameters<const N: usize>(
        &self,
        names: [&str; N],
    ) -> Result<[Option<&str>; N], Problem> {
        Ok(self.query_list_and_parameters("", names)?.1)
    }

    /// Like `query_parameters`, with one more parameter (`list`) that may be repeated.
    pub(crate) fn query_list_and_parameters<const N: usize>(
        &self,
        list: &str,
        names: [&str; N],
    ) -> Result<(Vec<&str>, [Option<&str>; N]), Problem> {
        let (mut listed, mut found) = (Vec::new(), [None; N]);
        for (given, value) in &self.query {
            if given == list && !list.is_empty() {
                listed.push(value.as_str());
                continue;
            }
            let Some(at) = names.iter().position(|name| name == given) else {
                let text = format!("unknown query parameter {}", quote_name(given));
                return Err(Problem::invalid(text));
            };
            if found[at].replace(value.as_str()).is_some() {
                return Err(Problem::invalid(format!("query parameter `{given}` is repeated")));
            }
        }
        Ok((listed, found))
    }
}

pub(crate) fn parse_query_number(
    name: &str,
    text: &str,
    range: RangeInclusive<u64>,
) -> Result<u64, Problem> {
    let digits = text.bytes().all(|byte| byte.is_ascii_digit());
    let number = text.parse().ok().filter(|number| digits && range.contains(number));
    let (least, most) = (range.start(), range.end());
    number.ok_or_else(|| {
        Problem::invalid(format!(
            "query parameter `{name}` takes a whole number from {least} to {most}"
        ))
    })
}

/// Parses the `limit` of a page; 100 by default.
pub(crate) fn parse_page_limit(limit: Option<&str>) -> Result<u32, Problem> {
    let limit = limit.map_or(Ok(100), |text| parse_query_number("limit", text, 1..=1000))?;
    Ok(u32::try_from(limit).expect("at most 1000"))
}

/// The segments of the path after `/v1/<feature>/`. A `%2F` belongs to its segment.
fn path_segments(uri: &Uri) -> Result<Vec<String>, Problem> {
    uri.path().split('/').skip(3).map(|part| percent_decode("path", part)).collect()
}

pub(crate) fn parse_query(uri: &Uri) -> Result<Vec<(String, String)>, Problem> {
    let Some(query) = uri.query().filter(|query| !query.is_empty()) else { return Ok(vec![]) };
    let pair = |pair: &str| {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        Ok((percent_decode("query", name)?, percent_decode("query", value)?))
    };
    query.split('&').map(pair).collect()
}

/// Percent-decodes, and refuses broken percent-encoding instead of guessing.
pub(crate) fn percent_decode(place: &str, text: &str) -> Result<String, Problem> {
    let bytes = text.as_bytes();
    let whole = |at: usize| {
        bytes.get(at + 1..at + 3).is_some_and(|hex| hex.iter().all(u8::is_ascii_hexdigit))
    };
    if (0..bytes.len()).any(|at| bytes[at] == b'%' && !whole(at)) {
        return Err(Problem::invalid(format!("the {place} has broken percent-encoding")));
    }
    match percent_decode_str(text).decode_utf8() {
        Ok(text) => Ok(text.into_owned()),
        Err(_) => Err(Problem::invalid(format!(
            "the {place} has a byte that is not printable ASCII (0x21 to 0x7E)"
        ))),
    }
}

/// Accepts JSON or no `Content-Type`; for PATCH also a merge patch.
pub(crate) fn check_content_type(method: &Method, headers: &HeaderMap) -> Result<(), Problem> {
    let taken = if *method == Method::PATCH {
        "application/json or application/merge-patch+json"
    } else {
        "application/json"
    };
    let unsupported = |text: String| Problem::new(ProblemKind::UnsupportedMediaType, text);
    let refused = || unsupported(format!("`Content-Type` takes {taken}, or none"));
    if single_header(headers, &CONTENT_ENCODING)?.is_some_and(|value| value != "identity") {
        return Err(unsupported("`Content-Encoding` is not supported".into()));
    }
    let Some(value) = single_header(headers, &CONTENT_TYPE)? else { return Ok(()) };
    let mut parts = value.to_str().map_err(|_| refused())?.split(';').map(str::trim);
    let essence = parts.next().unwrap_or_default().to_ascii_lowercase();
    let utf8 = |parameter: &str| match parameter.split_once('=') {
        Some((name, value)) if name.eq_ignore_ascii_case("charset") => {
            value.trim_matches('"').eq_ignore_ascii_case("utf-8")
        }
        _ => true,
    };
    if !taken.split(" or ").any(|taken| taken == essence) || !parts.all(utf8) {
        return Err(refused());
    }
    Ok(())
}
