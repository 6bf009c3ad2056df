/// Crash point for the tests, in debug builds: ends the process if `BOOKKEEPING_DIE_AT` names this
/// point.
pub(crate) fn die_at(point: &str) {
    if cfg!(debug_assertions)
        && std::env::var("BOOKKEEPING_DIE_AT").is_ok_and(|wanted| wanted == point)
    {
        std::process::abort();
    }
}
