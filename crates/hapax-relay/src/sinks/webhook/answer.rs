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
    let failure = DeliveryError::refused(format!("the webhook answered {}", status.as_u16()));
    Err(match status.as_u16() {
        // A retry would send the same bytes and get the same response.
        400 | 410 | 413 | 414 | 415 | 422 | 431 => failure.permanent(),
        _ => match wish(headers, now) {
            Some(wish) => failure.retry(RetryHint::After(wish)),
            None => failure,
        },
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
        let Err(DeliveryError::Refused { retry, .. }) = answer(status, retry_after) else {
            panic!()
        };
        retry
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
    fn retry_after_is_read_in_both_forms() {
        assert_eq!(again(429, Some("7")), RetryHint::After(Duration::from_secs(7)));
        let date = Some("Sun, 09 Sep 2001 01:46:50 GMT");
        assert_eq!(again(503, date), RetryHint::After(Duration::from_secs(10)));
        assert_eq!(again(503, Some("soon")), RetryHint::Later);
    }
}
