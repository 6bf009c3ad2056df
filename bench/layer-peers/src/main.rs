//! The cost of hapax's layer beside that of the crate `idempotent`, over the same bare axum handler, in one process.
//!
//! ```text
//! layer-peers [--seconds 4] [--tasks 64]
//! ```
//!
//! Requests are calls of the service: no connection is between. The process's CPU time is counted, so that of the load is
//! in each figure; the column *over bare handler* is what a layer costs.

mod app;
mod load;

use std::io::Write;
use std::time::Duration;

use clap::Parser;
use hapax_workload::{BenchPlan, BenchSpan, MarkdownTable, Measurement, cell, measure};

use app::LayerChoice;
use load::{LayerLoad, RequestKind};

/// The cases take turns, in reverse order in every second round, so that a machine that gets slower or faster affects all
/// of them. The number is even, so that the last round leaves them in their first order.
const ROUNDS: u32 = 4;
const WARM_UP: Duration = Duration::from_millis(300);
/// How much longer than planned a measurement may take before it counts as hanging.
const TIMEOUT: Duration = Duration::from_secs(30);

/// Measures hapax's layer beside another one.
#[derive(Parser)]
struct PeerArgs {
    /// How long each line of the table is measured.
    #[arg(long, default_value_t = 4.0)]
    seconds: f64,
    /// How many tasks send requests, one at a time each.
    #[arg(long, default_value_t = 64)]
    tasks: usize,
}

struct Case {
    kind: RequestKind,
    layer: LayerChoice,
    measured: Option<Measurement>,
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let args = PeerArgs::parse();
    let time = Duration::try_from_secs_f64(args.seconds)? / ROUNDS;
    let plan = BenchPlan::new(args.tasks, BenchSpan::Time(time)).warm_up(WARM_UP);
    let of_kind = |kind| LayerChoice::ALL.map(|layer| Case { kind, layer, measured: None });
    let mut cases: Vec<Case> = RequestKind::ALL.into_iter().flat_map(of_kind).collect();
    for _ in 0..ROUNDS {
        for case in &mut cases {
            case.measure(&plan).await?;
        }
        cases.reverse();
    }
    writeln!(std::io::stdout(), "{}", table(&cases))?;
    Ok(())
}

impl Case {
    /// Measures one round, on a store of its own, and adds it to those before.
    async fn measure(&mut self, plan: &BenchPlan) -> anyhow::Result<()> {
        let load = LayerLoad::prepare(self.layer, self.kind).await?;
        let part = tokio::time::timeout(TIMEOUT, measure(load, plan)).await??;
        match &mut self.measured {
            Some(sum) => *sum += part,
            none => *none = Some(part),
        }
        Ok(())
    }

    fn cpu_micros(&self) -> Option<f64> {
        Some(self.measured.as_ref()?.client_cpu_each().as_secs_f64() * 1e6)
    }
}

fn table(cases: &[Case]) -> MarkdownTable {
    let mut table = MarkdownTable::default();
    for case in cases {
        let is_bare = |other: &&Case| other.kind == case.kind && other.layer == LayerChoice::None;
        let bare = cases.iter().find(is_bare).and_then(Case::cpu_micros);
        let (Some(measured), Some(cpu), Some(bare)) = (&case.measured, case.cpu_micros(), bare)
        else {
            continue;
        };
        let over = match case.layer {
            LayerChoice::None => "—".into(),
            _ => format!("{:+.2} (×{:.2})", cpu - bare, cpu / bare),
        };
        table.row([
            ("request", case.kind.name().to_owned()),
            ("service", case.layer.name().to_owned()),
            ("requests/s", cell::rate(measured.per_second())),
            ("p50", cell::latency(measured.p50())),
            ("p99", cell::latency(measured.p99())),
            ("CPU µs", format!("{cpu:.2}")),
            ("over bare handler", over),
        ]);
    }
    table
}
