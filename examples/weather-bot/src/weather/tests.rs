use std::time::Duration;

use serde_json::json;

use super::{LookupError, WeatherService};
use crate::place::Place;
use crate::simulated_weather::{SimulatedWeather, WeatherMode};

const TIMEOUT: Duration = Duration::from_secs(60);

async fn service(timeout: Duration) -> (SimulatedWeather, WeatherService) {
    let simulated = SimulatedWeather::start().await.expect("a service");
    let service = WeatherService::new(&simulated.base(), &simulated.base(), timeout);
    (simulated, service.expect("a client"))
}

fn taipei() -> Place {
    Place::new("台北", 25.05, 121.53).expect("a place")
}

#[tokio::test]
async fn a_name_becomes_a_place_and_its_weather() {
    let (simulated, service) = service(TIMEOUT).await;
    let (place, weather) = service.of("台北").await.unwrap().expect("台北 is known");
    assert_eq!(place.name, "台北（臺灣）");
    assert_eq!((weather.now.code, weather.now.temperature), (2, 27.4));
    let today = weather.today.clone().expect("a forecast");
    assert_eq!((today.lowest, today.highest, today.rain_chance), (23.6, 31.2, Some(60.0)));
    assert_eq!((simulated.searches(), simulated.lookups()), (1, 1));
    assert_eq!(service.at(&place).await.unwrap(), weather);
    assert_eq!((simulated.searches(), simulated.lookups()), (1, 2));
}

#[tokio::test]
async fn names_that_nobody_knows_are_unknown_and_cost_no_forecast() {
    let (simulated, service) = service(TIMEOUT).await;
    for name in ["亞特蘭提斯", "?&name=台北#", "🥚", "../../etc", "a\u{0}b"] {
        assert_eq!(service.of(name).await, Ok(None), "{name:?}");
        assert_eq!(service.find(name).await, Ok(None), "{name:?}");
    }
    assert_eq!(simulated.lookups(), 0);
}

#[tokio::test]
async fn a_service_that_fails_is_away() {
    let (simulated, service) = service(TIMEOUT).await;
    for mode in [
        WeatherMode::Status(500),
        WeatherMode::Status(429),
        WeatherMode::Status(404),
        WeatherMode::Status(302),
        WeatherMode::Cut,
    ] {
        simulated.set(mode.clone());
        assert_eq!(service.at(&taipei()).await, Err(LookupError::Away), "{mode:?}");
        assert_eq!(service.of("台北").await, Err(LookupError::Away), "{mode:?}");
    }
    let base = simulated.base();
    drop(simulated);
    // Any other server that gets this port does not speak the weather protocol either.
    let gone = WeatherService::new(&base, &base, TIMEOUT).unwrap();
    assert!(gone.find("台北").await.is_err());
}

#[tokio::test]
async fn a_service_that_hangs_is_slow() {
    let (simulated, service) = service(Duration::from_millis(50)).await;
    simulated.set(WeatherMode::Hang);
    assert_eq!(service.at(&taipei()).await, Err(LookupError::Slow));
    assert_eq!(service.of("台北").await, Err(LookupError::Slow));
}

#[tokio::test]
async fn an_answer_that_cannot_be_is_nonsense() {
    let (simulated, service) = service(TIMEOUT).await;
    let forecast = |temperature: serde_json::Value, code: serde_json::Value| {
        json!({
            "results": [{ "name": "台北", "latitude": 25.05, "longitude": 121.53 }],
            "current": { "temperature_2m": temperature, "weather_code": code },
            "daily": {
                "weather_code": [1],
                "temperature_2m_max": [31.0],
                "temperature_2m_min": [24.0],
            },
        })
        .to_string()
    };
    simulated.set(WeatherMode::Say(forecast(json!(27.0), json!(3))));
    assert!(service.of("台北").await.unwrap().is_some(), "so much is enough");
    simulated.set(WeatherMode::Say(forecast(json!(27.0), json!(3)).replace("daily", "hourly")));
    assert_eq!(service.at(&taipei()).await.unwrap().today, None, "and so much, too");
    for nonsense in [
        "<html>Welcome!</html>".to_owned(),
        "{}".to_owned(),
        "null".to_owned(),
        String::new(),
        forecast(json!(4000.0), json!(3)),
        forecast(json!(null), json!(3)),
        forecast(json!("warm"), json!(3)),
        forecast(json!(27.0), json!(-1)),
        forecast(json!(27.0), json!(1e9)),
        forecast(json!(27.0), json!(3)).replace("[31.0]", "[]"),
        forecast(json!(27.0), json!(3)).replace("[24.0]", "[1e999]"),
        "x".repeat(2 << 20),
    ] {
        simulated.set(WeatherMode::Say(nonsense.clone()));
        let shown: String = nonsense.chars().take(200).collect();
        assert_eq!(service.at(&taipei()).await, Err(LookupError::Nonsense), "{shown}");
    }
    for elsewhere in [
        r#"{"results":[{"name":"","latitude":1,"longitude":1}]}"#,
        r#"{"results":[{"name":"x","latitude":91,"longitude":1}]}"#,
        r#"{"results":[{"name":"x"}]}"#,
        r#"{"results":7}"#,
    ] {
        simulated.set(WeatherMode::Say(elsewhere.into()));
        assert_eq!(service.find("台北").await, Err(LookupError::Nonsense), "{elsewhere}");
    }
}

#[test]
fn an_address_that_is_none_is_refused() {
    for wrong in ["", "api.open-meteo.com", "ftp://x/", "http://x/path", "http://x/?key=1"] {
        assert!(WeatherService::new(wrong, "http://x", TIMEOUT).is_err(), "{wrong}");
        assert!(WeatherService::new("http://x", wrong, TIMEOUT).is_err(), "{wrong}");
    }
}
