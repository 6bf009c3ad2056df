//! A LINE weather bot on which a double tap costs one lookup.
//!
//! ```text
//!   LINE ─► POST /line/webhook ─► Gateway (hapax-line) ─► Bot ─► weather service
//!                                  store, lock, retries    └───► users' database
//! ```

mod app;
mod bot;
mod demo;
mod logging;
mod measure;
mod place;
mod settings;
pub mod simulated_weather;
mod texts;
mod users;
mod weather;

use std::io::Write as _;
use std::time::Duration;

use clap::Parser;
use settings::{WeatherBotArgs, WeatherBotSettings};
use simulated_weather::SimulatedWeather;
use tokio::net::TcpListener;

/// Delay of the fixed weather, like a distant service, so that a double tap arrives during a
/// lookup.
const PACE: Duration = Duration::from_millis(500);

/// Runs the program: serves until `SIGTERM` or `SIGINT`, or plays the demo.
///
/// # Errors
/// If a setting is wrong, the address is in use, or the demo does not go as expected.
pub async fn run() -> anyhow::Result<()> {
    let args = WeatherBotArgs::parse();
    if args.demo {
        return demo::run().await;
    }
    logging::start();
    let fixed = match args.fixed_weather {
        true => Some(SimulatedWeather::paced(PACE).await?),
        false => None,
    };
    let settings = WeatherBotSettings::read(args, |name| match (&fixed, name) {
        (Some(fixed), "WEATHER_API_BASE") => Some(fixed.base()),
        (Some(_), "WEATHER_GEOCODING_BASE") => None,
        _ => std::env::var(name).ok(),
    })?;
    let meters = measure::start()?;
    let listener = TcpListener::bind(&settings.listen).await?;
    let address = listener.local_addr()?;
    let app = app::App::open(settings).await?;
    let stop = app::signalled()?;
    // Events may be sent once this line is printed: connections wait in the listener until served.
    writeln!(std::io::stdout(), "weather-bot on http://{address}/line/webhook")?;
    app.serve(listener, Some(meters), stop).await
}
