//! How the text of an option of the proxy becomes its value.

use hapax::OnUnknown;
use hapax::lock::OnStoreError;
use hapax_http::{Scope, Verdict};
use hyper::Method;
use hyper::header::HeaderName;

use crate::settings::{Value, choice};

/// Methods, comma-separated; an empty text is none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Methods(pub(crate) Vec<Method>);

impl Value for Methods {
    fn parse(text: &str) -> Result<Self, String> {
        let names = text.split(',').map(str::trim).filter(|name| !name.is_empty());
        let methods = names.map(|name| match name {
            "POST" | "PATCH" | "PUT" | "DELETE" => Ok(name.parse().expect("a method by name")),
            _ => Err("methods out of POST, PATCH, PUT and DELETE are expected".to_owned()),
        });
        methods.collect::<Result<_, _>>().map(Self)
    }
}

impl Value for OnUnknown {
    fn parse(text: &str) -> Result<Self, String> {
        choice(text, &[("refuse", Self::Refuse), ("rerun", Self::TakeOver)])
    }
}

impl Value for OnStoreError {
    fn parse(text: &str) -> Result<Self, String> {
        choice(text, &[("closed", Self::Closed), ("open", Self::Open)])
    }
}

impl Value for Scope {
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

impl Value for Verdict {
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
    /// The one that the client asked for.
    Keep,
    /// Its own.
    Upstream,
}

impl Value for HostPolicy {
    fn parse(text: &str) -> Result<Self, String> {
        choice(text, &[("keep", Self::Keep), ("upstream", Self::Upstream)])
    }
}
