//! `/v1/records`

use std::ops::RangeInclusive;
use std::time::Duration;

use axum::extract::State;
use axum::response::IntoResponse;
use hapax::record::{Documents, Match, RecordError, Stored};
use hyper::StatusCode;
use serde_json::Value;

use crate::serve::app::App;
use crate::serve::problem::{Problem, ProblemDocument, ProblemKind};
use crate::serve::request::Call;
use crate::serve::request::headers::{Precondition, expected, precondition};
use crate::serve::response::{Answer, json, raw_json, versioned};

/// How long a record may be kept, in milliseconds.
const TTL: RangeInclusive<u64> = 1..=366 * 86_400_000;
/// How long the answer to a write waits for what it would like to know besides.
const EXTRA: Duration = Duration::from_millis(500);

/// Read a record.
#[utoipa::path(
    get, path = "/v1/records/{key}", operation_id = "read_record", tag = "records",
    params(
        ("key" = String, Path, min_length = 1, max_length = 255),
        ("If-None-Match" = Option<String>, Header, description = "`*` or ETags: 304 where one of them is stored"),
        ("If-Match" = Option<String>, Header, description = "`*` or ETags: 412 where none of them is stored"),
    ),
    responses(
        (status = 200, body = Value, description = "The JSON as it was written", headers(
            ("ETag" = String, description = "Its version"),
            ("Hapax-Expires-In-Ms" = u64, description = "How long it is still there, where it expires"),
        )),
        (status = 304, description = "It is the version that is known already"),
        (status = 404, body = ProblemDocument, content_type = "application/problem+json", description = "`record-missing`"),
        (status = 412, body = ProblemDocument, content_type = "application/problem+json", description = "`version-mismatch`"),
        (status = 500, body = ProblemDocument, content_type = "application/problem+json", description = "`record-corrupt`: what is stored is not JSON"),
    ),
)]
pub(crate) async fn read(State(app): State<App>, call: Call) -> Answer {
    call.no_query()?;
    let precondition = precondition(&call.headers)?;
    let documents = app.documents(call.tenant.clone());
    let stored = app.ask(Duration::ZERO, documents.get_raw(call.segment(0))).await?;
    let holds = |expected: &Match| match (&stored, expected) {
        (Some(record), Match::OneOf(versions)) => versions.contains(&record.version),
        (stored, _) => stored.is_some(),
    };
    let mut unchanged = false;
    match &precondition {
        Precondition::IfMatch(expected) if !holds(expected) => {
            return Err(RecordError::Conflict.into());
        }
        Precondition::IfNoneMatch(expected) => unchanged = holds(expected),
        _ => {}
    }
    let record = stored.ok_or(RecordError::Missing)?;
    let response = match unchanged {
        true => StatusCode::NOT_MODIFIED.into_response(),
        false => raw_json(StatusCode::OK, record.value),
    };
    versioned(response, &record.version, record.expires_in)
}

/// Write a record.
#[utoipa::path(
    put, path = "/v1/records/{key}", operation_id = "write_record", tag = "records",
    params(
        ("key" = String, Path, min_length = 1, max_length = 255),
        ("ttl_ms" = Option<u64>, Query, minimum = 1, maximum = 31_622_400_000_u64, description = "How long it is kept; without it a new record does not expire and a changed one keeps its own"),
        ("If-Match" = Option<String>, Header, description = "`*` or ETags: write only where one of them is stored"),
        ("If-None-Match" = Option<String>, Header, description = "`*`: write only where nothing is stored"),
    ),
    request_body(content = Value, description = "Any JSON value"),
    responses(
        (status = 200, description = "Changed", headers(("ETag" = String, description = "The new version"), ("Hapax-Expires-In-Ms" = u64, description = "How long it is there, where it expires"))),
        (status = 201, description = "Created", headers(("ETag" = String, description = "The new version"), ("Hapax-Expires-In-Ms" = u64, description = "How long it is there, where it expires"))),
        (status = 409, body = ProblemDocument, content_type = "application/problem+json", description = "`record-contended`: others kept changing it"),
        (status = 412, body = ProblemDocument, content_type = "application/problem+json", description = "`version-mismatch`; nothing was changed"),
    ),
)]
pub(crate) async fn write(State(app): State<App>, call: Call) -> Answer {
    let ttl = call.millis_parameter("ttl_ms", TTL)?;
    let expected = expected(&call.headers, true)?;
    let value = call.json()?;
    let (documents, name) = (app.documents(call.tenant.clone()), call.segment(0));
    let stored = app.ask(Duration::ZERO, documents.put_raw(name, value, &expected, ttl)).await?;
    let status = if stored.created { StatusCode::CREATED } else { StatusCode::OK };
    let expires_in = match ttl {
        None if !stored.created => kept_for(&documents, name, &stored).await,
        ttl => ttl,
    };
    versioned(status.into_response(), &stored.version, expires_in)
}

