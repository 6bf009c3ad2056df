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
/// the one on the `PATH`, if any.
pub fn valkey_server() -> Option<PathBuf> {
    file_named_by("HAPAX_TEST_VALKEY").or_else(|| crate::find_binary("valkey-server").ok())
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
