//! How the text of a setting becomes its value.

use std::fmt;
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::time::Duration;

use hapax::OnUnknown;
use hapax::lock::OnStoreError;
use hapax_http::Verdict;
use hapax_relay::AfterDead;
use serde::de::{Deserialize, Deserializer, Error};
use tracing::level_filters::LevelFilter;

use super::{ConsoleReveal, ConsoleSwitch, HostPolicy};

/// The value of a setting. An error never repeats the text, which may hold a password.
pub(crate) trait SettingValue: Sized {
    fn parse(text: &str) -> Result<Self, String>;
}

fn choice<T: Copy>(text: &str, choices: &[(&str, T)]) -> Result<T, String> {
    if let Some((_, value)) = choices.iter().find(|(word, _)| *word == text) {
        return Ok(*value);
    }
    let words: Vec<_> = choices.iter().map(|(word, _)| *word).collect();
    let (last, others) = words.split_last().expect("there is a choice");
    Err(format!("{} or {last} is expected", others.join(", ")))
}

/// Values that a few words stand for.
macro_rules! choices {
    ($($type:ty { $($word:literal => $value:expr),+ })+) => {
        $(impl SettingValue for $type {
            fn parse(text: &str) -> Result<Self, String> {
                choice(text, &[$(($word, $value)),+])
            }
        })+
    };
}

choices! {
    bool { "true" => true, "false" => false }
    LogFormat { "json" => Self::Json, "pretty" => Self::Pretty }
    OnUnknown { "refuse" => Self::Refuse, "rerun" => Self::TakeOver }
    OnStoreError { "closed" => Self::Closed, "open" => Self::Open }
    AfterDead { "wait" => Self::Wait, "continue" => Self::Continue }
    Verdict { "keep" => Self::Keep, "give-back" => Self::GiveBack, "unknown" => Self::Unknown }
    ConsoleSwitch { "on" => Self::On, "off" => Self::Off }
    ConsoleReveal { "allowed" => Self::Allowed, "never" => Self::Never }
    HostPolicy { "keep" => Self::Keep, "upstream" => Self::Upstream }
}

/// The items of a comma-separated list; an empty text has none.
pub(super) fn list_items(text: &str) -> impl Iterator<Item = &str> {
    text.split(',').map(str::trim).filter(|item| !item.is_empty())
}

/// A value in a file: a text, a number or a boolean that is read as the flag's text would be.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FileValue<T>(pub(crate) T);

impl<'de, T: SettingValue> Deserialize<'de> for FileValue<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = match toml::Value::deserialize(deserializer)? {
            toml::Value::String(text) => text,
            toml::Value::Integer(number) => number.to_string(),
            toml::Value::Boolean(flag) => flag.to_string(),
            _ => return Err(Error::custom("a text, a whole number or a boolean is expected")),
        };
        T::parse(&text).map(Self).map_err(Error::custom)
    }
}

/// An empty text is `None`.
impl<T: SettingValue> SettingValue for Option<T> {
    fn parse(text: &str) -> Result<Self, String> {
        if text.is_empty() { Ok(None) } else { T::parse(text).map(Some) }
    }
}

impl SettingValue for PathBuf {
    fn parse(text: &str) -> Result<Self, String> {
        if text.is_empty() {
            return Err("a path is expected".into());
        }
        Ok(text.into())
    }
}

impl SettingValue for Duration {
    fn parse(text: &str) -> Result<Self, String> {
        let time = DurationOrZero::parse(text)?.0;
        if time < Self::from_millis(1) {
            return Err("a time of at least 1ms is expected".into());
        }
        Ok(time)
    }
}

/// A time that may be 0s.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DurationOrZero(pub(crate) Duration);

impl SettingValue for DurationOrZero {
    fn parse(text: &str) -> Result<Self, String> {
        let time = humantime::parse_duration(text)
            .map_err(|error| format!("a time such as 500ms, 10s or 24h is expected: {error}"))?;
        if time > Duration::from_secs(366 * 86_400) {
            return Err("a time of at most 366 days is expected".into());
        }
        Ok(Self(time))
    }
}

impl SettingValue for usize {
    fn parse(text: &str) -> Result<Self, String> {
        match text.parse() {
            Ok(number @ 1..=0x3fff_ffff) => Ok(number),
            _ => Err("a whole number of at least 1 is expected".into()),
        }
    }
}

/// A number of bytes: `1048576`, `64KiB`, `1MiB`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ByteSize(pub(crate) usize);

impl SettingValue for ByteSize {
    fn parse(text: &str) -> Result<Self, String> {
        match parse_size(text) {
            Some(size @ 1..=0x3fff_ffff) => Ok(Self(size)),
            _ => Err("a size such as 65536, 64KiB or 1MiB is expected, below 1GiB".into()),
        }
    }
}

