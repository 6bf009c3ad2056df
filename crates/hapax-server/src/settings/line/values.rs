//! How the text of a setting of the gateway becomes its value.

use std::fmt;

use hapax_line::{ChannelSecrets, MAX_TEXT};

use crate::settings::values::SettingValue;

/// True or false, in every spelling that the original bot's settings accepted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LenientBool(pub(crate) bool);

impl SettingValue for LenientBool {
    fn parse(text: &str) -> Result<Self, String> {
        match text.to_ascii_lowercase().as_str() {
            "true" | "1" | "yes" | "on" | "t" | "y" => Ok(Self(true)),
            "false" | "0" | "no" | "off" | "f" | "n" => Ok(Self(false)),
            _ => Err("true or false is expected (1 or 0, yes or no, on or off)".into()),
        }
    }
}

/// The channel's secret, or two of them.
impl SettingValue for ChannelSecrets {
    fn parse(text: &str) -> Result<Self, String> {
        Self::new(text).map_err(|error| error.to_string())
    }
}

/// The channel's access token.
#[derive(Clone)]
pub(crate) struct AccessToken(pub(crate) String);

impl SettingValue for AccessToken {
    fn parse(text: &str) -> Result<Self, String> {
        match text.bytes().all(|byte| byte.is_ascii_graphic()) {
            true => Ok(Self(text.into())),
            false => Err("an access token is one word of ASCII, without spaces".into()),
        }
    }
}

/// The token is never shown.
impl fmt::Debug for AccessToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("…")
    }
}

/// The reply to a user who has to wait.
#[derive(Clone, Debug)]
pub(crate) struct BusyText(pub(crate) String);

impl SettingValue for BusyText {
    fn parse(text: &str) -> Result<Self, String> {
        match text.encode_utf16().count() {
            1..=MAX_TEXT => Ok(Self(text.into())),
            _ => Err(format!("a text of 1 to {MAX_TEXT} UTF-16 units is expected")),
        }
    }
}
