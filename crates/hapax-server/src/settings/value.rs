//! How the text of a setting becomes its value.

use std::net::{SocketAddr, ToSocketAddrs};
use std::time::Duration;

use tracing::level_filters::LevelFilter;

/// A value that a setting can have. The error says what was expected, and never repeats the text:
/// it may hold a password.
pub(crate) trait Value: Sized {
    fn parse(text: &str) -> Result<Self, String>;
}

impl Value for Duration {
    fn parse(text: &str) -> Result<Self, String> {
        let time = humantime::parse_duration(text)
            .map_err(|error| format!("a time such as 500ms, 2s or 1h is expected: {error}"))?;
        if time < Self::from_millis(1) || time > Self::from_secs(366 * 86_400) {
            return Err("a time of 1ms to 366 days is expected".into());
        }
        Ok(time)
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

/// An address to listen on.
#[derive(Clone, Debug)]
pub(crate) struct Listen {
    text: String,
    addresses: Vec<SocketAddr>,
}

impl Listen {
    /// As it was given.
    pub(crate) fn text(&self) -> &str {
        &self.text
    }

    /// What it stands for.
    pub(crate) fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// Whether nobody else can reach it.
    pub(crate) fn is_loopback(&self) -> bool {
        self.addresses.iter().all(|address| address.ip().is_loopback())
    }
}

impl Value for Listen {
    fn parse(text: &str) -> Result<Self, String> {
        let expected = "an address and a port are expected, such as 127.0.0.1:8787";
        let addresses: Vec<_> =
            text.to_socket_addrs().map_err(|error| format!("{expected}: {error}"))?.collect();
        if addresses.is_empty() {
            return Err(expected.into());
        }
        Ok(Self { text: text.into(), addresses })
    }
}

/// Where a store is. Never shown with its password.
#[derive(Clone)]
pub(crate) struct StoreUrl(String);

impl StoreUrl {
    /// The whole URL.
    pub(crate) fn secret(&self) -> &str {
        &self.0
    }

    /// The URL without user, password and parameters.
    pub(crate) fn shown(&self) -> String {
        // First the user info: a password may contain anything, also what begins a query.
        let (scheme, rest) = self.0.split_once("://").unwrap_or(("", &self.0));
        let place = rest.rsplit_once('@').map_or(rest, |(_, place)| place);
        let place = place.split(['?', '#']).next().unwrap_or_default();
        if scheme.is_empty() { place.to_owned() } else { format!("{scheme}://{place}") }
    }
}

impl std::fmt::Debug for StoreUrl {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.shown())
    }
}

impl Value for StoreUrl {
    fn parse(text: &str) -> Result<Self, String> {
        Ok(Self(text.into()))
    }
}

/// How log lines look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LogFormat {
    Json,
    Pretty,
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

/// The least that is logged.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Level(pub(crate) LevelFilter);

impl Value for Level {
    fn parse(text: &str) -> Result<Self, String> {
        match text {
            "error" | "warn" | "info" | "debug" | "trace" => {
                Ok(Self(text.parse().expect("a level by name")))
            }
            _ => Err("error, warn, info, debug or trace is expected".into()),
        }
    }
}

/// Patterns of keys, comma-separated; an empty text is none.
#[derive(Clone, Debug)]
pub(crate) struct Patterns(pub(crate) Vec<String>);

impl Value for Patterns {
    fn parse(text: &str) -> Result<Self, String> {
        let patterns = text.split(',').map(str::trim).filter(|pattern| !pattern.is_empty());
        Ok(Self(patterns.map(str::to_owned).collect()))
    }
}
