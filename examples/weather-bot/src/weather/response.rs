//! The service's responses, validated: impossible values are rejected as nonsense.

use serde::Deserialize;

use super::{LookupError, Now, Today, Weather};
use crate::place::Place;

/// Wider than the range of temperatures ever measured, in °C.
const TEMPERATURES: std::ops::RangeInclusive<f64> = -100.0..=70.0;
const PER_CENT: std::ops::RangeInclusive<f64> = 0.0..=100.0;
const WINDS: std::ops::RangeInclusive<f64> = 0.0..=600.0;

#[derive(Deserialize)]
pub(super) struct Found {
    /// Open-Meteo omits the field if nothing was found.
    #[serde(default)]
    results: Vec<FoundPlace>,
}

#[derive(Deserialize)]
struct FoundPlace {
    name: String,
    latitude: f64,
    longitude: f64,
    admin1: Option<String>,
    country: Option<String>,
}

impl Found {
    /// The best match, named with its region and country to tell places of the same name apart.
    pub(super) fn place(self) -> Result<Option<Place>, LookupError> {
        let Some(found) = self.results.into_iter().next() else { return Ok(None) };
        let mut around: Vec<String> = Vec::new();
        for part in [found.admin1, found.country].into_iter().flatten() {
            if !part.is_empty() && part != found.name && !around.contains(&part) {
                around.push(part);
            }
        }
        let name = match around.is_empty() {
            true => found.name,
            false => format!("{}（{}）", found.name, around.join("，")),
        };
        let place = Place::new(&name, found.latitude, found.longitude);
        place.map(Some).ok_or(LookupError::Nonsense)
    }
}

#[derive(Deserialize)]
pub(super) struct Forecast {
    current: Current,
    daily: Option<Daily>,
}

#[derive(Deserialize)]
struct Current {
    weather_code: u8,
    temperature_2m: f64,
    apparent_temperature: Option<f64>,
    relative_humidity_2m: Option<f64>,
    wind_speed_10m: Option<f64>,
}

/// One list for each quantity, with one element for each day.
#[derive(Deserialize)]
struct Daily {
    weather_code: Vec<u8>,
    temperature_2m_max: Vec<f64>,
    temperature_2m_min: Vec<f64>,
    #[serde(default)]
    precipitation_probability_max: Vec<Option<f64>>,
}

impl Forecast {
    pub(super) fn weather(self) -> Result<Weather, LookupError> {
        let Self { current, daily } = self;
        let now = Now {
            code: current.weather_code,
            temperature: within(&TEMPERATURES, current.temperature_2m)?,
            feels_like: current.apparent_temperature,
            humidity: current.relative_humidity_2m.filter(|value| PER_CENT.contains(value)),
            wind: current.wind_speed_10m.filter(|value| WINDS.contains(value)),
        };
        Ok(Weather { now, today: daily.map(Daily::today).transpose()? })
    }
}

impl Daily {
    fn today(self) -> Result<Today, LookupError> {
        let rain_chance = self.precipitation_probability_max.first().copied().flatten();
        Ok(Today {
            code: first(&self.weather_code)?,
            lowest: within(&TEMPERATURES, first(&self.temperature_2m_min)?)?,
            highest: within(&TEMPERATURES, first(&self.temperature_2m_max)?)?,
            rain_chance: rain_chance.filter(|value| PER_CENT.contains(value)),
        })
    }
}

fn first<T: Copy>(days: &[T]) -> Result<T, LookupError> {
    days.first().copied().ok_or(LookupError::Nonsense)
}

fn within(range: &std::ops::RangeInclusive<f64>, value: f64) -> Result<f64, LookupError> {
    if range.contains(&value) { Ok(value) } else { Err(LookupError::Nonsense) }
}
