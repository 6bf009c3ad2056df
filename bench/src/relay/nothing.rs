//! How fast a relay is whose sink does nothing.

use std::sync::Arc;

use async_trait::async_trait;
use hapax_bench::{Table, cell};
use hapax_relay::{DeliveryError, OutboundMessage, Sink};

use super::drain::drain as drain_into;
use super::fill::{Keys, fill};
use super::run::add;
use crate::arena::Engine;
use crate::place::Place;
use crate::{progress, say};

const KEYS: [Keys; 3] = [Keys::None, Keys::Own, Keys::Shared(10)];
const ROUNDS: usize = 2;
/// Rows in a second on PostgreSQL.
const AIM: f64 = 40_000.0;

/// Takes everything.
pub(super) struct Nothing;

#[async_trait]
impl Sink for Nothing {
    fn name(&self) -> &'static str {
        "nothing"
    }

    async fn send(&self, _message: &OutboundMessage) -> Result<(), DeliveryError> {
        Ok(())
    }
}

pub(super) async fn drain(engines: &[Engine], rows: usize) -> anyhow::Result<()> {
    say(&format!(
        "## Draining\n\n{rows} rows of about 200 bytes, one relay with its usual settings, a sink \
         that does nothing.\n"
    ))?;
    let mut table = Table::new([
        "store",
        "keys",
        "rows/s",
        "relay CPU µs/row",
        "store CPU µs/row",
        "aim on PostgreSQL",
    ]);
    for engine in engines {
        let place = Place::start(*engine)?;
        for keys in KEYS {
            let mut sum = None;
            for round in 0..ROUNDS {
                let store = place.store(&database(keys, round)).await?;
                fill(&*store, rows, keys).await?;
                add(
                    &mut sum,
                    drain_into(store, Arc::new(Nothing), rows, &[place.processes()]).await?,
                );
                progress(".");
            }
            let Some(run) = sum else { continue };
            let met = if run.per_second() >= AIM { "met" } else { "NOT met" };
            table.row([
                engine.name().to_owned(),
                keys.name(),
                cell::rate(run.per_second()),
                cell::micros(Some(run.client_cpu_each())),
                cell::micros(run.server_cpu_each(0).filter(|_| !place.processes().is_empty())),
                if *engine == Engine::Postgres { met.into() } else { String::new() },
            ]);
        }
    }
    progress("\n");
    say(&table.to_string())?;
    Ok(())
}

/// A new one for each round: no rows of others are in the way.
fn database(keys: Keys, round: usize) -> String {
    let keys = match keys {
        Keys::None => "none",
        Keys::Own => "own",
        Keys::Shared(_) => "shared",
    };
    format!("drain_{keys}_{round}")
}
