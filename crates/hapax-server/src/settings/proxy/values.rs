//! How the text of a setting of the proxy becomes its value.

use hapax::OnUnknown;
use hapax::lock::OnStoreError;
use hapax_http::{CallerScope, Verdict};
use hyper::Method;
use hyper::header::HeaderName;

use crate::settings::values::{SettingValue, choice, list_items};

/// KeyedMethods, comma-separated; an empty text is none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct KeyedMethods(pub(crate) Vec<Method>);

impl SettingValue for KeyedMethods {
    fn parse(text: &str) -> Result<Self, String> {
        let methods = list_items(text).map(|name| match name {
            "POST" | "PATCH" | "PUT" | "DELETE" => Ok(name.parse().expect("a method by name")),
            _ => Err("methods out of POST, PATCH, PUT and DELETE are expected".to_owned()),
        });
        methods.collect::<Result<_, _>>().map(Self)
    }
}

impl SettingValue for OnUnknown {
    fn parse(text: &str) -> Result<Self, String> {
        choice(text, &[("refuse", Self::Refuse), ("rerun", Self::TakeOver)])
    }
}

impl SettingValue for OnStoreError {
    fn parse(text: &str) -> Result<Self, String> {
        choice(text, &[("closed", Self::Closed), ("open", Self::Open)])
    }
}

impl SettingValue for CallerScope {
    fn parse(text: &str) -> Result<Self, String> {
        let expected = "authorization, header:NAME, cookie:NAME or single is expected";
        match text.split_once(':') {
            None if text == "authorization" => Ok(Self::Authorization),
            None if text == "single" => Ok(Self::Single),
            Some(("header", name)) => {
                HeaderName::try_from(name).map(Self::Header).map_err(|_| expected.into())
            }
            Some(("cookie", name)) if !name.is_empty() && !name.contains(['=', ';', ' ']) => {
                Ok(Self::Cookie(name.into()))
            }
            _ => Err(expected.into()),
        }
    }
}

impl SettingValue for Verdict {
    fn parse(text: &str) -> Result<Self, String> {
        choice(
            text,
            &[("keep", Self::Keep), ("give-back", Self::GiveBack), ("unknown", Self::Unknown)],
        )
    }
}

/// Which `Host` the upstream sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HostPolicy {
    /// The client's.
    Keep,
    /// The upstream's own.
    Upstream,
}

impl SettingValue for HostPolicy {
    fn parse(text: &str) -> Result<Self, String> {
        choice(text, &[("keep", Self::Keep), ("upstream", Self::Upstream)])
    }
}
