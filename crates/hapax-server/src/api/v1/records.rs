//! `/v1/records`

use std::time::Duration;

use axum::response::IntoResponse;
use hapax::document::{DocumentError, Documents, MatchCondition, StoredDocument};
use hapax_http::json_cost;

use super::prelude::*;
use crate::api::request::headers::{Precondition, parse_expected, parse_precondition};
use crate::api::response::{raw_json_response, with_version_headers};

/// How long a write waits for the remaining TTL, which its response shows if it is known.
const EXPIRY_READ_TIMEOUT: Duration = Duration::from_millis(500);

/// Read a record.
#[utoipa::path(
    get, path = "/v1/records/{key}", operation_id = "read_record", tag = "records",
    params(
        ("If-None-Match" = Option<String>, Header, description = "`*` or ETags: 304 if one of them is stored"),
        ("If-Match" = Option<String>, Header, description = "`*` or ETags: 412 if none of them is stored"),
    ),
    responses(
        (status = 200, body = Value, description = "The JSON as it was written", headers(
            ("ETag" = String, description = "The version of the record"),
            ("Hapax-Expires-In-Ms" = u64, description = "How long the record still exists, if it expires"),
        )),
        (status = 304, description = "The record is unchanged"),
        (status = 404, description = "`record-missing`"),
        (status = 412, description = "`version-mismatch`"),
        (status = 500, description = "`record-corrupt`: the stored value is not JSON"),
    ),
)]
pub(crate) async fn read(State(app): State<AppState>, request: ApiRequest) -> ApiResult {
    request.expect_no_query()?;
    let precondition = parse_precondition(&request.headers)?;
    let documents = app.documents(&request.tenant);
    let stored = app.call_store(documents.get_raw(request.segment(0))).await?;
    let holds = |expected: &MatchCondition| match (&stored, expected) {
        (Some(record), MatchCondition::OneOf(versions)) => versions.contains(&record.version),
        (stored, _) => stored.is_some(),
    };
    let mut unchanged = false;
    match &precondition {
        Precondition::IfMatch(expected) if !holds(expected) => {
            return Err(DocumentError::Conflict.into());
        }
        Precondition::IfNoneMatch(expected) => unchanged = holds(expected),
        _ => {}
    }
    let record = stored.ok_or(DocumentError::Missing)?;
    let response = match unchanged {
        true => StatusCode::NOT_MODIFIED.into_response(),
        false => raw_json_response(StatusCode::OK, record.value),
    };
    with_version_headers(response, &record.version, record.expires_in)
}

/// Write a record.
#[utoipa::path(
    put, path = "/v1/records/{key}", operation_id = "write_record", tag = "records",
    params(
        ("ttl_ms" = Option<u64>, Query, minimum = 1, maximum = 31_622_400_000_u64, description = "How long the record is kept; without it a new record does not expire and a changed one keeps its expiry"),
        ("If-Match" = Option<String>, Header, description = "`*` or ETags: write only if one of them is stored"),
        ("If-None-Match" = Option<String>, Header, description = "`*`: write only if nothing is stored"),
    ),
    request_body(content = Value, description = "Any JSON value"),
    responses(
        (status = 200, description = "Changed", headers(("ETag" = String, description = "The new version"), ("Hapax-Expires-In-Ms" = u64, description = "How long the record exists, if it expires"))),
        (status = 201, description = "Created", headers(("ETag" = String, description = "The new version"), ("Hapax-Expires-In-Ms" = u64, description = "How long the record exists, if it expires"))),
        (status = 409, description = "`record-contended`: other writers kept changing the record"),
        (status = 412, description = "`version-mismatch`; nothing was changed"),
    ),
)]
pub(crate) async fn write(State(app): State<AppState>, request: ApiRequest) -> ApiResult {
    let ttl = request.query_millis("ttl_ms", RETENTION)?;
    let expected = parse_expected(&request.headers, true)?;
    let value = request.json_body()?;
    let (documents, name) = (app.documents(&request.tenant), request.segment(0));
    let stored = app.call_store(documents.put_raw(name, value, &expected, ttl)).await;
    let stored = stored.map_err(|problem| unless_versioned(problem, &expected))?;
    let status = if stored.created { StatusCode::CREATED } else { StatusCode::OK };
    let expires_in = match ttl {
        None if !stored.created => read_expiry(&documents, name, &stored).await,
        ttl => ttl,
    };
    with_version_headers(status.into_response(), &stored.version, expires_in)
}

