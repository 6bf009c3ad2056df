//! `bookkeeping-bot`: the bot, or with `--demo` a simulated conversation.

use anyhow::Context;
use bookkeeping_bot::settings::BookkeepingBotArgs;
use bookkeeping_bot::{demo, server};
use clap::Parser;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};

#[tokio::main]
#[expect(clippy::print_stdout, reason = "it says where it listens")]
async fn main() -> anyhow::Result<()> {
    let args = BookkeepingBotArgs::parse();
    let meters = server::measure()?;
    if args.demo {
        return demo::run(args, meters).await;
    }
    server::log();
    let (mut terminate, mut interrupt) =
        (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    let stop = async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    };
    let listener = TcpListener::bind(&args.listen).await;
    let listener = listener.with_context(|| format!("cannot listen on {}", args.listen))?;
    println!("bookkeeping-bot on http://{}/line/webhook", listener.local_addr()?);
    server::serve(&args, listener, meters, stop).await
}
