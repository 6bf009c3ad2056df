//! How the text of an option becomes its value.

use std::fmt;
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::time::Duration;

use hapax_core::OnUnknown;
use hapax_core::lock::OnStoreError;
use hapax_http::{Scope, Verdict};
use hyper::Method;
use hyper::header::HeaderName;
use serde::de::{Deserialize, Deserializer, Error, Visitor};
use tracing::level_filters::LevelFilter;

use crate::settings::{Level, LogFormat};

/// A value that an option can have. The error says what was expected, and never repeats the text:
/// it may hold a password.
pub(crate) trait Value: Sized {
    fn parse(text: &str) -> Result<Self, String>;
}

/// A value in a file: a text, a number or a boolean that is read as the flag's text would be.
#[derive(Clone, Debug)]
pub(crate) struct Text<T>(pub(crate) T);

impl<'de, T: Value> Deserialize<'de> for Text<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Parsed<T>(std::marker::PhantomData<T>);
        impl<T: Value> Visitor<'_> for Parsed<T> {
            type Value = Text<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a text, a whole number or a boolean")
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<Text<T>, E> {
                T::parse(text).map(Text).map_err(E::custom)
            }

            fn visit_i64<E: Error>(self, number: i64) -> Result<Text<T>, E> {
                self.visit_str(&number.to_string())
            }

            fn visit_bool<E: Error>(self, flag: bool) -> Result<Text<T>, E> {
                self.visit_str(&flag.to_string())
            }
        }
        deserializer.deserialize_any(Parsed(std::marker::PhantomData))
    }
}

/// Nothing where the text is empty.
impl<T: Value> Value for Option<T> {
    fn parse(text: &str) -> Result<Self, String> {
        if text.is_empty() { Ok(None) } else { T::parse(text).map(Some) }
    }
}

impl Value for bool {
    fn parse(text: &str) -> Result<Self, String> {
        match text {
            "true" => Ok(true),
            "false" => Ok(false),
            _ => Err("true or false is expected".into()),
        }
    }
}

impl Value for usize {
    fn parse(text: &str) -> Result<Self, String> {
        match text.parse() {
            Ok(number @ 1..=0x3fff_ffff) => Ok(number),
            _ => Err("a whole number of at least 1 is expected".into()),
        }
    }
}

impl Value for PathBuf {
    fn parse(text: &str) -> Result<Self, String> {
        Ok(text.into())
    }
}

impl Value for Duration {
    fn parse(text: &str) -> Result<Self, String> {
        let expected = "a time such as 500ms, 10s or 24h is expected";
        let time =
            humantime::parse_duration(text).map_err(|error| format!("{expected}: {error}"))?;
        if time > Self::from_secs(366 * 86_400) {
            return Err("a time of at most 366 days is expected".into());
        }
        Ok(time)
    }
}

/// A number of bytes: `1048576`, `64KiB`, `1MiB`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Size(pub(crate) usize);

impl Value for Size {
    fn parse(text: &str) -> Result<Self, String> {
        let digits = text.trim_end_matches(|c: char| !c.is_ascii_digit());
        let unit = match text[digits.len()..].trim() {
            "" | "B" => Some(1),
            "KiB" => Some(1 << 10),
            "MiB" => Some(1 << 20),
            "GiB" => Some(1 << 30),
            _ => None,
        };
        let size = digits.parse::<usize>().ok().zip(unit).and_then(|(n, unit)| n.checked_mul(unit));
        match size {
            Some(size @ 1..=0x3fff_ffff) => Ok(Self(size)),
            _ => Err("a size such as 65536, 64KiB or 1MiB is expected, below 1GiB".into()),
        }
    }
}

/// Where to listen.
#[derive(Clone, Debug)]
pub(crate) struct Address {
    pub(crate) text: String,
    pub(crate) addresses: Vec<SocketAddr>,
}

impl Value for Address {
    fn parse(text: &str) -> Result<Self, String> {
        let expected = "an address and a port are expected, such as 127.0.0.1:8788";
        let found = text.to_socket_addrs().map_err(|error| format!("{expected}: {error}"))?;
        let addresses: Vec<_> = found.collect();
        if addresses.is_empty() {
            Err(expected.into())
        } else {
            Ok(Self { text: text.into(), addresses })
        }
    }
}

/// Where the store is. Never shown with its password.
#[derive(Clone)]
pub(crate) struct StoreUrl(String);

impl StoreUrl {
    pub(crate) fn secret(&self) -> &str {
        &self.0
    }

    /// Without user, password and parameters.
    pub(crate) fn shown(&self) -> String {
        // First the user info: a password may contain anything, also what begins a query.
        let (scheme, rest) = self.0.split_once("://").unwrap_or(("", &self.0));
        let place = rest.rsplit_once('@').map_or(rest, |(_, place)| place);
        let place = place.split(['?', '#']).next().unwrap_or_default();
        if scheme.is_empty() { place.to_owned() } else { format!("{scheme}://{place}") }
    }
}

impl fmt::Debug for StoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.shown())
    }
}

impl Value for StoreUrl {
    fn parse(text: &str) -> Result<Self, String> {
        Ok(Self(text.into()))
    }
}

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
        match text {
            "refuse" => Ok(Self::Refuse),
            "rerun" => Ok(Self::TakeOver),
            _ => Err("refuse or rerun is expected".into()),
        }
    }
}

impl Value for OnStoreError {
    fn parse(text: &str) -> Result<Self, String> {
        match text {
            "closed" => Ok(Self::Closed),
            "open" => Ok(Self::Open),
            _ => Err("closed or open is expected".into()),
        }
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
        match text {
            "keep" => Ok(Self::Keep),
            "give-back" => Ok(Self::GiveBack),
            "unknown" => Ok(Self::Unknown),
            _ => Err("keep, give-back or unknown is expected".into()),
        }
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
        match text {
            "keep" => Ok(Self::Keep),
            "upstream" => Ok(Self::Upstream),
            _ => Err("keep or upstream is expected".into()),
        }
    }
}

impl Value for LogFormat {
    fn parse(text: &str) -> Result<Self, String> {
        match text {
            "json" => Ok(Self::Json),
            "pretty" => Ok(Self::Pretty),
            _ => Err("json or pretty is expected".into()),
        }
    }
}

impl Value for Level {
    fn parse(text: &str) -> Result<Self, String> {
        let level = match text {
            "error" => LevelFilter::ERROR,
            "warn" => LevelFilter::WARN,
            "info" => LevelFilter::INFO,
            "debug" => LevelFilter::DEBUG,
            "trace" => LevelFilter::TRACE,
            _ => return Err("error, warn, info, debug or trace is expected".into()),
        };
        Ok(Self(level))
    }
}
