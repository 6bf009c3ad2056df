//! Places where a crash test may end the process: `HAPAX_FAILPOINT=granted:3` aborts at the third
//! pass. Without the feature `failpoints` there is nothing here.

/// The claim is ours, and the service has not been called.
pub(crate) const GRANTED: &str = "granted";
/// The service has answered, and nothing of it is stored.
pub(crate) const ANSWERED: &str = "answered";
/// The answer is stored, and its end has not gone out.
pub(crate) const SETTLED: &str = "settled";

#[cfg(not(feature = "failpoints"))]
pub(crate) fn pass(_: &str) {}

#[cfg(feature = "failpoints")]
pub(crate) fn pass(point: &str) {
    use std::sync::LazyLock;
    use std::sync::atomic::{AtomicU64, Ordering};

    static PASSES: AtomicU64 = AtomicU64::new(0);
    static ARMED: LazyLock<Option<(String, u64)>> = LazyLock::new(|| {
        let setting = std::env::var("HAPAX_FAILPOINT").ok()?;
        let (name, pass) = setting.split_once(':')?;
        Some((name.to_owned(), pass.parse().ok()?))
    });
    if let Some((name, deadly)) = &*ARMED
        && name == point
        && PASSES.fetch_add(1, Ordering::SeqCst) + 1 == *deadly
    {
        std::process::abort();
    }
}
