//! Serves the routes on `127.0.0.1:8080`, or on the port in `PORT`, without any protection.

use std::error::Error;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let port = std::env::var("PORT").map_or(Ok(8080), |port| port.parse::<u16>())?;
    let listener = tokio::net::TcpListener::bind(("127.0.0.1", port)).await?;
    Ok(axum::serve(listener, example_check_target::routes()).await?)
}
