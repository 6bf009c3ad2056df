//! `bookkeeping-bot`: the bot, or with `--demo` a simulated conversation.

use anyhow::Context;
use bookkeeping_bot::settings::BookkeepingBotArgs;
use bookkeeping_bot::{demo, server};
use clap::Parser;
use example_common::bot_server::{install_metrics, start_logging, stop_signal};
use tokio::net::TcpListener;

#[tokio::main]
#[expect(clippy::print_stdout, reason = "it says where it listens")]
async fn main() -> anyhow::Result<()> {
    let args = BookkeepingBotArgs::parse();
    if args.demo {
        return demo::run(args).await;
    }
    start_logging("bookkeeping_bot");
    let metrics = install_metrics(&[])?;
    let stop = stop_signal()?;
    let listener = TcpListener::bind(&args.listen).await;
    let listener = listener.with_context(|| format!("cannot listen on {}", args.listen))?;
    let server = server::open(&args, Some(metrics)).await?;
    println!("bookkeeping-bot on http://{}/line/webhook", listener.local_addr()?);
    server.serve(listener, stop).await
}
