use std::ops::AddAssign;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use hdrhistogram::Histogram;
use tokio::task::JoinSet;

use crate::{BenchError, ProcessGroup, own_cpu_time};

/// The plan of a measurement.
#[derive(Clone, Debug)]
pub struct BenchPlan {
    /// How many tasks work at once, each on one operation at a time.
    pub tasks: usize,
    /// How long the measurement lasts.
    pub span: BenchSpan,
    /// How long the tasks work before anything is counted.
    pub warm_up: Duration,
    /// Groups of servers whose CPU time is counted beside this process's, each on its own.
    pub servers: Vec<ProcessGroup>,
}

/// How long a measurement lasts.
#[derive(Clone, Copy, Debug)]
pub enum BenchSpan {
    /// No operation begins after this.
    Time(Duration),
    /// This many operations by all tasks together.
    Count(u64),
}

impl BenchSpan {
    /// How long the measurement takes, as far as that can be known.
    pub(crate) fn expected_time(self) -> Duration {
        match self {
            Self::Time(time) => time,
            // The time is unknown; assume a minute.
            Self::Count(_) => Duration::from_secs(60),
        }
    }
}

impl BenchPlan {
    /// A plan without a warm-up and without servers of its own.
    pub fn new(tasks: usize, span: BenchSpan) -> Self {
        Self { tasks: tasks.max(1), span, warm_up: Duration::ZERO, servers: Vec::new() }
    }

    /// Works this long before anything counts, so that connections, caches and files have their size.
    #[must_use]
    pub fn warm_up(mut self, time: Duration) -> Self {
        self.warm_up = time;
        self
    }

    /// Counts the CPU time of these groups of processes, too.
    #[must_use]
    pub fn servers(mut self, groups: impl IntoIterator<Item = ProcessGroup>) -> Self {
        self.servers = groups.into_iter().collect();
        self
    }
}

/// An operation that is repeated.
#[async_trait]
pub trait BenchOperation: Send + Sync + 'static {
    /// Runs the operation once; `turn` counts the earlier runs of this `task`.
    async fn run(&self, task: usize, turn: u64) -> Result<(), BenchError>;

    /// How many operations one run counts for. Each operation of a batch took as long as the batch.
    fn batch(&self) -> u32 {
        1
    }
}

/// Runs an operation as planned. The first failure ends the measurement.
pub async fn measure(
    operation: Arc<dyn BenchOperation>,
    plan: &BenchPlan,
) -> Result<Measurement, BenchError> {
    let mut turns = vec![0; plan.tasks];
    if !plan.warm_up.is_zero() {
        work(&operation, BenchSpan::Time(plan.warm_up), &mut turns).await?;
    }
    let (latencies, measured) =
        observe(&plan.servers, work(&operation, plan.span, &mut turns)).await?;
    Ok(Measurement { operations: latencies.len(), latencies, ..measured })
}

/// Measures work that counts as so many operations. The result has no latencies.
pub async fn measure_work<E>(
    operations: u64,
    servers: &[ProcessGroup],
    work: impl Future<Output = Result<(), E>>,
) -> Result<Measurement, E> {
    let ((), measured) = observe(servers, work).await?;
    Ok(Measurement { operations, ..measured })
}

/// The result of the work, with its time and the CPU time meanwhile.
async fn observe<T, E>(
    servers: &[ProcessGroup],
    work: impl Future<Output = Result<T, E>>,
) -> Result<(T, Measurement), E> {
    let cpu_time = |group: &ProcessGroup| (!group.is_empty()).then(|| group.cpu_time());
    let before: Vec<_> = servers.iter().map(cpu_time).collect();
    let (client, started) = (own_cpu_time(), Instant::now());
    let result = work.await?;
    let elapsed = started.elapsed();
    let client_cpu = own_cpu_time().saturating_sub(client);
    let server_cpu = servers.iter().map(cpu_time).zip(before);
    let server_cpu = server_cpu.map(|(now, then)| Some(now?.saturating_sub(then?))).collect();
    let latencies = histogram();
    Ok((result, Measurement { operations: 0, elapsed, client_cpu, server_cpu, latencies }))
}

/// Runs one task for each of `turns`, which holds the task's next turn before and after.
async fn work(
    operation: &Arc<dyn BenchOperation>,
    span: BenchSpan,
    turns: &mut [u64],
) -> Result<Histogram<u32>, BenchError> {
    let quota = Arc::new(Quota::new(span, Instant::now()));
    let mut tasks = JoinSet::new();
    for (task, turn) in turns.iter().enumerate() {
        tasks.spawn(repeat(operation.clone(), task, *turn, quota.clone()));
    }
    let mut latencies = histogram();
    while let Some(ended) = tasks.join_next().await {
        let (task, turn, one) = ended.map_err(|error| BenchError::Engine(error.to_string()))??;
        turns[task] = turn;
        // Cannot fail: the histogram resizes itself.
        let _ = latencies.add(&one);
    }
    Ok(latencies)
}

