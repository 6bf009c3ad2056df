//! The rules that a service may promise to keep.

use super::checks::WrongPart;

/// A set of rules. They agree on most things; the methods below are where they differ.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub(super) enum Profile {
    /// hapax's own, as its layer and its proxy keep them
    Hapax,
    /// draft-ietf-httpapi-idempotency-key-header-07
    Ietf,
    /// Stripe's API
    Stripe,
}

impl Profile {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Hapax => "hapax",
            Self::Ietf => "ietf",
            Self::Stripe => "stripe",
        }
    }

    /// Whether a key that comes back with another request may be refused with this status.
    pub(super) fn may_refuse_reuse_with(self, status: u16) -> bool {
        match self {
            Self::Hapax => status == 422,
            // The draft says that 422 SHOULD be the answer, and that one of its three errors MUST be.
            Self::Ietf => matches!(status, 400 | 409 | 422),
            // Stripe's text says that the API "errors", and names no status.
            Self::Stripe => (400..500).contains(&status),
        }
    }

    /// Whether a key that is none may be refused with this status.
    pub(super) fn may_refuse_key_with(self, status: u16) -> bool {
        match self {
            Self::Hapax => status == 400,
            Self::Ietf | Self::Stripe => (400..500).contains(&status),
        }
    }

    /// Whether a service breaks these rules where this part of a check is wrong, or only leaves a
    /// recommendation.
    ///
    /// Of what a server answers, the draft says SHOULD throughout. That a duplicate runs nothing is what the draft is
    /// for, except that it leaves open (MAY) whether a request is known by its payload too.
    pub(super) fn requires(self, check: &str, wrong: WrongPart) -> bool {
        let may_ignore = ["other-body", "other-body-in-flight", "key-not-ascii"];
        self != Self::Ietf || wrong == WrongPart::Executions && !may_ignore.contains(&check)
    }

    /// A key as this profile writes it in the header: the draft's is a string of RFC 8941.
    pub(super) fn header_value(self, key: &str) -> String {
        match self {
            Self::Ietf => format!("\"{key}\""),
            Self::Hapax | Self::Stripe => key.to_owned(),
        }
    }
}
