//! What came out of one server and one crowd.

use std::time::Duration;

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

use super::load::histogram;

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Outcome {
    /// How many bytes the server grew by when all had connected and got one event.
    pub(super) connected: u64,
    /// … and at the end.
    pub(super) peak: u64,
    pub(super) paced: Phase,
    pub(super) flat_out: Phase,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct Phase {
    pub(super) events: u64,
    pub(super) deliveries: u64,
    pub(super) bytes: u64,
    pub(super) elapsed: Duration,
    pub(super) server_cpu: Duration,
    pub(super) load_cpu: Duration,
    /// Events that a client did not get.
    pub(super) lost: u64,
    /// Events that a client got again, or behind a later one.
    pub(super) duplicates: u64,
    /// Nanoseconds, and how often.
    pub(super) latencies: Vec<(u64, u64)>,
}

impl Outcome {
    /// Both as one that ran in two parts; of the sizes the larger one.
    pub(super) fn and(self, other: Self) -> Self {
        Self {
            connected: self.connected.max(other.connected),
            peak: self.peak.max(other.peak),
            paced: self.paced.and(other.paced),
            flat_out: self.flat_out.and(other.flat_out),
        }
    }
}

impl Phase {
    fn and(mut self, other: Self) -> Self {
        self.events += other.events;
        self.deliveries += other.deliveries;
        self.bytes += other.bytes;
        self.elapsed += other.elapsed;
        self.server_cpu += other.server_cpu;
        self.load_cpu += other.load_cpu;
        self.lost += other.lost;
        self.duplicates += other.duplicates;
        self.latencies.extend(other.latencies);
        self
    }

    pub(super) fn per_second(&self) -> f64 {
        self.deliveries as f64 / self.elapsed.as_secs_f64()
    }

    pub(super) fn events_per_second(&self) -> f64 {
        self.events as f64 / self.elapsed.as_secs_f64()
    }

    /// CPU time of the server for one delivery, in µs; what publishing costs is in it.
    pub(super) fn server_micros(&self) -> f64 {
        self.server_cpu.as_secs_f64() * 1e6 / self.deliveries.max(1) as f64
    }

    pub(super) fn bytes_each(&self) -> u64 {
        self.bytes / self.deliveries.max(1)
    }

    /// How much of one core somebody was busy.
    pub(super) fn share(&self, cpu: Duration) -> String {
        format!("{:.0} %", 100.0 * cpu.as_secs_f64() / self.elapsed.as_secs_f64())
    }

    pub(super) fn histogram(&self) -> Histogram<u64> {
        let mut all = histogram();
        for (nanos, count) in &self.latencies {
            // It grows as needed.
            let _ = all.record_n(*nanos, *count);
        }
        all
    }
}
