//! Every setting of the four daemons. One declaration gives a setting its flag, environment
//! variable, file key and help.
//!
//! Flags win over the environment, the environment over the file, the file over a variable of the
//! original programs (`REDIS_URL`…), and that over the default.

mod declare;
mod file;
mod line;
mod proxy;
mod relay;
mod serve;
mod shared;
mod sources;
#[cfg(test)]
mod tests;
pub(crate) mod values;

pub(crate) use declare::{CommandSettings, Setting};
pub(crate) use line::LineSettings;
pub(crate) use proxy::{HostPolicy, ProxySettings, RouteSection, StatusVerdicts, UpstreamUrl};
pub(crate) use relay::RelaySettings;
pub(crate) use serve::{
    AllowedOrigins, ConsoleReveal, ConsoleSwitch, IngestDomains, ServeSettings, SigningSecret,
    TokenRule, TokenScope, check_token_name,
};
pub(crate) use shared::{MAX_LEASE, MIN_LEASE};
#[cfg(test)]
pub(crate) use sources::testing;
pub(crate) use sources::{SettingFlags, SettingSources};
pub(crate) use values::{
    CheckNames, ListenAddress, LogFormat, LogLevel, NodeName, SecretUrl, SettingValue,
};

/// The settings of every command that reads the file.
fn tables() -> [&'static [Setting]; 4] {
    [ServeSettings::table(), ProxySettings::table(), RelaySettings::table(), LineSettings::table()]
}
