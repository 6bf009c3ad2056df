use std::sync::Arc;

use hapax_core::Store;
use hapax_core::activity::{ActivityReport, ActivityReporter, AlreadyReporting};

/// Reports what this process does to the store, so that the console of a `hapax serve` on the same store shows it:
/// requests, replays, conflicts and latencies of locks, commands, inboxes, the bus and the `Idempotency-Key` layer, and
/// that the process lives.
///
/// Activity is counted in memory and written every two seconds, where there was any. A process has one reporter.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use hapax::activity::ActivityReport;
/// let store = hapax::open("memory:", &hapax::StoreConfig::default())?;
/// let reporter = hapax::report_activity(store.clone(), ActivityReport::new("orders"))?;
/// let commands = hapax::command::Commands::new(store).label(reporter.node_name());
/// # drop(commands);
/// // … serve, and at the end:
/// reporter.stop().await;
/// # Ok(()) }
/// ```
pub fn report_activity(
    store: Arc<dyn Store>,
    report: ActivityReport,
) -> Result<ActivityReporter, AlreadyReporting> {
    report.start(store)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
    use std::time::Duration;

    use async_trait::async_trait;
    use hapax_conformance::{StoreWrapper, WrappedStore};
    use hapax_core::activity::{Activity, ActivityReader, ClaimActivity};
    use hapax_core::command::Commands;
    use hapax_core::log::{Appended, LogEvent, LogRetention};
    use hapax_core::memory::MemoryStore;
    use hapax_core::{Clock, Key, Log, Operation, RuntimeClock, StoreError, StoreResult, Tenant};
    use tokio::time::sleep;

    use super::*;

    /// A store whose appends fail while it is told so.
    struct FailingAppends(MemoryStore, AtomicBool, AtomicU32);

    #[async_trait]
    impl StoreWrapper for FailingAppends {
        fn inner(&self) -> &dyn Store {
            &self.0
        }

        async fn append(
            &self,
            events: &[LogEvent],
            keep: &LogRetention,
        ) -> StoreResult<Vec<Appended>> {
            if self.1.load(Ordering::Relaxed) {
                self.2.fetch_add(1, Ordering::Relaxed);
                return Err(StoreError::Timeout { timeout: Duration::ZERO });
            }
            self.0.append(events, keep).await
        }
    }

    #[tokio::test(start_paused = true)]
    async fn activity_survives_an_outage_and_is_written_as_one() {
        let clock: Arc<dyn Clock> = Arc::new(RuntimeClock::default());
        let failing = FailingAppends(
            MemoryStore::new(clock.clone()),
            AtomicBool::new(true),
            AtomicU32::new(0),
        );
        let store = Arc::new(WrappedStore(failing));
        let report = ActivityReport::new("test").clock(clock.clone());
        let recorder = report.recorder();
        let _reporter = report.start_with(store.clone(), recorder.clone());
        let key = Key::command(&Tenant::default(), Operation("pay"), "1").unwrap();
        for _ in 0..100 {
            let (answer, took) = (ClaimActivity::Replayed, Some(Duration::from_millis(3)));
            recorder.record(Activity::Claim { key: &key, answer, took });
            sleep(Duration::from_secs(2)).await;
        }
        assert!(store.0.2.load(Ordering::Relaxed) >= 100, "tried again and again");
        store.0.1.store(false, Ordering::Relaxed);
        sleep(Duration::from_secs(65)).await;
        let reader = ActivityReader::new(&store.0.0).clock(&*clock);
        let live = reader.live(&Tenant::default(), None, 100).await.unwrap().entries;
        assert_eq!(live.len(), 2, "the first one, and one for the rest of the outage");
        assert_eq!(live[0].counts.replays + live[1].counts.replays, 100);
        assert_eq!(live[0].latency.count() + live[1].latency.count(), 100);
        assert!(live[0].ms >= 194_000 && live[0].suppressed.len() == 20, "{}", live[0].ms);
        let minutes = reader.minutes(&Tenant::default(), 0).await.unwrap();
        assert!((4..=5).contains(&minutes.len()), "each minute of its own: {}", minutes.len());
        assert_eq!(minutes.iter().map(|entry| entry.counts.replays).sum::<u64>(), 100);
        assert_eq!(reader.nodes().await.unwrap().len(), 1);
    }

    /// A store that does the first appends of each log and loses the answers.
    struct LostAnswers(MemoryStore, AtomicU32);

    #[async_trait]
    impl StoreWrapper for LostAnswers {
        fn inner(&self) -> &dyn Store {
            &self.0
        }

        async fn append(
            &self,
            events: &[LogEvent],
            keep: &LogRetention,
        ) -> StoreResult<Vec<Appended>> {
            let answers = self.0.append(events, keep).await?;
            match self.1.fetch_add(1, Ordering::Relaxed) % 3 {
                2 => Ok(answers),
                _ => Err(StoreError::Timeout { timeout: Duration::ZERO }),
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn activity_whose_answer_was_lost_is_not_counted_twice() {
        let clock: Arc<dyn Clock> = Arc::new(RuntimeClock::default());
        let store = LostAnswers(MemoryStore::new(clock.clone()), AtomicU32::new(0));
        let store = Arc::new(WrappedStore(store));
        let report = ActivityReport::new("test").clock(clock.clone());
        let recorder = report.recorder();
        let reporter = report.start_with(store.clone(), recorder.clone());
        let key = Key::command(&Tenant::default(), Operation("pay"), "1").unwrap();
        for _ in 0..100 {
            let (answer, took) = (ClaimActivity::Replayed, Some(Duration::from_millis(3)));
            recorder.record(Activity::Claim { key: &key, answer, took });
            sleep(Duration::from_secs(2)).await;
        }
        sleep(Duration::from_secs(120)).await;
        reporter.stop().await;
        let reader = ActivityReader::new(&store.0.0).clock(&*clock);
        let live = reader.live(&Tenant::default(), None, 1000).await.unwrap().entries;
        assert_eq!(live.iter().map(|entry| entry.counts.replays).sum::<u64>(), 100);
        let minutes = reader.minutes(&Tenant::default(), 0).await.unwrap();
        assert_eq!(minutes.iter().map(|entry| entry.counts.replays).sum::<u64>(), 100);
    }

    #[tokio::test(start_paused = true)]
    async fn activity_of_the_process_is_reported_once() {
        let clock: Arc<dyn Clock> = Arc::new(RuntimeClock::default());
        let store = Arc::new(MemoryStore::new(clock.clone()));
        let report = || ActivityReport::new("test").clock(clock.clone());
        let reporter = report_activity(store.clone(), report()).unwrap();
        assert_eq!(report_activity(store.clone(), report()).err(), Some(AlreadyReporting));
        let commands = Commands::new(store.clone()).label(reporter.node_name());
        let effect = || async { Ok::<_, std::io::Error>(1) };
        for _ in 0..2 {
            commands.once(Operation("pay"), "k", "input", effect).await.unwrap();
        }
        let _ = commands.once(Operation("pay"), "k", "other input", effect).await.unwrap_err();
        sleep(Duration::from_secs(3)).await;
        let reader = ActivityReader::new(&*store).clock(&*clock);
        let live = reader.live(&Tenant::default(), None, 100).await.unwrap().entries;
        let [entry] = live.as_slice() else { panic!("{live:?}") };
        let counts = entry.counts;
        assert_eq!((counts.requests, counts.first_runs, counts.replays), (3, 1, 1));
        assert_eq!((counts.refusals, counts.reused), (1, 1));
        assert_eq!(entry.suppressed[0].after_first_ms, Some(0));
        assert_eq!(entry.keys.len(), 1);
        reporter.stop().await;
    }
}