/// How long a record that kept its TTL is still there. It was written, so that not getting to know
/// this is no failure.
async fn kept_for(documents: &Documents, name: &str, stored: &Stored) -> Option<Duration> {
    let record = tokio::time::timeout(EXTRA, documents.get_raw(name)).await.ok()?.ok()??;
    record.expires_in.filter(|_| record.version == stored.version)
}

/// Change a record by a merge patch (RFC 7386).
#[utoipa::path(
    patch, path = "/v1/records/{key}", operation_id = "patch_record", tag = "records",
    params(
        ("key" = String, Path, min_length = 1, max_length = 255),
        ("ttl_ms" = Option<u64>, Query, minimum = 1, maximum = 31_622_400_000_u64, description = "How long it is kept from now; without it the record keeps its own"),
        ("If-Match" = Option<String>, Header, description = "`*` or ETags: change only where one of them is stored"),
    ),
    request_body(content((Value = "application/merge-patch+json"), (Value = "application/json")), description = "Members replace, null removes"),
    responses(
        (status = 200, body = Value, description = "The merged JSON", headers(("ETag" = String, description = "The new version"), ("Hapax-Expires-In-Ms" = u64, description = "How long it is there, where it expires"))),
        (status = 404, body = ProblemDocument, content_type = "application/problem+json", description = "`record-missing`"),
        (status = 409, body = ProblemDocument, content_type = "application/problem+json", description = "`record-contended`: others kept changing it"),
        (status = 412, body = ProblemDocument, content_type = "application/problem+json", description = "`version-mismatch`; nothing was changed"),
    ),
)]
pub(crate) async fn merge(State(app): State<App>, call: Call) -> Answer {
    let ttl = call.millis_parameter("ttl_ms", TTL)?;
    let expected = expected(&call.headers, false)?;
    let patch: Value = serde_json::from_slice(&call.json()?).map_err(|_| {
        Problem::new(ProblemKind::Internal, "the patch was checked and cannot be read")
    })?;
    let documents = app.documents(call.tenant.clone());
    let changed = documents.patch(call.segment(0), &patch, &expected, ttl);
    let document = app.ask(Duration::ZERO, changed).await?;
    versioned(json(StatusCode::OK, &document.value), &document.version, document.expires_in)
}

/// Delete a record.
#[utoipa::path(
    delete, path = "/v1/records/{key}", operation_id = "delete_record", tag = "records",
    params(
        ("key" = String, Path, min_length = 1, max_length = 255),
        ("If-Match" = Option<String>, Header, description = "`*` or ETags: delete only where one of them is stored"),
    ),
    responses(
        (status = 204, description = "It is gone"),
        (status = 404, body = ProblemDocument, content_type = "application/problem+json", description = "`record-missing`"),
        (status = 412, body = ProblemDocument, content_type = "application/problem+json", description = "`version-mismatch`; nothing was changed"),
    ),
)]
pub(crate) async fn delete(State(app): State<App>, call: Call) -> Answer {
    call.no_query()?;
    let expected = expected(&call.headers, false)?;
    let documents = app.documents(call.tenant.clone());
    app.ask(Duration::ZERO, documents.delete(call.segment(0), &expected)).await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}
