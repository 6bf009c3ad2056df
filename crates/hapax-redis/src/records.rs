use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use hapax_core::{Deleted, Expect, Key, Put, Record, Records, StoreResult, Token, Version};

use crate::client::unexpected_reply;
use crate::script::{DELETE, GET, PUT, script_millis};
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
        // Made here and not by the script, so that a repeated put recognises its first attempt.
        let version = Token::random();
        let args: [&[u8]; 6] = [
            self.verbatim_flag(key),
            &value,
            expectation.as_bytes(),
            expected.as_bytes(),
            ttl.as_bytes(),
            version.as_str().as_bytes(),
        ];
        let mut reply = self.run(&PUT, key, &args).await?;
        let first_error = reply.first_error.take();
        match (reply.read::<Option<(String, u8)>>()?, first_error) {
            (Some((version, created)), _) => {
                Ok(Put::Stored { version: Version::new(version), created: created == 1 })
            }
            // A verbatim record does not contain the version by which a first attempt would be recognised.
            (None, Some(error)) => Err(error),
            (None, None) => Ok(Put::Conflict),
        }
    }

    async fn delete(&self, key: &Key, expect: &Expect) -> StoreResult<Deleted> {
        let (expectation, expected) = script_args(expect);
        let args: [&[u8]; 3] =
            [self.verbatim_flag(key), expectation.as_bytes(), expected.as_bytes()];
        let mut reply = self.run(&DELETE, key, &args).await?;
        let first_error = reply.first_error.take();
        match (reply.read::<String>()?.as_str(), first_error) {
            ("done", _) => Ok(Deleted::Done),
            // The first attempt may have deleted the record.
            (_, Some(error)) => Err(error),
            ("missing", None) => Ok(Deleted::Missing),
            ("conflict", None) => Ok(Deleted::Conflict),
            _ => Err(unexpected_reply()),
        }
    }
}

fn script_args(expect: &Expect) -> (&'static str, &str) {
    match expect {
        Expect::Any => ("any", ""),
        Expect::Absent => ("absent", ""),
        Expect::Version(version) => ("version", version.as_str()),
    }
}
