use std::collections::BTreeMap;

use http::{Response, StatusCode};

/// What becomes of an answer.
///
/// A service may say so itself, by putting one of these into the extensions of its response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It is kept, and everybody who asks again gets it.
    Keep,
    /// It is passed on, and the key is free for a retry.
    GiveBack,
    /// It is passed on, and nobody knows whether there was an effect.
    Unknown,
}

/// Which statuses are kept: 2xx, 3xx and 4xx, but not those that a retry may change (401, 403, 408,
/// 425, 429). A 5xx is the service's word that a retry may run; a 502 or 504 is a gateway's word that
/// it does not know. Single statuses may be said otherwise.
///
/// ```
/// use hapax_http::{Verdict, Verdicts};
/// use http::StatusCode;
/// let verdicts = Verdicts::default().with(StatusCode::NOT_FOUND, Verdict::GiveBack);
/// assert_eq!(verdicts.of(StatusCode::CREATED), Verdict::Keep);
/// assert_eq!(verdicts.of(StatusCode::NOT_FOUND), Verdict::GiveBack);
/// assert_eq!(verdicts.of(StatusCode::INTERNAL_SERVER_ERROR), Verdict::GiveBack);
/// assert_eq!(verdicts.of(StatusCode::GATEWAY_TIMEOUT), Verdict::Unknown);
/// ```
#[derive(Clone, Debug, Default)]
pub struct Verdicts(BTreeMap<u16, Verdict>);

impl Verdicts {
    /// Says otherwise for one status.
    #[must_use]
    pub fn with(mut self, status: StatusCode, verdict: Verdict) -> Self {
        self.0.insert(status.as_u16(), verdict);
        self
    }

    /// What becomes of this answer. The service's own word, which is taken out of the headers, counts
    /// more than its status.
    pub(crate) fn judge<R>(&self, response: &mut Response<R>) -> Verdict {
        let never = response.headers_mut().remove("idempotency-store");
        if let Some(verdict) = response.extensions().get() {
            return *verdict;
        }
        if never.is_some_and(|value| value.as_bytes().eq_ignore_ascii_case(b"never")) {
            return Verdict::GiveBack;
        }
        self.of(response.status())
    }

    /// What becomes of an answer with this status.
    pub fn of(&self, status: StatusCode) -> Verdict {
        if let Some(verdict) = self.0.get(&status.as_u16()) {
            return *verdict;
        }
        match status.as_u16() {
            401 | 403 | 408 | 425 | 429 => Verdict::GiveBack,
            502 | 504 => Verdict::Unknown,
            200..=499 => Verdict::Keep,
            _ => Verdict::GiveBack,
        }
    }
}
