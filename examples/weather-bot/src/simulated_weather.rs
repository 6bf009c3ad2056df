//! A weather service on loopback with fixed data, which counts its requests. For the demo and for
//! tests.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::Router;
use axum::extract::{Query, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use serde::Deserialize;
use serde_json::json;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// The known places; a search matches if its text contains one of these names.
const PLACES: &[(&str, f64, f64)] = &[
    ("台北", 25.0531, 121.5264),
    ("新竹", 24.8036, 120.9686),
    ("台中", 24.1469, 120.6839),
    ("台南", 22.9908, 120.2133),
    ("高雄", 22.6163, 120.3133),
    ("花蓮", 23.9769, 121.6044),
];

/// How the service behaves.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum WeatherMode {
    /// Answers normally.
    #[default]
    Well,
    /// Holds forecasts until the behaviour changes, for example to [`Well`](Self::Well); searches are
    /// answered at once.
    Holding,
    /// Never answers.
    Hang,
    /// Answers with this status.
    Status(u16),
    /// Answers with this body.
    Say(String),
    /// Closes the connection.
    Cut,
}

/// The running service; stops when dropped.
pub struct SimulatedWeather {
    address: SocketAddr,
    shared: Arc<Shared>,
    serving: JoinHandle<()>,
}

struct Shared {
    delay: Duration,
    mode: watch::Sender<WeatherMode>,
    searches: AtomicUsize,
    asked: Mutex<Vec<(f64, f64)>>,
}

impl SimulatedWeather {
    /// Starts the service on a free port, answering without delay.
    pub async fn start() -> std::io::Result<Self> {
        Self::with_delay(Duration::ZERO).await
    }

    /// Starts the service with this delay before each forecast, like a distant service.
    pub async fn with_delay(delay: Duration) -> std::io::Result<Self> {
        let shared = Arc::new(Shared {
            delay,
            mode: watch::Sender::new(WeatherMode::Well),
            searches: AtomicUsize::new(0),
            asked: Mutex::default(),
        });
        let app = Router::new()
            .route("/v1/search", get(search))
            .route("/v1/forecast", get(forecast))
            .with_state(shared.clone());
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let serving = tokio::spawn(async move {
            let _ = axum::serve(listener, app).await;
        });
        Ok(Self { address, shared, serving })
    }

    /// Base URL `http://127.0.0.1:PORT`, for forecasts and for geocoding.
    pub fn base(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Number of geocoding requests so far.
    pub fn searches(&self) -> usize {
        self.shared.searches.load(Ordering::SeqCst)
    }

    /// Number of forecast requests so far.
    pub fn lookups(&self) -> usize {
        self.asked().len()
    }

    /// Latitude and longitude of each forecast request.
    pub fn asked(&self) -> Vec<(f64, f64)> {
        self.shared.asked.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Changes the behaviour from now on.
    pub fn set(&self, mode: WeatherMode) {
        self.shared.mode.send_replace(mode);
    }
}

impl Drop for SimulatedWeather {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

#[derive(Deserialize)]
struct Wanted {
    name: String,
}

async fn search(State(shared): State<Arc<Shared>>, Query(wanted): Query<Wanted>) -> Response {
    shared.searches.fetch_add(1, Ordering::SeqCst);
    if let Some(answer) = shared.current_mode().answer().await {
        return answer;
    }
    let Some((name, latitude, longitude)) =
        PLACES.iter().find(|(name, ..)| wanted.name.contains(name) && !wanted.name.contains('&'))
    else {
        return json!({ "generationtime_ms": 0.5 }).to_string().into_response();
    };
    let place = json!({
        "id": 1668341, "name": name, "latitude": latitude, "longitude": longitude,
        "feature_code": "PPLC", "country_code": "TW", "country": "臺灣", "timezone": "Asia/Taipei",
    });
    json!({ "results": [place], "generationtime_ms": 0.5 }).to_string().into_response()
}

#[derive(Deserialize)]
struct Where {
    latitude: f64,
    longitude: f64,
}

async fn forecast(State(shared): State<Arc<Shared>>, Query(place): Query<Where>) -> Response {
    let asked = (place.latitude, place.longitude);
    shared.asked.lock().unwrap_or_else(PoisonError::into_inner).push(asked);
    tokio::time::sleep(shared.delay).await;
    let mut modes = shared.mode.subscribe();
    let released = modes.wait_for(|mode| *mode != WeatherMode::Holding).await;
    let mode = released.map(|mode| mode.clone()).unwrap_or_default();
    if let Some(answer) = mode.answer().await {
        return answer;
    }
    let weather = json!({
        "latitude": place.latitude, "longitude": place.longitude, "timezone": "Asia/Taipei",
        "current": {
            "time": "2025-09-01T14:00", "interval": 900, "temperature_2m": 27.4,
            "apparent_temperature": 30.1, "relative_humidity_2m": 78, "weather_code": 2,
            "wind_speed_10m": 11.6,
        },
        "daily": {
            "time": ["2025-09-01"], "weather_code": [80], "temperature_2m_max": [31.2],
            "temperature_2m_min": [23.6], "precipitation_probability_max": [60],
        },
    });
    weather.to_string().into_response()
}

impl Shared {
    fn current_mode(&self) -> WeatherMode {
        self.mode.borrow().clone()
    }
}

impl WeatherMode {
    /// The response that replaces the normal one; `None` if the service behaves normally.
    async fn answer(self) -> Option<Response> {
        match self {
            Self::Well | Self::Holding => None,
            Self::Hang => std::future::pending().await,
            Self::Status(status) => {
                let status = StatusCode::from_u16(status).unwrap_or_default();
                Some((status, r#"{"error":true,"reason":"simulated"}"#).into_response())
            }
            Self::Say(text) => Some(text.into_response()),
            // A panic in a handler makes the server drop the connection.
            Self::Cut => std::panic::resume_unwind(Box::new("cut")),
        }
    }
}
