//! Settings that several commands have.

use super::Setting;

pub(crate) const STORE: Setting = Setting {
    flag: "store",
    env: "HAPAX_STORE",
    key: "store",
    value: "URL",
    default: "sqlite:hapax.db",
    seed: Some(("REDIS_URL", "")),
    help: "sqlite:FILE, memory:, redis://…, rediss://…, redis+sentinel://…, redis+cluster://…, postgres://…",
};

pub(crate) const LOG: Setting = Setting {
    flag: "log",
    env: "HAPAX_LOG",
    key: "log",
    value: "FORMAT",
    default: "pretty",
    seed: None,
    help: "How log lines look: json or pretty",
};

pub(crate) const LOG_LEVEL: Setting = Setting {
    flag: "log-level",
    env: "HAPAX_LOG_LEVEL",
    key: "log_level",
    value: "LEVEL",
    default: "info",
    seed: None,
    help: "The least that is logged: error, warn, info, debug or trace",
};

pub(crate) const STORE_TIMEOUT: Setting = Setting {
    flag: "store-timeout",
    env: "HAPAX_STORE_TIMEOUT",
    key: "store_timeout",
    value: "TIME",
    default: "2s",
    seed: None,
    help: "The longest that one store call may take",
};