/// A write without a version may have happened although the store gave no answer. Sent again, it would undo what
/// another client has written since.
fn unless_versioned(problem: Problem, expected: &MatchCondition) -> Problem {
    let is_versioned = matches!(expected, MatchCondition::OneOf(_));
    match problem.kind() {
        ProblemKind::StoreUnavailable if !is_versioned => problem.not_retryable(),
        _ => problem,
    }
}

/// How long a record that kept its TTL still exists. The write succeeded: a failed read is no
/// error.
async fn read_expiry(
    documents: &Documents,
    name: &str,
    stored: &StoredDocument,
) -> Option<Duration> {
    let record =
        tokio::time::timeout(EXPIRY_READ_TIMEOUT, documents.get_raw(name)).await.ok()?.ok()??;
    record.expires_in.filter(|_| record.version == stored.version)
}

/// Change a record with a merge patch (RFC 7386).
#[utoipa::path(
    patch, path = "/v1/records/{key}", operation_id = "patch_record", tag = "records",
    params(
        ("ttl_ms" = Option<u64>, Query, minimum = 1, maximum = 31_622_400_000_u64, description = "How long the record is kept from now; without it the record keeps its expiry"),
        ("If-Match" = Option<String>, Header, description = "`*` or ETags: change only if one of them is stored"),
    ),
    request_body(content((Value = "application/merge-patch+json"), (Value = "application/json")), description = "Members replace, null removes"),
    responses(
        (status = 200, body = Value, description = "The merged JSON", headers(("ETag" = String, description = "The new version"), ("Hapax-Expires-In-Ms" = u64, description = "How long the record exists, if it expires"))),
        (status = 404, description = "`record-missing`"),
        (status = 409, description = "`record-contended`: other writers kept changing the record"),
        (status = 412, description = "`version-mismatch`; nothing was changed"),
    ),
)]
pub(crate) async fn merge(State(app): State<AppState>, request: ApiRequest) -> ApiResult {
    let ttl = request.query_millis("ttl_ms", RETENTION)?;
    let expected = parse_expected(&request.headers, false)?;
    let patch = request.json_value()?;
    let documents = app.documents(&request.tenant);
    // The stored record is parsed too, and takes a copy of the patch in. A patch that starts over has
    // dropped the record that it read before.
    let mut reserved = 0;
    let reserve = |stored: &[u8]| {
        let cost = json_cost(stored).saturating_add(request.parsing_cost());
        let more = cost.saturating_sub(reserved);
        reserved += more;
        request.reserve(more)
    };
    let changed = documents.patch_checked(request.segment(0), &patch, &expected, ttl, reserve);
    let document = app.call_store(changed).await?;
    with_version_headers(
        json_response(StatusCode::OK, &document.value),
        &document.version,
        document.expires_in,
    )
}

/// Delete a record.
#[utoipa::path(
    delete, path = "/v1/records/{key}", operation_id = "delete_record", tag = "records",
    params(
        ("If-Match" = Option<String>, Header, description = "`*` or ETags: delete only if one of them is stored"),
    ),
    responses(
        (status = 204, description = "The record is deleted"),
        (status = 404, description = "`record-missing`"),
        (status = 412, description = "`version-mismatch`; nothing was changed"),
    ),
)]
pub(crate) async fn delete(State(app): State<AppState>, request: ApiRequest) -> ApiResult {
    request.expect_no_query()?;
    let expected = parse_expected(&request.headers, false)?;
    let documents = app.documents(&request.tenant);
    let deleted = app.call_store(documents.delete(request.segment(0), &expected)).await;
    deleted.map_err(|problem| unless_versioned(problem, &expected))?;
    Ok(no_content())
}

#[cfg(test)]
mod tests {
    use hapax::Version;

    use super::*;

    #[test]
    fn fault_01_unanswered_write_without_a_version_is_not_retryable() {
        let retryable = |expected: MatchCondition| {
            let problem = Problem::new(ProblemKind::StoreUnavailable, "no answer");
            unless_versioned(problem, &expected).is_retryable()
        };
        assert!(retryable(Version::new("7").into()));
        for expected in [MatchCondition::Any, MatchCondition::Absent, MatchCondition::Present] {
            assert!(!retryable(expected));
        }
    }
}
