//! The threads that read, each on a connection of its own, beside the writer.

use std::sync::{Arc, Mutex, PoisonError};

use hapax_core::StoreError;
use rusqlite::Connection;
use tokio::sync::mpsc;

use crate::connect::{Session, connect};
use crate::error::{fault, twin};
use crate::queued_call::Job;
use crate::{Config, migrate};

/// So many reads share one snapshot.
const MAX_JOBS: usize = 32;

/// Whoever is free takes what waits.
pub(crate) type Queue = Arc<Mutex<mpsc::Receiver<Box<dyn Job>>>>;

/// Works until the last handle is gone and the queue is empty.
pub(crate) fn run(config: &Config, queue: &Queue, mut connection: Option<Session>) {
    let mut jobs = Vec::with_capacity(MAX_JOBS);
    loop {
        let taken = queue
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .blocking_recv_many(&mut jobs, MAX_JOBS);
        if taken == 0 {
            return;
        }
        connection = serve(config, connection.take(), &mut jobs);
    }
}

fn serve(
    config: &Config,
    connection: Option<Session>,
    jobs: &mut Vec<Box<dyn Job>>,
) -> Option<Session> {
    let current = connection.filter(|connection| connection.is_current(config));
    let begun = current.map_or_else(|| open(config), Ok).and_then(|connection| {
        execute(&connection, "BEGIN")?;
        migrate::confirm(&connection)?;
        Ok(connection)
    });
    let connection = match begun {
        Ok(connection) => connection,
        Err(error) => {
            jobs.drain(..).for_each(|job| job.fail(twin(&error)));
            return None;
        }
    };
    jobs.retain(|job| !job.is_abandoned());
    jobs.iter_mut().for_each(|job| job.run(&connection));
    let sound = jobs.iter().all(|job| job.error().is_none());
    // A snapshot that stays open would keep the log from beginning anew.
    let ended = execute(&connection, "COMMIT").is_ok();
    let kept = Some(connection).filter(|connection| ended && sound && connection.is_lasting());
    // What is not kept is closed before anybody hears of it, and may find it in the way.
    jobs.drain(..).for_each(Job::answer);
    kept
}

/// A connection that cannot write by mistake.
pub(crate) fn open(config: &Config) -> Result<Session, StoreError> {
    let connection = connect(config)?;
    connection.pragma_update(None, "query_only", true).map_err(fault)?;
    Ok(connection)
}

fn execute(connection: &Connection, sql: &str) -> Result<(), StoreError> {
    connection
        .prepare_cached(sql)
        .and_then(|mut statement| statement.execute([]))
        .map(drop)
        .map_err(fault)
}
