//! Starts servers, runs a command with their addresses in its environment, and ends them after it:
//!
//! ```text
//! with-servers redis postgres -- pytest clients/python
//! ```
//!
//! The command finds `HAPAX_TEST_REDIS_URL` and `HAPAX_TEST_POSTGRES_URL`. Test suites in other languages use the same
//! servers as the Rust tests in this way.
#![allow(clippy::print_stderr, reason = "a program for people and scripts")]

use std::env;
use std::process::{Command, ExitCode};

use hapax_testkit::{Postgres, Redis};

const USAGE: &str = "usage: with-servers [redis] [postgres] -- COMMAND [ARGUMENT]…";

fn main() -> ExitCode {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let mut parts = arguments.splitn(2, |argument| argument == "--");
    let servers = parts.next().unwrap_or_default();
    let Some([program, rest @ ..]) = parts.next() else {
        return refuse(USAGE);
    };
    if let Some(unknown) =
        servers.iter().find(|name| !["redis", "postgres"].contains(&name.as_str()))
    {
        return refuse(&format!("no server is called {unknown}\n{USAGE}"));
    }
    let wanted = |name: &str| servers.iter().any(|server| server == name);
    let redis = wanted("redis").then(Redis::start);
    let postgres = wanted("postgres").then(Postgres::start);

    let mut command = Command::new(program);
    command.args(rest);
    if let Some(redis) = &redis {
        command.env("HAPAX_TEST_REDIS_URL", redis.url());
    }
    if let Some(postgres) = &postgres {
        command.env("HAPAX_TEST_POSTGRES_URL", postgres.url());
    }
    match command.status() {
        // A command that a signal ended has no exit code.
        Ok(status) => {
            ExitCode::from(status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(1))
        }
        Err(error) => refuse(&format!("{program}: {error}")),
    }
}

fn refuse(problem: &str) -> ExitCode {
    eprintln!("with-servers: {problem}");
    ExitCode::from(2)
}
