//! Environment variables by which `test.sh` configures the tests.

use std::env;
use std::fs::{self, File};
use std::io::Write;
use std::path::PathBuf;

/// The factor by which kill loops and property tests run longer: `HAPAX_TEST_SCALE`, 1 by default.
///
/// # Panics
///
/// When the variable is set but is not a whole number above zero: a typo must not shrink a run.
pub fn scale() -> u32 {
    let Ok(value) = env::var("HAPAX_TEST_SCALE") else {
        return 1;
    };
    match value.parse() {
        Ok(scale) if scale > 0 => scale,
        _ => panic!("HAPAX_TEST_SCALE must be a whole number above zero, not `{value}`"),
    }
}

/// A Python interpreter that has the `redis` client: `HAPAX_TEST_PYTHON`, if set.
pub fn python() -> Option<PathBuf> {
    file_named_by("HAPAX_TEST_PYTHON")
}

/// A Valkey server for [`Redis::binary`](crate::Redis::binary): `HAPAX_TEST_VALKEY`, if set, else
/// the one on the `PATH`. `None` where a test may be skipped without one.
///
/// # Panics
///
/// When there is none and the test may not be skipped.
pub fn valkey_server() -> Option<PathBuf> {
    let binary =
        file_named_by("HAPAX_TEST_VALKEY").or_else(|| crate::find_binary("valkey-server").ok());
    let advice =
        "install valkey-server, name one in HAPAX_TEST_VALKEY, or set HAPAX_TEST_SKIP=valkey";
    binary.or_else(|| skip("valkey", "there is no valkey-server", advice))
}

/// A Redis server of the oldest supported version for [`Redis::binary`](crate::Redis::binary):
/// `HAPAX_TEST_REDIS_62`. `None` where a test may be skipped without one.
///
/// # Panics
///
/// When there is none and the test may not be skipped.
pub fn redis_62_server() -> Option<PathBuf> {
    let advice = "name one in HAPAX_TEST_REDIS_62, or set HAPAX_TEST_SKIP=redis-6.2";
    let binary = file_named_by("HAPAX_TEST_REDIS_62");
    binary.or_else(|| skip("redis-6.2", "there is no Redis 6.2", advice))
}

/// Says that a test is skipped without something that it needs.
///
/// # Panics
///
/// When the test may not be skipped.
fn skip<T>(need: &str, missing: &str, advice: &str) -> Option<T> {
    let skips = env::var("HAPAX_TEST_SKIP").unwrap_or_default();
    assert!(may_skip(need, env::var_os("CI").is_some(), &skips), "{missing}: {advice}");
    let not_run = format!("NOT RUN: {missing}; {advice}");
    writeln!(std::io::stderr(), "{not_run}").expect("cannot write to stderr");
    None
}

/// Whether a test may be skipped without a program: where `HAPAX_TEST_SKIP`, a list with commas, names
/// it; and outside of CI, where the test says so.
fn may_skip(program: &str, is_ci: bool, skips: &str) -> bool {
    !is_ci || skips.split(',').any(|skip| skip.trim() == program)
}

fn file_named_by(variable: &str) -> Option<PathBuf> {
    env::var_os(variable).filter(|value| !value.is_empty()).map(PathBuf::from)
}

/// Appends a program's logs, metrics or error responses to a file in the folder `HAPAX_TEST_LOGS`, if
/// set. `test.sh` searches that folder for personal data after the run.
pub fn keep_log(program: &str, text: &str) {
    let Some(folder) = file_named_by("HAPAX_TEST_LOGS") else { return };
    let file = folder.join(format!("{program}-{}.log", std::process::id()));
    let file = fs::create_dir_all(&folder)
        .and_then(|()| File::options().create(true).append(true).open(file));
    file.and_then(|mut file| file.write_all(text.as_bytes())).expect("cannot write the log");
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Tests on Valkey once passed in silence where there was none.
    #[test]
    fn fault_38_missing_program_fails_in_ci() {
        assert!(may_skip("valkey", false, ""));
        assert!(!may_skip("valkey", true, ""));
        assert!(!may_skip("valkey", true, "tmpfs,valkeys"));
        assert!(may_skip("valkey", true, "tmpfs, valkey"));
    }
}
