//! So many rows or messages, from the first to the last.

use std::time::{Duration, Instant};

use hapax_bench::{Processes, own_cpu_time};

/// What came out.
#[derive(Clone, Debug)]
pub(super) struct Run {
    pub(super) rows: u64,
    elapsed: Duration,
    client_cpu: Duration,
    server_cpu: Vec<Duration>,
}

impl Run {
    /// Measures work on so many rows, and the CPU time of groups of servers meanwhile.
    pub(super) async fn of(
        rows: usize,
        servers: &[Processes],
        work: impl Future<Output = anyhow::Result<()>>,
    ) -> anyhow::Result<Self> {
        let times = || servers.iter().map(Processes::cpu_time);
        let (client, before): (_, Vec<Duration>) = (own_cpu_time(), times().collect());
        let started = Instant::now();
        work.await?;
        let elapsed = started.elapsed();
        let client_cpu = own_cpu_time().saturating_sub(client);
        let server_cpu = times().zip(before).map(|(now, then)| now.saturating_sub(then)).collect();
        Ok(Self { rows: rows as u64, elapsed, client_cpu, server_cpu })
    }

    /// Both as one that ran in two parts.
    pub(super) fn and(mut self, other: &Self) -> Self {
        self.rows += other.rows;
        self.elapsed += other.elapsed;
        self.client_cpu += other.client_cpu;
        self.server_cpu.iter_mut().zip(&other.server_cpu).for_each(|(mine, more)| *mine += *more);
        self
    }

    pub(super) fn per_second(&self) -> f64 {
        self.rows as f64 / self.elapsed.as_secs_f64()
    }

    pub(super) fn client_cpu_each(&self) -> Duration {
        self.each(self.client_cpu)
    }

    /// Of one group of servers.
    pub(super) fn server_cpu_each(&self, group: usize) -> Option<Duration> {
        self.server_cpu.get(group).map(|time| self.each(*time))
    }

    fn each(&self, time: Duration) -> Duration {
        Duration::from_secs_f64(time.as_secs_f64() / self.rows.max(1) as f64)
    }
}

/// Adds a part to the sum of those before it.
pub(super) fn add(sum: &mut Option<Run>, part: Run) {
    *sum = Some(match sum.take() {
        Some(sum) => sum.and(&part),
        None => part,
    });
}
