//! The `hapax` binary: the server, and every feature from the shell.

mod api;
mod background_writer;
mod bench;
mod check;
mod client;
mod console;
mod daemon;
mod demo;
mod doctor;
mod ingest;
mod leased_run;
mod line;
mod migrate;
mod problem;
mod proxy;
mod relay;
mod serve;
mod settings;

use std::process::ExitCode;

use background_writer::{LineImportance, flush_stderr, write_to_stderr};
use clap::{Parser, Subcommand};
use client::audit::AuditArgs;
use client::command::CommandAction;
use client::dead::DeadAction;
use client::inbox::InboxAction;
use client::overview::{OverviewArgs, SuppressedArgs};
use client::queue::QueueAction;
use client::task::TaskAction;
use client::{ApiArgs, ApiCommandArgs, ServerActionArgs};
use settings::{ProxySettings, RelaySettings, ServeSettings, SettingFlags};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Makes duplicates harmless: locks, idempotent commands, compare-and-put records, events, outbox and inbox.
#[derive(Parser)]
#[command(name = "hapax", version)]
struct Cli {
    #[command(subcommand)]
    action: Option<Action>,
}

#[derive(Subcommand)]
enum Action {
    /// Serve the HTTP API (what a bare `hapax` does).
    Serve(SettingFlags<ServeSettings>),
    /// Give any HTTP service Idempotency-Key, with nothing to change in it.
    Proxy(SettingFlags<ProxySettings>),
    /// Drain the outbox into a broker, a webhook or hapax's own bus.
    Relay(SettingFlags<RelaySettings>),
    /// Make a LINE bot safe against double taps and redelivery.
    Line(line::LineArgs),
    /// Start an installation with traffic, to look at in the console.
    Demo(demo::DemoArgs),
    /// Say what would break which promise, and how to fix it.
    Doctor(doctor::DoctorArgs),
    /// Check whether an HTTP service is really idempotent.
    Check(check::CheckArgs),
    /// Create a store's tables, or print the SQL that does.
    Migrate(migrate::MigrateArgs),
    /// Measure what this machine and store can do.
    Bench(bench::BenchArgs),
    /// Take, renew, release and look at locks; run a command under one.
    Lock(ServerActionArgs<client::lock::LockAction>),
    /// Read, write, patch and delete records.
    Record(ServerActionArgs<client::record::RecordAction>),
    /// Begin, complete, fail and look at commands.
    Command(ApiArgs<CommandAction>),
    /// Publish events of jobs, one or many.
    Publish(client::publish::PublishArgs),
    /// Follow a job live.
    Follow(client::follow::FollowArgs),
    /// Receive messages once.
    Inbox(ApiArgs<InboxAction>),
    /// Look at queues; pause and resume them; requeue and discard dead letters.
    Queue(ApiArgs<QueueAction>),
    /// Look at dead letters by their reason; requeue and discard many.
    Dead(ApiArgs<DeadAction>),
    /// Look at actions on many rows, and stop them.
    Task(ServerActionArgs<TaskAction>),
    /// List what operators did and revealed.
    Audit(ApiCommandArgs<AuditArgs>),
    /// Show what needs a person, the nodes, and the last hour.
    Overview(ApiCommandArgs<OverviewArgs>),
    /// List duplicates that did no harm.
    Suppressed(ApiCommandArgs<SuppressedArgs>),
    /// List the tenants of a store.
    Tenant(client::tenant::TenantArgs),
    /// Make access tokens.
    Token(client::token::TokenArgs),
    /// Print completions for a shell.
    Completions(client::CompletionsArgs),
}

fn main() -> ExitCode {
    // Dropped also when a panic ends the process.
    let _flush = FlushOnDrop;
    if let Some(code) = leased_run::child::become_bound_command(std::env::args_os()) {
        return code;
    }
    let action = Cli::parse().action.unwrap_or(Action::Serve(SettingFlags::default()));
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return failed(&error.into()),
    };
    let result = runtime.block_on(async {
        match action {
            Action::Serve(flags) => serve::run(flags).await,
            Action::Proxy(flags) => proxy::run(flags).await,
            Action::Relay(flags) => relay::run(flags).await,
            Action::Line(args) => line::run(args).await,
            Action::Demo(args) => demo::run(args).await,
            Action::Doctor(args) => doctor::run(args).await,
            Action::Check(args) => check::run(args).await,
            Action::Migrate(args) => migrate::run(args).await,
            Action::Bench(args) => bench::run(args).await,
            Action::Lock(args) => client::lock::run(args).await,
            Action::Record(args) => client::record::run(args).await,
            Action::Command(args) => args.run(CommandAction::run).await,
            Action::Publish(args) => client::publish::run(args).await,
            Action::Follow(args) => client::follow::run(args).await,
            Action::Inbox(args) => args.run(InboxAction::run).await,
            Action::Queue(args) => args.run(QueueAction::run).await,
            Action::Dead(args) => args.run(DeadAction::run).await,
            Action::Task(args) => args.run(TaskAction::run).await,
            Action::Audit(args) => args.run(AuditArgs::run).await,
            Action::Overview(args) => args.run(OverviewArgs::run).await,
            Action::Suppressed(args) => args.run(SuppressedArgs::run).await,
            Action::Tenant(args) => client::tenant::run(args).await,
            Action::Token(args) => client::token::run(args).await,
            Action::Completions(args) => client::print_completions(args).await,
        }
    });
    // A store call that hangs must not keep the process alive.
    runtime.shutdown_background();
    result.unwrap_or_else(|error| failed(&error))
}

/// Writes what is left of the log when the process ends, within a limited time.
struct FlushOnDrop;

impl Drop for FlushOnDrop {
    fn drop(&mut self) {
        flush_stderr();
    }
}

fn failed(error: &anyhow::Error) -> ExitCode {
    write_to_stderr(format!("hapax: {error:#}\n").as_bytes(), LineImportance::Error);
    ExitCode::FAILURE
}
