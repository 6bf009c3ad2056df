//! Places where a crash test may end the process: `HAPAX_FAILPOINT=before-commit:17` aborts at
//! the 17th pass. Without the feature `failpoints` there is nothing here.

/// Between two operations of one batch.
pub(crate) const MID_BATCH: &str = "mid-batch";
/// All operations of a batch were run, none is on the disk.
pub(crate) const BEFORE_COMMIT: &str = "before-commit";
/// The batch is on the disk, nobody knows.
pub(crate) const BEFORE_ANSWER: &str = "after-commit-before-answer";

#[cfg(not(feature = "failpoints"))]
pub(crate) fn pass(_: &str) {}

#[cfg(feature = "failpoints")]
pub(crate) fn pass(point: &str) {
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicU64, Ordering};

    static PASSES: AtomicU64 = AtomicU64::new(0);
    static ARMED: OnceLock<Option<(String, u64)>> = OnceLock::new();

    let armed = ARMED.get_or_init(|| {
        let setting = std::env::var("HAPAX_FAILPOINT").ok()?;
        let (name, pass) = setting.split_once(':')?;
        Some((name.to_owned(), pass.parse().ok()?))
    });
    if let Some((name, deadly)) = armed
        && name == point
        && PASSES.fetch_add(1, Ordering::SeqCst) + 1 == *deadly
    {
        std::process::abort();
    }
}
