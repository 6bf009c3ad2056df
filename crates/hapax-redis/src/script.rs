//! The scripts, each of which is one atomic step on keys of one slot.

use std::sync::LazyLock;

use redis::Cmd;

/// A script and the name under which servers remember it.
pub(crate) struct Script {
    body: &'static str,
    hash: String,
}

impl Script {
    fn new(body: &'static str) -> Self {
        Self { body, hash: redis::Script::new(body).get_hash().to_owned() }
    }

    /// The call of a script that the server knows already.
    pub(crate) fn known(&self, keys: &[&str], args: &[&[u8]]) -> Cmd {
        call("EVALSHA", &self.hash, keys, args)
    }

    /// The call that brings the script along, after which the server knows it.
    pub(crate) fn whole(&self, keys: &[&str], args: &[&[u8]]) -> Cmd {
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

macro_rules! scripts {
    ($($name:ident = $($file:literal)*;)*) => {$(
        pub(crate) static $name: LazyLock<Script> =
            LazyLock::new(|| Script::new(concat!($(include_str!(concat!("lua/", $file))),*)));
    )*};
}

scripts! {
    CLAIM = "time.lua" "take.lua" "row.lua" "claim.lua";
    EXTEND = "time.lua" "row.lua" "own.lua" "extend.lua";
    SETTLE = "time.lua" "row.lua" "own.lua" "settle.lua" "wake.lua";
    KEEP = "time.lua" "row.lua" "own.lua" "keep.lua" "wake.lua";
    FORGET = "forget.lua" "wake.lua";
    LOOK = "time.lua" "row.lua" "look.lua";
    GET = "current.lua" "get.lua";
    PUT = "current.lua" "put.lua";
    DELETE = "current.lua" "delete.lua";
    PARTITIONS = "partitions.lua";
    APPEND = "append.lua" "head.lua";
    ATTACH = "attach.lua";
    TAIL = "tail.lua";
    ENQUEUE = "queue.lua" "enqueue.lua";
    LEASE = "queue.lua" "lease.lua";
    RENEW = "queue.lua" "renew.lua";
    RESOLVE = "queue.lua" "resolve.lua";
    DEPTH = "queue.lua" "depth.lua";
    DEAD = "queue.lua" "dead.lua";
    LETTER = "queue.lua" "letter.lua";
}
