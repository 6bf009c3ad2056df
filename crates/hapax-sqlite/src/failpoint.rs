//! Points where a crash test aborts the process: `HAPAX_FAILPOINT=before-commit:17` aborts at the
//! 17th hit. Without the feature `failpoints` they compile to nothing.

/// Between two calls of one batch.
pub(crate) const MID_BATCH: &str = "mid-batch";
/// All calls of a batch have run, nothing is on the disk.
pub(crate) const BEFORE_COMMIT: &str = "before-commit";
/// The batch is on the disk, no caller has its answer.
pub(crate) const BEFORE_ANSWER: &str = "after-commit-before-answer";

#[cfg(not(feature = "failpoints"))]
pub(crate) fn hit(_: &str) {}

#[cfg(feature = "failpoints")]
pub(crate) fn hit(point: &str) {
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicU64, Ordering};

    static HITS: AtomicU64 = AtomicU64::new(0);
    static ARMED: OnceLock<Option<(String, u64)>> = OnceLock::new();

    let armed = ARMED.get_or_init(|| {
        let setting = std::env::var("HAPAX_FAILPOINT").ok()?;
        let (name, hit) = setting.split_once(':')?;
        Some((name.to_owned(), hit.parse().ok()?))
    });
    if let Some((name, last_hit)) = armed
        && name == point
        && HITS.fetch_add(1, Ordering::SeqCst) + 1 == *last_hit
    {
        std::process::abort();
    }
}
