//! The Lua scripts; each one is an atomic step on keys of one slot.

use std::sync::LazyLock;
use std::time::Duration;

use hapax_core::millis;
use redis::Cmd;

/// A script, and the hash under which a server caches it.
pub(crate) struct Script {
    body: &'static str,
    hash: String,
    /// Whether its last key is a marker (`lua/marker.lua`).
    pub(crate) has_marker: bool,
    /// Whether its last argument is the time until which the caller waits (`lua/late.lua`).
    pub(crate) has_deadline: bool,
}

impl Script {
    fn new(body: &'static str, files: &[&str]) -> Self {
        let hash = redis::Script::new(body).get_hash().to_owned();
        let [has_marker, has_deadline] =
            ["marker.lua", "late.lua"].map(|file| files.contains(&file));
        Self { body, hash, has_marker, has_deadline }
    }

    /// Calls the script by its hash; a server that does not know it answers `NOSCRIPT`.
    pub(crate) fn by_hash(&self, keys: &[&str], args: &[&[u8]]) -> Cmd {
        call("EVALSHA", &self.hash, keys, args)
    }

    /// Calls the script with its text, after which the server knows its hash.
    pub(crate) fn with_body(&self, keys: &[&str], args: &[&[u8]]) -> Cmd {
        call("EVAL", self.body, keys, args)
    }
}

fn call(command: &str, script: &str, keys: &[&str], args: &[&[u8]]) -> Cmd {
    let parts = keys.iter().map(|key| key.as_bytes()).chain(args.iter().copied());
    let bytes: usize = parts.clone().map(|part| part.len() + 16).sum();
    let mut cmd = Cmd::with_capacity(keys.len() + args.len() + 3, script.len() + bytes + 64);
    cmd.arg(command).arg(script).arg(keys.len());
    for arg in parts {
        cmd.arg(arg);
    }
    cmd
}

/// Whole milliseconds for a script, at most 300 years: exact in Lua's numbers, and Redis takes no later end.
pub(crate) fn script_millis(time: Duration) -> u64 {
    const MAX: u64 = 10_000_000_000_000;
    millis(time).min(MAX)
}

macro_rules! scripts {
    ($($name:ident = $($file:literal)*;)*) => {$(
        pub(crate) static $name: LazyLock<Script> =
            LazyLock::new(|| {
                let body = concat!($(include_str!(concat!("lua/", $file))),*);
                Script::new(body, &[$($file),*])
            });
    )*};
}

scripts! {
    CLAIM = "time.lua" "late.lua" "claim_vacant.lua" "claim_row.lua" "claim.lua";
    EXTEND = "time.lua" "claim_row.lua" "check_owner.lua" "extend.lua";
    SETTLE = "time.lua" "claim_row.lua" "check_owner.lua" "settle.lua" "wake.lua";
    FAIL = "time.lua" "claim_row.lua" "check_owner.lua" "fail.lua" "wake.lua";
    RELEASE = "release.lua" "wake.lua";
    LOOK = "time.lua" "claim_row.lua" "look.lua";
    GET = "record.lua" "get.lua";
    PUT = "time.lua" "late.lua" "marker.lua" "record.lua" "put.lua";
    DELETE = "time.lua" "late.lua" "marker.lua" "record.lua" "delete.lua";
    PARTITIONS = "partitions.lua";
    APPEND = "append.lua" "append_rest.lua";
    ATTACH = "attach.lua";
    FIND_SEQ = "find_seq.lua";
    TAIL = "tail.lua";
    SWEEP_TAIL = "time.lua" "sweep_tail.lua";
    QUEUE_NAMES = "queue_names.lua";
    ENQUEUE = "time.lua" "late.lua" "marker.lua" "queue.lua" "enqueue.lua";
    LEASE = "time.lua" "late.lua" "queue.lua" "lease.lua";
    RENEW = "time.lua" "queue.lua" "renew.lua";
    RESOLVE = "time.lua" "queue.lua" "newest_reason.lua" "resolve.lua";
    DEPTH = "time.lua" "queue.lua" "depth.lua";
    WAITING = "time.lua" "queue.lua" "newest_reason.lua" "topic.lua" "waiting.lua";
    LIST_DEAD = "time.lua" "queue.lua" "newest_reason.lua" "topic.lua" "list_dead.lua";
    DEAD_REASONS = "time.lua" "queue.lua" "newest_reason.lua" "dead_reasons.lua";
    DEAD_ITEM = "time.lua" "queue.lua" "dead_item.lua";
    RESOLVE_DEAD = "time.lua" "late.lua" "marker.lua" "queue.lua" "resolve_dead.lua";
}
