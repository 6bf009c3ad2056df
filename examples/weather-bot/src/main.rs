//! `weather-bot`: see the README.

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    example_weather_bot::run().await
}
