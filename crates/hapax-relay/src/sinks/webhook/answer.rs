//! The meaning of a webhook's response.

use std::time::{Duration, UNIX_EPOCH};

use hapax_core::Timestamp;
use hyper::StatusCode;
use hyper::header::{HeaderMap, RETRY_AFTER};

use crate::{DeliveryError, RetryHint};

pub(super) fn read(
    status: StatusCode,
    headers: &HeaderMap,
    now: Timestamp,
) -> Result<(), DeliveryError> {
    if status.is_success() {
        return Ok(());
    }
    let reason = format!("the webhook answered {}", status.as_u16());
    let failure = match status.as_u16() {
        // A retry would send the same bytes and get the same response.
        400 | 410 | 413 | 414 | 415 | 422 | 431 => {
            return Err(DeliveryError::refused(reason).permanent());
        }
        // Answers about the server, or of a load balancer that finds none.
        408 | 425 | 429 | 502 | 503 | 504 => DeliveryError::rejected(reason),
        _ => DeliveryError::refused(reason),
    };
    Err(match wish(headers, now) {
        Some(wish) => failure.retry(RetryHint::After(wish)),
        None => failure,
    })
}

/// `Retry-After`, in seconds or as a date.
fn wish(headers: &HeaderMap, now: Timestamp) -> Option<Duration> {
    let text = headers.get(RETRY_AFTER)?.to_str().ok()?.trim();
    if let Ok(seconds) = text.parse() {
        return Some(Duration::from_secs(seconds));
    }
    let then = httpdate::parse_http_date(text).ok()?.duration_since(UNIX_EPOCH).ok()?;
    Some(then.saturating_sub(Duration::from_millis(now.0)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(status: u16, retry_after: Option<&str>) -> Result<(), DeliveryError> {
        let mut headers = HeaderMap::new();
        if let Some(text) = retry_after {
            headers.insert(RETRY_AFTER, text.parse().unwrap());
        }
        read(StatusCode::from_u16(status).unwrap(), &headers, Timestamp(1_000_000_000_000))
    }

    fn again(status: u16, retry_after: Option<&str>) -> RetryHint {
        match answer(status, retry_after) {
            Err(DeliveryError::Refused { retry, .. } | DeliveryError::Rejected { retry, .. }) => {
                retry
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn statuses_about_the_message_itself_are_final() {
        assert_eq!(answer(204, None), Ok(()));
        assert_eq!(again(422, None), RetryHint::Never);
        assert_eq!(again(301, None), RetryHint::Later);
        assert_eq!(again(404, None), RetryHint::Later);
        assert_eq!(again(503, None), RetryHint::Later);
    }

    #[test]
    fn fault_07_statuses_about_the_server_are_not_about_the_message() {
        for status in [408, 425, 429, 502, 503, 504] {
            assert!(
                matches!(answer(status, None), Err(DeliveryError::Rejected { .. })),
                "{status}"
            );
        }
        for status in [301, 401, 404, 409, 500, 501] {
            assert!(matches!(answer(status, None), Err(DeliveryError::Refused { .. })), "{status}");
        }
    }

    #[test]
    fn retry_after_is_read_in_both_forms() {
        assert_eq!(again(429, Some("7")), RetryHint::After(Duration::from_secs(7)));
        let date = Some("Sun, 09 Sep 2001 01:46:50 GMT");
        assert_eq!(again(503, date), RetryHint::After(Duration::from_secs(10)));
        assert_eq!(again(503, Some("soon")), RetryHint::Later);
    }
}
