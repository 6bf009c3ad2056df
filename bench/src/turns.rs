//! hapax and a raw engine measured in turns, and the table row of both.

use hapax_workload::{BenchError, MarkdownTable, Measurement, cell};

/// The number of parts of each side's time: raw, hapax, hapax, raw, and again, so that a change of the
/// machine affects both.
pub(crate) const PARTS: u32 = 4;

/// Measures both sides in turns; there may be no raw one.
pub(crate) async fn take_turns(
    hapax: impl AsyncFn() -> Result<Measurement, BenchError>,
    raw: Option<impl AsyncFn() -> Result<Measurement, BenchError>>,
) -> Result<(Measurement, Option<Measurement>), BenchError> {
    let (mut own, mut other) = (None, None);
    for part in 0..PARTS {
        let raw_first = part % 2 == 0;
        if raw_first && let Some(raw) = &raw {
            add(&mut other, raw().await?);
        }
        add(&mut own, hapax().await?);
        if !raw_first && let Some(raw) = &raw {
            add(&mut other, raw().await?);
        }
    }
    Ok((own.expect("there is at least one part"), other))
}

fn add(sum: &mut Option<Measurement>, part: Measurement) {
    *sum = Some(match sum.take() {
        Some(sum) => sum.and(&part),
        None => part,
    });
}

/// The table of these rows.
pub(crate) fn table(title: &str) -> MarkdownTable {
    MarkdownTable::new([
        title,
        "tasks",
        "hapax ops/s",
        "raw ops/s",
        "ratio",
        "p50",
        "p99",
        "raw p50",
        "client CPU µs/op",
        "server CPU µs/op",
        "raw client",
        "raw server",
    ])
}

/// One row of the table.
pub(crate) fn row(
    name: &str,
    tasks: usize,
    hapax: &Measurement,
    raw: Option<&Measurement>,
) -> Vec<String> {
    let of_raw = |show: &dyn Fn(&Measurement) -> String| raw.map_or_else(|| "—".into(), show);
    vec![
        name.to_owned(),
        tasks.to_string(),
        cell::rate(hapax.per_second()),
        of_raw(&|raw| cell::rate(raw.per_second())),
        of_raw(&|raw| format!("{:.2}", hapax.per_second() / raw.per_second())),
        cell::latency(hapax.p50()),
        cell::latency(hapax.p99()),
        of_raw(&|raw| cell::latency(raw.p50())),
        cell::micros(Some(hapax.client_cpu_each())),
        cell::micros(hapax.server_cpu_each(0)),
        of_raw(&|raw| cell::micros(Some(raw.client_cpu_each()))),
        of_raw(&|raw| cell::micros(raw.server_cpu_each(0))),
    ]
}
