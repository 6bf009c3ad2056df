//! What followers that return to a long job read from the store, for what they deliver.

use std::sync::Arc;

use anyhow::Context;
use hapax_conformance::CountingStore;
use hapax_core::bus::{Bus, FollowFrom, NewEvent, NextFrames};
use hapax_core::log::{Appended, Cursor};
use hapax_workload::{MarkdownTable, own_cpu_time};
use serde_json::json;
use tokio::task::JoinSet;

use crate::store_server::StoreServer;
use crate::{RunArgs, progress, say};

/// The bytes of a job's events, about.
const JOB_BYTES: u64 = 4 << 20;
/// The bytes after which a follower leaves, in the lines of those that do.
const LEAVES_AFTER: u64 = 300_000;
/// How many followers there are at once.
const AT_ONCE: u64 = 40;
/// The aim: bytes read for a byte that is delivered.
const AIM: f64 = 1.3;

/// Runs the measurements and prints the table.
pub(crate) async fn compare(run: &RunArgs) -> anyhow::Result<()> {
    say(format_args!(
        "## Replay\n\nFollowers that return to a job of {} MB. Bytes are those of payloads that the \
         store's answers had. *One after the other*: the job has no other follower. Aim: at most \
         {AIM} bytes read for a byte delivered.\n",
        JOB_BYTES >> 20
    ))?;
    let mut table = MarkdownTable::default();
    for engine in run.engines() {
        let server = StoreServer::start(engine)?;
        let store = CountingStore::new(server.store("hapax").await?);
        for size in [200, 4_000, 60_000] {
            let job = LongJob::publish(&store, size).await?;
            let near_end: Vec<_> =
                (0..AT_ONCE).map(|i| job.events - 1 - i * 4 % job.events.min(60)).collect();
            let spread: Vec<_> = (1..AT_ONCE).map(|i| i * job.events / AT_ONCE).collect();
            for (what, places, at_once, at_most) in [
                ("near the end, one after the other", &near_end, false, u64::MAX),
                ("spread, one after the other", &spread, false, u64::MAX),
                ("spread, all at once", &spread, true, u64::MAX),
                ("spread, all at once, leaving early", &spread, true, LEAVES_AFTER),
            ] {
                progress();
                let (calls, bytes) = (store.attach_calls(), store.attach_bytes());
                let (client, servers) = (own_cpu_time(), server.processes().cpu_time());
                let delivered = job.follow_from(places, at_once, at_most).await?;
                let megabytes = delivered as f64 / 1e6;
                let read = (store.attach_bytes() - bytes) as f64;
                let cpu = |time: std::time::Duration| {
                    format!("{:.1}", time.as_secs_f64() * 1e3 / megabytes)
                };
                table.row([
                    ("store", engine.name().to_owned()),
                    ("event bytes", size.to_string()),
                    ("followers", what.to_owned()),
                    ("MB delivered", format!("{megabytes:.1}")),
                    ("MB read", format!("{:.1}", read / 1e6)),
                    ("read/delivered", format!("{:.2}", read / delivered as f64)),
                    (
                        "reads/MB",
                        format!("{:.1}", (store.attach_calls() - calls) as f64 / megabytes),
                    ),
                    ("client CPU ms/MB", cpu(own_cpu_time() - client)),
                    ("server CPU ms/MB", cpu(server.processes().cpu_time() - servers)),
                    ("met", if read <= AIM * delivered as f64 { "yes" } else { "NO" }.to_owned()),
                ]);
            }
        }
    }
    say(table)?;
    Ok(())
}

/// An open job with events of one size.
struct LongJob {
    bus: Bus,
    name: String,
    events: u64,
    cursors: Vec<Cursor>,
}

impl LongJob {
    async fn publish(store: &CountingStore, size: usize) -> anyhow::Result<Arc<Self>> {
        let bus = Bus::new(Arc::new(store.clone()));
        let (name, events) = (format!("replay-{size}"), JOB_BYTES / size as u64);
        let data = json!("x".repeat(size));
        let event = |seq| NewEvent::new("bench", &name, "stage", seq).data(data.clone());
        let batch: Vec<_> = (1..=events).map(event).collect();
        let mut cursors = Vec::new();
        // Parts of the batch that are small enough for one call of the store.
        for part in batch.chunks((1 << 20) / size) {
            for appended in bus.publish_all(part).await? {
                let Appended::Published(cursor) = appended else { anyhow::bail!("not published") };
                cursors.push(cursor);
            }
        }
        Ok(Arc::new(Self { bus, name, events, cursors }))
    }

    /// Follows the job after each of these offsets; returns the bytes that were delivered.
    async fn follow_from(
        self: &Arc<Self>,
        offsets: &[u64],
        at_once: bool,
        at_most: u64,
    ) -> anyhow::Result<u64> {
        let mut delivered = 0;
        let mut followers = JoinSet::new();
        for offset in offsets.iter().copied() {
            let job = self.clone();
            followers.spawn(async move { job.follow_one(offset, at_most).await });
            while !at_once && !followers.is_empty() {
                delivered += followers.join_next().await.context("a follower")???;
            }
        }
        while let Some(bytes) = followers.join_next().await {
            delivered += bytes??;
        }
        Ok(delivered)
    }

    async fn follow_one(&self, offset: u64, at_most: u64) -> anyhow::Result<u64> {
        let from = match offset.checked_sub(1) {
            Some(before) => FollowFrom::Cursor(self.cursors[before as usize]),
            None => FollowFrom::Start,
        };
        let follower = self.bus.follow("bench", &self.name, from).await?;
        let mut follower = follower.context("the job is open")?;
        let mut bytes = 0;
        while bytes < at_most && follower.cursor().is_none_or(|at| at.offset < self.events) {
            let NextFrames::Frames(frames) = follower.next().await else {
                anyhow::bail!("the job ended")
            };
            bytes += frames.iter().map(|frame| frame.encoded().json().len() as u64).sum::<u64>();
        }
        Ok(bytes)
    }
}
