//! The weather, from a service that speaks Open-Meteo's protocol.

mod answer;
mod service;
#[cfg(test)]
mod tests;

pub(crate) use service::WeatherService;

/// How it is now, and how today will be, where the service knows that.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Weather {
    pub(crate) now: Now,
    pub(crate) today: Option<Today>,
}

/// In °C, % and km/h; a service need not know everything.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Now {
    /// WMO's code table 4677.
    pub(crate) code: u8,
    pub(crate) temperature: f64,
    pub(crate) feels_like: Option<f64>,
    pub(crate) humidity: Option<f64>,
    pub(crate) wind: Option<f64>,
}

/// The forecast for the place's own day.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Today {
    pub(crate) code: u8,
    pub(crate) lowest: f64,
    pub(crate) highest: f64,
    pub(crate) rain_chance: Option<f64>,
}

/// Why there is no weather to tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Trouble {
    #[error("the weather service cannot be reached, or answers with an error")]
    Away,
    #[error("the weather service gives no answer in time")]
    Slow,
    #[error("the weather service answers nonsense")]
    Nonsense,
}

impl Trouble {
    /// As a label of a metric.
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Away => "away",
            Self::Slow => "slow",
            Self::Nonsense => "nonsense",
        }
    }
}
