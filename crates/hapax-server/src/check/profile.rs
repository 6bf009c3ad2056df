//! The rules that a service may promise to keep.

/// A set of rules. They agree on most things; the fields below are where they differ.
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

    /// The status of a key that comes back with another request.
    pub(super) fn reused_status(self) -> u16 {
        match self {
            Self::Hapax | Self::Ietf => 422,
            Self::Stripe => 400,
        }
    }

    /// A key as this profile writes it in the header: the draft's is a string of RFC 8941.
    pub(super) fn header_value(self, key: &str) -> String {
        match self {
            Self::Ietf => format!("\"{key}\""),
            Self::Hapax | Self::Stripe => key.to_owned(),
        }
    }
}
