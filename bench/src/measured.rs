use std::time::Duration;

use hdrhistogram::Histogram;

/// What came out of a measurement.
#[derive(Clone, Debug)]
pub struct Measured {
    /// How many operations were done.
    pub operations: u64,
    /// How long it took, from the first to the last.
    pub elapsed: Duration,
    /// CPU time of this process meanwhile.
    pub client_cpu: Duration,
    /// CPU time of each group of the [`Plan`](crate::Plan)'s servers meanwhile; `None` where the
    /// group is empty.
    pub server_cpu: Vec<Option<Duration>>,
    pub(crate) latencies: Histogram<u32>,
}

impl Measured {
    /// Operations in a second.
    pub fn per_second(&self) -> f64 {
        self.operations as f64 / self.elapsed.as_secs_f64().max(f64::MIN_POSITIVE)
    }

    /// Half of the operations took at most this long.
    pub fn p50(&self) -> Duration {
        self.quantile(0.50)
    }

    /// 95 of 100 operations took at most this long.
    pub fn p95(&self) -> Duration {
        self.quantile(0.95)
    }

    /// 99 of 100 operations took at most this long.
    pub fn p99(&self) -> Duration {
        self.quantile(0.99)
    }

    fn quantile(&self, share: f64) -> Duration {
        Duration::from_nanos(self.latencies.value_at_quantile(share))
    }

    /// CPU time of this process for one operation.
    pub fn client_cpu_each(&self) -> Duration {
        self.each(self.client_cpu)
    }

    /// CPU time of one group of servers for one operation; `None` where there is no such server.
    pub fn server_cpu_each(&self, group: usize) -> Option<Duration> {
        self.server_cpu.get(group).copied().flatten().map(|time| self.each(time))
    }

    fn each(&self, time: Duration) -> Duration {
        Duration::from_secs_f64(time.as_secs_f64() / self.operations.max(1) as f64)
    }

    /// Both measurements as one that ran in two parts.
    #[must_use]
    pub fn and(mut self, other: &Self) -> Self {
        self.operations += other.operations;
        self.elapsed += other.elapsed;
        self.client_cpu += other.client_cpu;
        for (mine, more) in self.server_cpu.iter_mut().zip(&other.server_cpu) {
            *mine = mine.zip(*more).map(|(a, b)| a + b);
        }
        // Both grow as needed, so there is nothing that could not be added.
        let _ = self.latencies.add(&other.latencies);
        self
    }
}

/// 1 % exact, and grows as needed; small enough for one in each of hundreds of tasks.
pub(crate) fn histogram() -> Histogram<u32> {
    Histogram::new(2).expect("two digits are a precision that it takes")
}
