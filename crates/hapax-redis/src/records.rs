use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use hapax_core::{
    Deleted, Expect, Key, Put, Record, Records, StoreError, StoreResult, Token, Version,
};

use crate::client::{ScriptCall, ScriptReply, unexpected_reply};
use crate::script::{DELETE, GET, PUT, Script, script_millis};
use crate::store::RedisStore;

#[async_trait]
impl Records for RedisStore {
    async fn get(&self, key: &Key) -> StoreResult<Option<Record>> {
        let reply = self.run(&GET, key, &[self.verbatim_flag(key)]).await?;
        let found: Option<(Vec<u8>, String, i64)> = reply.read()?;
        Ok(found.map(|(value, version, left)| Record {
            value: value.into(),
            version: Version::new(version),
            expires_in: u64::try_from(left).ok().map(Duration::from_millis),
        }))
    }

    async fn put(
        &self,
        key: &Key,
        value: Bytes,
        expect: &Expect,
        ttl: Option<Duration>,
    ) -> StoreResult<Put> {
        let (expectation, expected) = script_args(expect);
        let ttl = ttl.map_or(String::new(), |ttl| script_millis(ttl).to_string());
        let version = Token::random();
        let args: [&[u8]; 6] = [
            self.verbatim_flag(key),
            &value,
            expectation.as_bytes(),
            expected.as_bytes(),
            ttl.as_bytes(),
            version.as_str().as_bytes(),
        ];
        let mut reply = self.run_marked(&PUT, key, &version, &args).await?;
        let first_error = reply.first_error.take();
        match reply.read::<Option<String>>()?.as_deref().map(|answer| answer.split_at_checked(1)) {
            Some(Some((created, version))) => {
                Ok(Put::Stored { version: Version::new(version), created: created == "1" })
            }
            Some(None) => Err(unexpected_reply()),
            None => refused(first_error, Put::Conflict),
        }
    }

    async fn delete(&self, key: &Key, expect: &Expect) -> StoreResult<Deleted> {
        let (expectation, expected) = script_args(expect);
        let args: [&[u8]; 3] =
            [self.verbatim_flag(key), expectation.as_bytes(), expected.as_bytes()];
        let mut reply = self.run_marked(&DELETE, key, &Token::random(), &args).await?;
        let first_error = reply.first_error.take();
        match reply.read::<String>()?.as_str() {
            "done" => Ok(Deleted::Done),
            "missing" => refused(first_error, Deleted::Missing),
            "conflict" => refused(first_error, Deleted::Conflict),
            _ => Err(unexpected_reply()),
        }
    }
}

impl RedisStore {
    /// Runs a script that leaves a marker of this call. Without one a first attempt would not be recognised,
    /// so that the call is not repeated then.
    async fn run_marked(
        &self,
        script: &Script,
        key: &Key,
        call_id: &Token,
        args: &[&[u8]],
    ) -> StoreResult<ScriptReply> {
        let name = self.names.of(key);
        let marker = self.names.marker(&name, call_id);
        let keys = [&*name.name, marker.as_deref().unwrap_or(&name.name)];
        let repeatable = marker.is_some();
        let call = ScriptCall { repeatable, ..ScriptCall::new(script, &keys, args) };
        self.client.call(call).await
    }
}

/// The refusal of a call, unless its first attempt had no answer. That attempt may have been executed by a master that a replica
/// without the call's marker has replaced since, and that may come back: nobody knows then.
fn refused<T>(first_error: Option<StoreError>, answer: T) -> StoreResult<T> {
    first_error.map_or(Ok(answer), Err)
}

fn script_args(expect: &Expect) -> (&'static str, &str) {
    match expect {
        Expect::Any => ("any", ""),
        Expect::Absent => ("absent", ""),
        Expect::Version(version) => ("version", version.as_str()),
    }
}