/// An amount of memory: `256MiB`, `4GiB`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MemorySize(pub(crate) usize);

impl SettingValue for MemorySize {
    fn parse(text: &str) -> Result<Self, String> {
        match parse_size(text) {
            Some(size) if (1..=1 << 40).contains(&(size as u64)) => Ok(Self(size)),
            _ => Err("a size such as 64MiB or 4GiB is expected, up to 1024GiB".into()),
        }
    }
}

fn parse_size(text: &str) -> Option<usize> {
    let digits = text.trim_end_matches(|c: char| !c.is_ascii_digit());
    let unit = match text[digits.len()..].trim() {
        "" | "B" => 1,
        "KiB" => 1 << 10,
        "MiB" => 1 << 20,
        "GiB" => 1 << 30,
        _ => return None,
    };
    digits.parse::<usize>().ok()?.checked_mul(unit)
}

#[derive(Clone, Debug)]
pub(crate) struct ListenAddress {
    text: String,
    addresses: Vec<SocketAddr>,
}

impl ListenAddress {
    pub(crate) fn text(&self) -> &str {
        &self.text
    }

    pub(crate) fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// Whether only this machine can reach it.
    pub(crate) fn is_loopback(&self) -> bool {
        self.addresses.iter().all(|address| address.ip().is_loopback())
    }
}

impl SettingValue for ListenAddress {
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

/// The URL of a store, a broker or an upstream. Its password is never shown.
#[derive(Clone)]
pub(crate) struct SecretUrl(String);

impl SecretUrl {
    pub(crate) fn secret(&self) -> &str {
        &self.0
    }

    /// The URL without user, password and parameters.
    pub(crate) fn shown(&self) -> String {
        // The user info goes first: a password may contain the characters that begin a query.
        let (scheme, rest) = self.0.split_once("://").unwrap_or(("", &self.0));
        let place = rest.rsplit_once('@').map_or(rest, |(_, place)| place);
        let place = place.split(['?', '#']).next().unwrap_or_default();
        if scheme.is_empty() { place.to_owned() } else { format!("{scheme}://{place}") }
    }
}

impl fmt::Debug for SecretUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.shown())
    }
}

impl SettingValue for SecretUrl {
    fn parse(text: &str) -> Result<Self, String> {
        if text.is_empty() {
            return Err("a URL is expected".into());
        }
        Ok(Self(text.into()))
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LogFormat {
    Json,
    Pretty,
}

/// The least severe level that is logged.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LogLevel(pub(crate) LevelFilter);

impl SettingValue for LogLevel {
    fn parse(text: &str) -> Result<Self, String> {
        let levels = [
            ("error", LevelFilter::ERROR),
            ("warn", LevelFilter::WARN),
            ("info", LevelFilter::INFO),
            ("debug", LevelFilter::DEBUG),
            ("trace", LevelFilter::TRACE),
        ];
        choice(text, &levels).map(Self)
    }
}

/// Patterns of keys, comma-separated; an empty text is none.
#[derive(Clone, Debug)]
pub(crate) struct KeyPatterns(pub(crate) Vec<String>);

impl SettingValue for KeyPatterns {
    fn parse(text: &str) -> Result<Self, String> {
        Ok(Self(list_items(text).map(str::to_owned).collect()))
    }
}

/// Names of checks as `hapax doctor` prints them, comma-separated; an empty text is none.
#[derive(Clone, Debug, Default)]
pub(crate) struct CheckNames(pub(crate) Vec<String>);

impl SettingValue for CheckNames {
    fn parse(text: &str) -> Result<Self, String> {
        let is_name = |name: &str| {
            name.bytes().all(|byte| byte.is_ascii_lowercase() || b"0123456789._".contains(&byte))
        };
        match list_items(text).all(is_name) {
            true => Ok(Self(list_items(text).map(str::to_owned).collect())),
            false => Err("the name of a check is expected, such as redis.eviction".into()),
        }
    }
}

/// The name of this process.
#[derive(Clone, Debug)]
pub(crate) struct NodeName(pub(crate) String);

impl SettingValue for NodeName {
    fn parse(text: &str) -> Result<Self, String> {
        if hapax::activity::is_node_name(text) {
            return Ok(Self(text.into()));
        }
        Err("a name of 1 to 64 bytes of printable ASCII without spaces is expected".into())
    }
}

/// A text that is not shown.
#[derive(Clone)]
pub(crate) struct SecretText(pub(crate) String);

impl SettingValue for SecretText {
    fn parse(text: &str) -> Result<Self, String> {
        if text.is_empty() {
            return Err("a text is expected".into());
        }
        Ok(Self(text.into()))
    }
}

impl fmt::Debug for SecretText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("…")
    }
}
