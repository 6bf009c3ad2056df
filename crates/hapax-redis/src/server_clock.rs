//! The server's clock as the client knows it, so that a request can carry a time after which the server refuses it.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use hapax_core::millis;
use redis::cmd;
use tokio::time::Instant;

use crate::client::read;
use crate::connect::RedisConnection;

/// How far the two clocks may drift apart before the server refuses a request in vain; the clock is read again then.
pub(crate) const ALLOWANCE: Duration = Duration::from_secs(1);
/// The pause after which a clock that could not be read is asked for again.
const RETRY_PAUSE: Duration = Duration::from_secs(1);

/// Read once for each connection, because servers differ.
#[derive(Default)]
pub(crate) struct ServerClock(Mutex<Option<ClockReading>>);

#[derive(Clone, Copy)]
struct ClockReading {
    generation: u64,
    /// When the question was sent.
    asked: Instant,
    /// The answer in ms; `None` if there was none.
    server_ms: Option<u64>,
}

impl ServerClock {
    /// The server's time in ms at that moment, and an allowance; `None` if the server's clock is not known.
    pub(crate) async fn time_at(
        &self,
        moment: Instant,
        connection: &mut RedisConnection,
        generation: u64,
    ) -> Option<u64> {
        let reading = match self.reading(generation) {
            Some(reading) => reading,
            None => {
                let (asked, server_ms) = (Instant::now(), read_clock(connection).await);
                let reading = ClockReading { generation, asked, server_ms };
                *self.cached() = Some(reading);
                reading
            }
        };
        let ahead = moment.saturating_duration_since(reading.asked).saturating_add(ALLOWANCE);
        Some(reading.server_ms?.saturating_add(millis(ahead)))
    }

    /// Forgets what was read, because the server's clock differs from it.
    pub(crate) fn forget(&self) {
        *self.cached() = None;
    }

    fn reading(&self, generation: u64) -> Option<ClockReading> {
        let is_usable = |reading: &ClockReading| {
            let is_known = reading.server_ms.is_some() || reading.asked.elapsed() < RETRY_PAUSE;
            reading.generation == generation && is_known
        };
        self.cached().filter(is_usable)
    }

    fn cached(&self) -> MutexGuard<'_, Option<ClockReading>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
impl ServerClock {
    /// As if the server's clock had stepped forward since it was read.
    pub(crate) fn step_server_forward(&self, step: Duration) {
        if let Some(reading) = self.cached().as_mut() {
            reading.server_ms = reading.server_ms.map(|ms| ms - millis(step));
        }
    }
}

/// The latest clock of all masters, so that none of them refuses a request too early.
async fn read_clock(connection: &mut RedisConnection) -> Option<u64> {
    let replies = connection.send_to_masters(&cmd("TIME")).await.ok()?;
    let times = replies.into_iter().filter_map(|(_, reply)| {
        let (seconds, micros): (u64, u64) = read(reply).ok()?;
        Some(seconds * 1000 + micros / 1000)
    });
    times.max()
}
