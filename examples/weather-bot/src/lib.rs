//! A LINE weather bot on which a double tap costs one lookup.
//!
//! ```text
//!   LINE ─► POST /line/webhook ─► Gateway (hapax-line) ─► Bot ─► weather service
//!                                  store, lock, retries    └───► users' database
//! ```

mod app;
mod bot;
mod demo;
mod metric_names;
mod place;
mod settings;
pub mod simulated_weather;
mod texts;
mod users;
mod weather;

use std::time::Duration;

use clap::Parser;
use example_common::bot_server::{install_metrics, start_logging, stop_signal};
use example_common::demo::print;
use settings::{WeatherBotArgs, WeatherBotSettings};
use simulated_weather::SimulatedWeather;
use tokio::net::TcpListener;

/// Delay of the fixed weather, like a distant service, so that a double tap arrives during a
/// lookup.
const FIXED_WEATHER_DELAY: Duration = Duration::from_millis(500);

/// Runs the program: serves until `SIGTERM` or `SIGINT`, or plays the demo.
///
/// # Errors
/// If a setting is wrong, the address is in use, or the demo does not go as expected.
pub async fn run() -> anyhow::Result<()> {
    let args = WeatherBotArgs::parse();
    if args.demo {
        return demo::run().await;
    }
    start_logging("example_weather_bot");
    let fixed = match args.fixed_weather {
        true => Some(SimulatedWeather::with_delay(FIXED_WEATHER_DELAY).await?),
        false => None,
    };
    let settings = WeatherBotSettings::read(args, |name| match (&fixed, name) {
        (Some(fixed), "WEATHER_API_BASE") => Some(fixed.base()),
        (Some(_), "WEATHER_GEOCODING_BASE") => None,
        _ => std::env::var(name).ok(),
    })?;
    let metrics = install_metrics(&[metric_names::LOOKUP_SECONDS])?;
    metric_names::describe();
    let listener = TcpListener::bind(&settings.listen).await?;
    let server = app::open(settings, Some(metrics)).await?;
    let stop = stop_signal()?;
    // Events may be sent once this line is printed: connections wait in the listener until served.
    print(&format!("weather-bot on http://{}/line/webhook", listener.local_addr()?))?;
    server.serve(listener, stop).await
}
