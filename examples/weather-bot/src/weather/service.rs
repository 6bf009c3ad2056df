use std::time::Duration;

use anyhow::{Context, ensure};
use hapax_http_client::{HttpClient, HttpError, get};
use metrics::{counter, histogram};
use serde::de::DeserializeOwned;
use tokio::time::Instant;
use url::Url;

use super::response::{Forecast, Found};
use super::{LookupError, Weather};
use crate::metric_names::{LOOKUP_SECONDS, LOOKUPS};
use crate::place::Place;

const NOW: &str =
    "temperature_2m,apparent_temperature,relative_humidity_2m,weather_code,wind_speed_10m";
const TODAY: &str =
    "weather_code,temperature_2m_max,temperature_2m_min,precipitation_probability_max";

/// A client for the weather service. All requests for one event share one timeout, because the
/// user waits and the lock is held.
pub(crate) struct WeatherService {
    http: HttpClient,
    forecast: Url,
    geocoding: Url,
    timeout: Duration,
}

impl WeatherService {
    /// A client for these two base URLs, which may be the same.
    pub(crate) fn new(forecast: &str, geocoding: &str, timeout: Duration) -> anyhow::Result<Self> {
        let (forecast, geocoding) = (base(forecast)?, base(geocoding)?);
        Ok(Self { http: HttpClient::new(), forecast, geocoding, timeout })
    }

    /// Finds the place with this name; `None` if the service does not know it.
    pub(crate) async fn find(&self, name: &str) -> Result<Option<Place>, LookupError> {
        measured(self.find_by(Instant::now() + self.timeout, name), Option::is_some).await
    }

    /// The weather at a place.
    pub(crate) async fn at(&self, place: &Place) -> Result<Weather, LookupError> {
        measured(self.at_by(Instant::now() + self.timeout, place), |_| true).await
    }

    /// Finds the place with this name, and its weather.
    pub(crate) async fn of(&self, name: &str) -> Result<Option<(Place, Weather)>, LookupError> {
        let until = Instant::now() + self.timeout;
        let both = async {
            let Some(place) = self.find_by(until, name).await? else { return Ok(None) };
            let weather = self.at_by(until, &place).await?;
            Ok(Some((place, weather)))
        };
        measured(both, Option::is_some).await
    }

    async fn find_by(&self, until: Instant, name: &str) -> Result<Option<Place>, LookupError> {
        let mut url = self.geocoding.clone();
        url.set_path("/v1/search");
        let query = [("name", name), ("count", "1"), ("language", "zh"), ("format", "json")];
        url.query_pairs_mut().extend_pairs(query);
        self.ask::<Found>(url, until).await?.place()
    }

    async fn at_by(&self, until: Instant, place: &Place) -> Result<Weather, LookupError> {
        let mut url = self.forecast.clone();
        url.set_path("/v1/forecast");
        url.query_pairs_mut().extend_pairs([
            ("latitude", place.latitude.to_string().as_str()),
            ("longitude", &place.longitude.to_string()),
            ("current", NOW),
            ("daily", TODAY),
            ("timezone", "auto"),
            ("forecast_days", "1"),
        ]);
        self.ask::<Forecast>(url, until).await?.weather()
    }

    async fn ask<T: DeserializeOwned>(&self, url: Url, until: Instant) -> Result<T, LookupError> {
        let uri = url.as_str().parse().map_err(|_| LookupError::Away)?;
        let left = until.saturating_duration_since(Instant::now());
        let reply = match self.http.call(get(uri), left).await {
            Ok(reply) => reply,
            // Report any error after the deadline as a timeout.
            Err(_) if Instant::now() >= until => return Err(LookupError::Slow),
            Err(HttpError::Unreadable(_)) => return Err(LookupError::Nonsense),
            Err(_) => return Err(LookupError::Away),
        };
        if !reply.status.is_success() {
            return Err(LookupError::Away);
        }
        reply.json().map_err(|_| LookupError::Nonsense)
    }
}

fn base(text: &str) -> anyhow::Result<Url> {
    let url = Url::parse(text).ok().filter(|url| matches!(url.scheme(), "http" | "https"));
    let url = url.context("a URL such as https://api.open-meteo.com is expected")?;
    let bare = url.path() == "/" && url.query().is_none() && url.fragment().is_none();
    ensure!(bare, "the URL of a weather service has no path: https://api.open-meteo.com");
    Ok(url)
}

async fn measured<T>(
    lookup: impl Future<Output = Result<T, LookupError>>,
    is_known: impl Fn(&T) -> bool,
) -> Result<T, LookupError> {
    let since = Instant::now();
    let answer = lookup.await;
    let result = match &answer {
        Ok(found) if is_known(found) => "found",
        Ok(_) => "unknown",
        Err(error) => error.as_str(),
    };
    counter!(LOOKUPS, "result" => result).increment(1);
    histogram!(LOOKUP_SECONDS).record(since.elapsed());
    answer
}
