//! How the text of a setting of the gateway becomes its value.

use std::fmt;

use hapax_line::{MAX_TEXT, Secrets};

use crate::settings::Value;

/// True or false, in every way that the original bot's settings took.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Switch(pub(crate) bool);

impl Value for Switch {
    fn parse(text: &str) -> Result<Self, String> {
        match text.to_ascii_lowercase().as_str() {
            "true" | "1" | "yes" | "on" | "t" | "y" => Ok(Self(true)),
            "false" | "0" | "no" | "off" | "f" | "n" => Ok(Self(false)),
            _ => Err("true or false is expected (1 or 0, yes or no, on or off)".into()),
        }
    }
}

/// The channel's secret, or two of them.
#[derive(Clone, Debug)]
pub(crate) struct ChannelSecret(pub(crate) Secrets);

impl Value for ChannelSecret {
    fn parse(text: &str) -> Result<Self, String> {
        Secrets::new(text).map(Self).map_err(|error| error.to_string())
    }
}

/// The channel's access token.
#[derive(Clone)]
pub(crate) struct AccessToken(pub(crate) String);

impl Value for AccessToken {
    fn parse(text: &str) -> Result<Self, String> {
        match text.bytes().all(|byte| byte.is_ascii_graphic()) {
            true => Ok(Self(text.into())),
            false => Err("an access token is one word of ASCII, without spaces".into()),
        }
    }
}

/// Shows nothing.
impl fmt::Debug for AccessToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("…")
    }
}

/// What is said to somebody who has to wait.
#[derive(Clone, Debug)]
pub(crate) struct BusyText(pub(crate) String);

impl Value for BusyText {
    fn parse(text: &str) -> Result<Self, String> {
        match text.encode_utf16().count() {
            1..=MAX_TEXT => Ok(Self(text.into())),
            _ => Err(format!("a text of 1 to {MAX_TEXT} UTF-16 units is expected")),
        }
    }
}
