//! Serves the page, and runs the jobs that the page starts.

use std::time::Duration;

use clap::Parser;
use progress_page::{Access, Hapax, PageSettings};
use tokio::net::TcpListener;

/// A page with a progress bar that survives a reload and a restart of the server.
#[derive(Parser)]
struct Args {
    /// Address to serve the page on.
    #[arg(long, default_value = "127.0.0.1:8791")]
    listen: String,
    /// URL of hapax; the browser must be able to reach it, too.
    #[arg(long, default_value = "http://127.0.0.1:8787")]
    hapax: String,
    /// Access token for hapax, if hapax requires one.
    #[arg(long, env = "HAPAX_TOKEN", hide_env_values = true, requires = "secret")]
    token: Option<String>,
    /// Tenant of that token.
    #[arg(long, default_value = "default")]
    tenant: String,
    /// Secret with which hapax verifies the signed links of browsers.
    #[arg(long, env = "HAPAX_SSE_SECRET", hide_env_values = true)]
    secret: Option<String>,
    /// Duration of each step of a job, in milliseconds.
    #[arg(long, default_value = "1500")]
    pace_ms: u64,
}

#[tokio::main]
#[expect(clippy::print_stdout, reason = "it says where it listens")]
async fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    let listener = TcpListener::bind(&args.listen).await?;
    println!("progress page on http://{}/", listener.local_addr()?);
    let access = args.token.zip(args.secret).map(|(token, secret)| {
        let link_lifetime = Duration::from_secs(300);
        Access { token, tenant: args.tenant, secret, link_lifetime }
    });
    let hapax = Hapax::at(&args.hapax, access);
    progress_page::serve(
        listener,
        PageSettings { hapax, pace: Duration::from_millis(args.pace_ms) },
    )
    .await
}
