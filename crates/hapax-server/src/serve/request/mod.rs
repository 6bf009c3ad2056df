//! One call, read strictly: path, query, headers and body, each once and each well-formed.

pub(super) mod admission;
pub(super) mod auth;
pub(crate) mod body;
pub(super) mod fields;
pub(super) mod headers;
mod local_only;
mod strict_json;

use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Bytes;
use axum::extract::{FromRequest, Request};
use hapax::{Tenant, Token};
use hyper::header::{CONTENT_ENCODING, CONTENT_TYPE, HeaderMap};
use hyper::{Method, Uri};
use percent_encoding::percent_decode_str;

use crate::serve::app::App;
use crate::serve::problem::{Problem, ProblemKind};
use crate::serve::sse::signed_link::Link;
use auth::Caller;
use fields::{Fields, shown};
use headers::{HAPAX_TOKEN, one};

/// A call of one of the features under `/v1`.
pub(crate) struct Call {
    pub(crate) tenant: Tenant,
    /// The name of the caller's token.
    pub(crate) caller: Arc<str>,
    /// What alone the caller may see.
    pub(crate) link: Option<Arc<Link>>,
    segments: Vec<String>,
    query: Vec<(String, String)>,
    pub(crate) headers: HeaderMap,
    body: Bytes,
}

impl FromRequest<App> for Call {
    type Rejection = Problem;

    async fn from_request(request: Request, app: &App) -> Result<Self, Problem> {
        let (parts, body) = request.into_parts();
        let takes_body = matches!(parts.method, Method::POST | Method::PUT | Method::PATCH);
        // Before anything is refused: an answer in the middle of a body often never arrives.
        let body = body::read(body, app.settings.body_limit, app.settings.body_timeout).await?;
        app.readiness.fit()?;
        let segments = segments(&parts.uri)?;
        let query = query(&parts.uri)?;
        if takes_body {
            media_type(&parts.method, &parts.headers)?;
        }
        let caller = parts.extensions.get::<Caller>().cloned();
        let Caller { name: caller, tenant, link } =
            caller.expect("the guard in front of every feature says who is asking");
        Ok(Self { tenant, caller, link, segments, query, headers: parts.headers, body })
    }
}

impl Call {
    /// A part of the path behind the feature's name, percent-decoded.
    pub(crate) fn segment(&self, i: usize) -> &str {
        self.segments.get(i).map_or("", String::as_str)
    }

    /// The body's fields; an empty body has none.
    pub(crate) fn fields(&self) -> Result<Fields, Problem> {
        Fields::read(&self.body)
    }

    /// The body as any JSON value.
    pub(crate) fn json(&self) -> Result<Bytes, Problem> {
        strict_json::check(&self.body).map_err(Problem::invalid)?;
        Ok(self.body.clone())
    }

    /// The token of a call that has no body.
    pub(crate) fn token(&self) -> Result<Token, Problem> {
        let Some(value) = one(&self.headers, &HAPAX_TOKEN)? else {
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

    /// Refuses to show what a signed link does not cover.
    pub(crate) fn may_see(&self, domain: &str, job_id: &str) -> Result<(), Problem> {
        match &self.link {
            Some(link) if !link.covers(domain, job_id) => {
                Err(Problem::new(ProblemKind::Forbidden, "`access` is a link for another job"))
            }
            _ => Ok(()),
        }
    }

    /// Refuses any query.
    pub(crate) fn no_query(&self) -> Result<(), Problem> {
        let [] = self.parameters([])?;
        Ok(())
    }

    /// A duration in the query, the one parameter that is taken.
    pub(crate) fn millis_parameter(
        &self,
        name: &str,
        range: RangeInclusive<u64>,
    ) -> Result<Option<Duration>, Problem> {
        let [text] = self.parameters([name])?;
        text.map(|text| number(name, text, range).map(Duration::from_millis)).transpose()
    }

    /// The query, of which these parameters are taken, each once.
    pub(crate) fn parameters<const N: usize>(
        &self,
        names: [&str; N],
    ) -> Result<[Option<&str>; N], Problem> {
        Ok(self.list_and_parameters("", names)?.1)
    }

    /// The query, of which one parameter may come several times.
    pub(crate) fn list_and_parameters<const N: usize>(
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
                let text = format!("unknown query parameter {}", shown(given));
                return Err(Problem::invalid(text));
            };
            if found[at].replace(value.as_str()).is_some() {
                return Err(Problem::invalid(format!("query parameter `{given}` is there twice")));
            }
        }
        Ok((listed, found))
    }
}

/// A whole number in the query.
pub(crate) fn number(name: &str, text: &str, range: RangeInclusive<u64>) -> Result<u64, Problem> {
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|number| digits && range.contains(number)).ok_or_else(|| {
        Problem::invalid(format!(
            "query parameter `{name}` takes a whole number from {} to {}",
            range.start(),
            range.end()
        ))
    })
}

/// The parts of the path behind `/v1/<feature>/`. A `%2F` belongs to its part.
fn segments(uri: &Uri) -> Result<Vec<String>, Problem> {
    uri.path().split('/').skip(3).map(|part| decoded("path", part)).collect()
}

pub(crate) fn query(uri: &Uri) -> Result<Vec<(String, String)>, Problem> {
    let Some(query) = uri.query().filter(|query| !query.is_empty()) else { return Ok(vec![]) };
    let pair = |pair: &str| {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        Ok((decoded("query", name)?, decoded("query", value)?))
    };
    query.split('&').map(pair).collect()
}

/// Percent-decodes; what is not well-formed is refused rather than guessed.
pub(crate) fn decoded(place: &str, text: &str) -> Result<String, Problem> {
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

/// JSON, or nothing said; a merge patch too where one is taken.
fn media_type(method: &Method, headers: &HeaderMap) -> Result<(), Problem> {
    let taken = if *method == Method::PATCH {
        "application/json or application/merge-patch+json"
    } else {
        "application/json"
    };
    let refused = || {
        Problem::new(
            ProblemKind::UnsupportedMediaType,
            format!("`Content-Type` takes {taken}, or none"),
        )
    };
    if one(headers, &CONTENT_ENCODING)?.is_some_and(|value| value != "identity") {
        return Err(Problem::new(
            ProblemKind::UnsupportedMediaType,
            "`Content-Encoding` is not taken",
        ));
    }
    let Some(value) = one(headers, &CONTENT_TYPE)? else { return Ok(()) };
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
