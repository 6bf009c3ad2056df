//! First runs while expired rows are deleted.

use std::time::Duration;

use hapax_workload::{MarkdownTable, Measurement, cell};

use super::fill::{FillExpiry, FilledStore};
use super::keys::KeyStage;
use super::work::{GrowthWork, measure_median, measure_once};
use crate::store_server::Engine;

/// Expired keys to delete.
const EXPIRED: u64 = 1_000_000;
/// Until Redis, which deletes expired keys by itself, has something to delete.
const EXPIRES_AFTER: Duration = Duration::from_secs(12);
/// Sweeping may cost the p99 this factor.
const AIM: f64 = 2.0;

/// First runs with and without a sweep.
pub(super) struct SweepFigures {
    engine: Engine,
    without: Measurement,
    with: Measurement,
    swept: Option<u64>,
}

/// Measures first runs, then fills expired keys and measures first runs while they are swept.
pub(super) async fn measure(
    filled: &FilledStore<'_>,
    stage: KeyStage,
    time: Duration,
) -> anyhow::Result<SweepFigures> {
    let (server, store, work) = (filled.server, &filled.store, GrowthWork::FirstRun);
    let engine = server.engine();
    let without = measure_median(server, store, work, stage, time).await?;
    let expired = KeyStage { number: stage.number + 1, count: EXPIRED };
    filled.fill(expired, FillExpiry::Past(EXPIRES_AFTER)).await?;
    if engine == Engine::Redis {
        tokio::time::sleep(EXPIRES_AFTER).await;
        let with = measure_once(server, store, work, stage, time).await?;
        return Ok(SweepFigures { engine, without, with, swept: None });
    }
    let (with, swept) = tokio::join!(
        measure_once(server, store, work, stage, time),
        hapax::sweep(&**store, u64::MAX, time),
    );
    Ok(SweepFigures { engine, without, with: with?, swept: Some(swept?.count) })
}

impl SweepFigures {
    pub(super) fn table(&self, time: Duration) -> MarkdownTable {
        let mut table = MarkdownTable::default();
        let factor = self.with.p99().as_secs_f64() / self.without.p99().as_secs_f64();
        let rate = |measured: &Measurement| cell::rate(measured.per_second());
        let swept = self.swept.map(|rows| cell::rate(rows as f64 / time.as_secs_f64()));
        table.row([
            ("store", self.engine.name().to_owned()),
            ("ops/s", rate(&self.without)),
            ("while sweeping", rate(&self.with)),
            ("p99", cell::latency(self.without.p99())),
            ("p99 while sweeping", cell::latency(self.with.p99())),
            ("factor", format!("{factor:.2}")),
            ("aim 2", if factor <= AIM { "met" } else { "NOT met" }.to_owned()),
            ("swept rows/s", swept.unwrap_or_else(|| "by the server".into())),
        ]);
        table
    }
}
