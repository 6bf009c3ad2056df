use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use hdrhistogram::Histogram;
use tokio::task::JoinSet;

use crate::cpu::own_cpu_time;
use crate::measured::histogram;
use crate::{Failure, Measured, Processes};

/// How a measurement goes.
#[derive(Clone, Debug)]
pub struct Plan {
    /// How many tasks work at once, each on one operation at a time.
    pub tasks: usize,
    /// For how long.
    pub span: Span,
    /// For how long before that, without being counted.
    pub warm_up: Duration,
    /// Groups of servers whose CPU time is counted beside this process's, each on its own.
    pub servers: Vec<Processes>,
}

/// How long a measurement lasts.
#[derive(Clone, Copy, Debug)]
pub enum Span {
    /// No operation begins after this.
    Time(Duration),
    /// So many operations by all tasks together.
    Count(u64),
}

impl Plan {
    /// A plan without a warm-up and without servers of its own.
    pub fn new(tasks: usize, span: Span) -> Self {
        Self { tasks: tasks.max(1), span, warm_up: Duration::ZERO, servers: Vec::new() }
    }

    /// Works for so long before anything counts: connections, caches and files have their size then.
    #[must_use]
    pub fn warm_up(mut self, time: Duration) -> Self {
        self.warm_up = time;
        self
    }

    /// Counts the CPU time of these groups of processes, too.
    #[must_use]
    pub fn servers(mut self, groups: impl IntoIterator<Item = Processes>) -> Self {
        self.servers = groups.into_iter().collect();
        self
    }

    fn server_cpu(&self) -> Vec<Option<Duration>> {
        let time = |group: &Processes| (!group.is_empty()).then(|| group.cpu_time());
        self.servers.iter().map(time).collect()
    }
}

/// One thing that is done again and again.
#[async_trait]
pub trait Operation: Send + Sync + 'static {
    /// Does it: `task` says who, `turn` how many times that task did it before.
    async fn run(&self, task: usize, turn: u64) -> Result<(), Failure>;

    /// How many operations one run counts for; more than one where it does them as a batch, each
    /// of which then took as long as all.
    fn batch(&self) -> u32 {
        1
    }
}

/// Runs an operation as planned. The first one that fails ends it all.
pub async fn measure(operation: Arc<dyn Operation>, plan: &Plan) -> Result<Measured, Failure> {
    let mut turns = vec![0; plan.tasks];
    if !plan.warm_up.is_zero() {
        work(&operation, Span::Time(plan.warm_up), &mut turns).await?;
    }
    let (client_before, servers_before) = (own_cpu_time(), plan.server_cpu());
    let started = Instant::now();
    let latencies = work(&operation, plan.span, &mut turns).await?;
    let elapsed = started.elapsed();
    let client_cpu = own_cpu_time().saturating_sub(client_before);
    let servers = plan.server_cpu().into_iter().zip(servers_before);
    Ok(Measured {
        operations: latencies.len(),
        elapsed,
        client_cpu,
        server_cpu: servers.map(|(after, before)| Some(after?.saturating_sub(before?))).collect(),
        latencies,
    })
}

/// One task for each of `turns`, which says where it goes on, and afterwards where it ended.
async fn work(
    operation: &Arc<dyn Operation>,
    span: Span,
    turns: &mut [u64],
) -> Result<Histogram<u32>, Failure> {
    let quota = Arc::new(Quota::new(span, Instant::now()));
    let mut tasks = JoinSet::new();
    for (task, turn) in turns.iter().enumerate() {
        tasks.spawn(repeat(operation.clone(), task, *turn, quota.clone()));
    }
    let mut latencies = histogram();
    while let Some(ended) = tasks.join_next().await {
        let (task, turn, one) = ended.map_err(|error| Failure::Engine(error.to_string()))??;
        turns[task] = turn;
        // Both grow as needed.
        let _ = latencies.add(&one);
    }
    Ok(latencies)
}

async fn repeat(
    operation: Arc<dyn Operation>,
    task: usize,
    mut turn: u64,
    quota: Arc<Quota>,
) -> Result<(usize, u64, Histogram<u32>), Failure> {
    let mut latencies = histogram();
    let mut began = Instant::now();
    while quota.take(began) {
        operation.run(task, turn).await?;
        // One reading of the clock serves as the end of this turn and the beginning of the next.
        let ended = Instant::now();
        let nanos = u64::try_from((ended - began).as_nanos()).unwrap_or(u64::MAX);
        // It grows as needed, up to centuries.
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
    fn new(span: Span, started: Instant) -> Self {
        match span {
            Span::Time(time) => Self::Until(started + time),
            Span::Count(count) => Self::Left(AtomicU64::new(count)),
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

#[cfg(test)]
mod tests {
    use super::*;

    struct Counting(AtomicU64);

    #[async_trait]
    impl Operation for Counting {
        async fn run(&self, _task: usize, turn: u64) -> Result<(), Failure> {
            self.0.fetch_add(1, Ordering::Relaxed);
            if turn == 1_000 { Err(Failure::Unexpected("too many")) } else { Ok(()) }
        }
    }

    #[tokio::test]
    async fn a_count_is_shared_by_all_tasks() {
        let operation = Arc::new(Counting(AtomicU64::new(0)));
        let plan = Plan::new(7, Span::Count(500));
        let measured = measure(operation.clone(), &plan).await.unwrap();
        assert_eq!((measured.operations, operation.0.load(Ordering::Relaxed)), (500, 500));
        assert!(measured.p50() <= measured.p99());
        assert!(measured.server_cpu.is_empty());
    }

    /// Every turn of a task once, in order, also over the end of the warm-up.
    struct InOrder(AtomicU64);

    #[async_trait]
    impl Operation for InOrder {
        async fn run(&self, _task: usize, turn: u64) -> Result<(), Failure> {
            match self.0.fetch_add(1, Ordering::Relaxed) == turn {
                true => Ok(()),
                false => Err(Failure::Unexpected("a turn was left out or came twice")),
            }
        }
    }

    #[tokio::test]
    async fn a_warm_up_is_not_counted_and_its_turns_do_not_come_again() {
        let plan = Plan::new(1, Span::Count(100)).warm_up(Duration::from_millis(5));
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
    impl Operation for Slow {
        async fn run(&self, _task: usize, _turn: u64) -> Result<(), Failure> {
            tokio::time::sleep(Duration::from_millis(3)).await;
            Ok(())
        }
    }

    #[tokio::test]
    async fn latencies_are_those_of_the_operation() {
        let measured = measure(Arc::new(Slow), &Plan::new(2, Span::Count(10))).await.unwrap();
        let twice = measured.clone().and(&measured);
        for measured in [&measured, &twice] {
            assert!(measured.p50() >= Duration::from_millis(3));
            assert!(measured.p99() <= measured.elapsed.mul_f64(1.02));
        }
        assert_eq!(twice.operations, 20);
    }

    #[tokio::test]
    async fn the_first_failure_ends_it() {
        let operation = Arc::new(Counting(AtomicU64::new(0)));
        let plan = Plan::new(1, Span::Time(Duration::from_secs(600)));
        assert!(measure(operation, &plan).await.is_err());
    }
}