async fn repeat(
    operation: Arc<dyn BenchOperation>,
    task: usize,
    mut turn: u64,
    quota: Arc<Quota>,
) -> Result<(usize, u64, Histogram<u32>), BenchError> {
    let mut latencies = histogram();
    let mut began = Instant::now();
    while quota.take(began) {
        operation.run(task, turn).await?;
        // One reading of the clock serves as the end of this turn and the beginning of the next.
        let ended = Instant::now();
        let nanos = u64::try_from((ended - began).as_nanos()).unwrap_or(u64::MAX);
        // Cannot fail: the histogram resizes itself.
        let _ = latencies.record_n(nanos.max(1), operation.batch());
        began = ended;
        turn += 1;
        if turn.is_multiple_of(64) {
            // A store that answers without waiting would keep the thread from all other tasks.
            tokio::task::yield_now().await;
            began = Instant::now();
        }
    }
    Ok((task, turn, latencies))
}

enum Quota {
    Until(Instant),
    Left(AtomicU64),
}

impl Quota {
    fn new(span: BenchSpan, started: Instant) -> Self {
        match span {
            BenchSpan::Time(time) => Self::Until(started + time),
            BenchSpan::Count(count) => Self::Left(AtomicU64::new(count)),
        }
    }

    fn take(&self, now: Instant) -> bool {
        match self {
            Self::Until(end) => now < *end,
            Self::Left(left) => left
                .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1))
                .is_ok(),
        }
    }
}

/// The result of a measurement.
#[derive(Clone, Debug)]
pub struct Measurement {
    /// How many operations were done.
    pub operations: u64,
    /// How long it took, from the first to the last.
    pub elapsed: Duration,
    /// CPU time of this process meanwhile.
    pub client_cpu: Duration,
    /// CPU time of each group of the [`BenchPlan`](crate::BenchPlan)'s servers meanwhile; `None` where the
    /// group is empty.
    pub server_cpu: Vec<Option<Duration>>,
    pub(crate) latencies: Histogram<u32>,
}

impl Measurement {
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
}

/// Adds the figures of another part of the same measurement.
impl AddAssign for Measurement {
    fn add_assign(&mut self, other: Self) {
        self.operations += other.operations;
        self.elapsed += other.elapsed;
        self.client_cpu += other.client_cpu;
        for (mine, more) in self.server_cpu.iter_mut().zip(other.server_cpu) {
            *mine = mine.zip(more).map(|(a, b)| a + b);
        }
        // Cannot fail: the histogram resizes itself.
        let _ = self.latencies.add(&other.latencies);
    }
}

/// A histogram with a precision of 1 % that grows as needed, small enough for hundreds of tasks.
pub(crate) fn histogram() -> Histogram<u32> {
    Histogram::new(2).expect("two digits are a precision that it takes")
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Counting(AtomicU64);

    #[async_trait]
    impl BenchOperation for Counting {
        async fn run(&self, _task: usize, turn: u64) -> Result<(), BenchError> {
            self.0.fetch_add(1, Ordering::Relaxed);
            if turn == 1_000 { Err(BenchError::Unexpected("too many")) } else { Ok(()) }
        }
    }

    #[tokio::test]
    async fn measure_shares_a_count_between_tasks() {
        let operation = Arc::new(Counting(AtomicU64::new(0)));
        let plan = BenchPlan::new(7, BenchSpan::Count(500));
        let measured = measure(operation.clone(), &plan).await.unwrap();
        assert_eq!((measured.operations, operation.0.load(Ordering::Relaxed)), (500, 500));
        assert!(measured.p50() <= measured.p99());
        assert!(measured.server_cpu.is_empty());
    }

    /// Checks that every turn comes once and in order, also across the end of the warm-up.
    struct InOrder(AtomicU64);

    #[async_trait]
    impl BenchOperation for InOrder {
        async fn run(&self, _task: usize, turn: u64) -> Result<(), BenchError> {
            match self.0.fetch_add(1, Ordering::Relaxed) == turn {
                true => Ok(()),
                false => Err(BenchError::Unexpected("a turn was left out or came twice")),
            }
        }
    }

    #[tokio::test]
    async fn measure_does_not_count_the_warm_up() {
        let plan = BenchPlan::new(1, BenchSpan::Count(100)).warm_up(Duration::from_millis(5));
        // On a busy machine a warm-up may be over before its first turn.
        for _ in 0..1000 {
            let operation = Arc::new(InOrder(AtomicU64::new(0)));
            let measured = measure(operation.clone(), &plan).await.unwrap();
            assert_eq!(measured.operations, 100);
            if operation.0.load(Ordering::Relaxed) > 100 {
                return;
            }
        }
        panic!("there is never a warm-up");
    }

    struct Slow;

    #[async_trait]
    impl BenchOperation for Slow {
        async fn run(&self, _task: usize, _turn: u64) -> Result<(), BenchError> {
            tokio::time::sleep(Duration::from_millis(3)).await;
            Ok(())
        }
    }

    #[tokio::test]
    async fn measure_records_latencies_of_the_operation() {
        let measured =
            measure(Arc::new(Slow), &BenchPlan::new(2, BenchSpan::Count(10))).await.unwrap();
        let mut twice = measured.clone();
        twice += measured.clone();
        for measured in [&measured, &twice] {
            assert!(measured.p50() >= Duration::from_millis(3));
            assert!(measured.p99() <= measured.elapsed.mul_f64(1.02));
        }
        assert_eq!(twice.operations, 20);
    }

    #[tokio::test]
    async fn measure_ends_at_the_first_failure() {
        let operation = Arc::new(Counting(AtomicU64::new(0)));
        let plan = BenchPlan::new(1, BenchSpan::Time(Duration::from_secs(600)));
        assert!(measure(operation, &plan).await.is_err());
    }
}
