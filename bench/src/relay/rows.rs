//! Outbox rows, and what it cost to move them.

use std::time::{Duration, Instant};

use hapax_core::queue::{Enqueued, QueueItem, QueueName};
use hapax_core::{Queue, Tenant};
use hapax_workload::{ProcessGroup, own_cpu_time};

/// The cost of moving a number of rows.
#[derive(Clone, Debug)]
pub(super) struct RelayRun {
    pub(super) rows: u64,
    elapsed: Duration,
    client_cpu: Duration,
    server_cpu: Vec<Duration>,
}

impl RelayRun {
    /// Measures work on so many rows, and the CPU time of groups of servers meanwhile.
    pub(super) async fn of(
        rows: usize,
        servers: &[ProcessGroup],
        work: impl Future<Output = anyhow::Result<()>>,
    ) -> anyhow::Result<Self> {
        let times = || servers.iter().map(ProcessGroup::cpu_time);
        let (client, before): (_, Vec<Duration>) = (own_cpu_time(), times().collect());
        let started = Instant::now();
        work.await?;
        let elapsed = started.elapsed();
        let client_cpu = own_cpu_time().saturating_sub(client);
        let server_cpu = times().zip(before).map(|(now, then)| now.saturating_sub(then)).collect();
        Ok(Self { rows: rows as u64, elapsed, client_cpu, server_cpu })
    }

    /// Adds the figures of another part.
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

    /// CPU time of one group of servers for one row.
    pub(super) fn server_cpu_each(&self, group: usize) -> Option<Duration> {
        self.server_cpu.get(group).map(|time| self.each(*time))
    }

    fn each(&self, time: Duration) -> Duration {
        Duration::from_secs_f64(time.as_secs_f64() / self.rows.max(1) as f64)
    }
}

/// Adds a part to the sum of those before it.
pub(super) fn add(sum: &mut Option<RelayRun>, part: RelayRun) {
    *sum = Some(match sum.take() {
        Some(sum) => sum.and(&part),
        None => part,
    });
}

/// The topic of all messages.
pub(super) const TOPIC: &str = "orders";
/// How many rows are enqueued at once.
const AT_ONCE: usize = 500;

/// The ordering keys of the rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OrderingKeys {
    None,
    /// Each row has its own key.
    Own,
    /// This many consecutive rows share a key.
    Shared(usize),
}

impl OrderingKeys {
    pub(super) fn name(self) -> String {
        match self {
            Self::None => "no key".into(),
            Self::Own => "a key each".into(),
            Self::Shared(rows) => format!("{rows} rows a key"),
        }
    }

    fn key(self, row: usize) -> Option<String> {
        match self {
            Self::None => None,
            Self::Own => Some(format!("order-{row}")),
            Self::Shared(rows) => Some(format!("order-{}", row / rows)),
        }
    }
}

/// A message of about 200 bytes.
pub(super) fn message(row: usize) -> QueueItem {
    let payload = format!(
        "{{\"id\":\"order-{row}\",\"status\":\"created\",\"total\":1290,\"currency\":\"EUR\",\
         \"lines\":[{{\"item\":\"tea\",\"cups\":2,\"note\":\"no sugar, please\"}},\
         {{\"item\":\"cake\",\"pieces\":1,\"note\":\"with cream\"}}],\"table\":17}}"
    );
    QueueItem::new(&Tenant::default(), TOPIC, payload).content_type("application/json")
}

/// Enqueues this many rows.
pub(super) async fn fill(store: &dyn Queue, rows: usize, keys: OrderingKeys) -> anyhow::Result<()> {
    let queue = QueueName::outbox();
    let mut row = 0;
    while row < rows {
        let batch: Vec<QueueItem> = (row..rows.min(row + AT_ONCE))
            .map(|row| match keys.key(row) {
                Some(key) => message(row).key(&key),
                None => message(row),
            })
            .collect();
        row += batch.len();
        let answers = store.enqueue(&queue, &batch).await?;
        let accepted = answers.iter().all(|answer| *answer == Enqueued::Accepted);
        anyhow::ensure!(accepted, "a new row was taken for a duplicate");
    }
    Ok(())
}
