//! The weather, from a service that speaks Open-Meteo's protocol.

mod response;
mod service;
#[cfg(test)]
mod tests;

pub(crate) use service::WeatherService;

/// The current weather, and today's forecast if the service has one.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Weather {
    pub(crate) now: Now,
    pub(crate) today: Option<Today>,
}

/// Current values in °C, % and km/h; `None` where the service gives no value.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Now {
    /// A code of WMO code table 4677.
    pub(crate) code: u8,
    pub(crate) temperature: f64,
    pub(crate) feels_like: Option<f64>,
    pub(crate) humidity: Option<f64>,
    pub(crate) wind: Option<f64>,
}

/// The forecast for today in the place's own time zone.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Today {
    pub(crate) code: u8,
    pub(crate) lowest: f64,
    pub(crate) highest: f64,
    pub(crate) rain_chance: Option<f64>,
}

/// Why a lookup failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum LookupError {
    #[error("the weather service cannot be reached, or answers with an error")]
    Away,
    #[error("the weather service gives no answer in time")]
    Slow,
    #[error("the weather service answers nonsense")]
    Nonsense,
}

impl LookupError {
    /// The value of the metric label `result`.
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Away => "away",
            Self::Slow => "slow",
            Self::Nonsense => "nonsense",
        }
    }
}
