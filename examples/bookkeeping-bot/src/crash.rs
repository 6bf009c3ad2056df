/// For the tests, in debug builds: ends the process as a crash would, where `BOOKKEEPING_DIE_AT` names
/// this point.
pub(crate) fn die_at(point: &str) {
    if cfg!(debug_assertions)
        && std::env::var("BOOKKEEPING_DIE_AT").is_ok_and(|wanted| wanted == point)
    {
        std::process::abort();
    }
}
