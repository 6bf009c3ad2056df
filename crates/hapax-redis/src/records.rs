use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use hapax_core::{Deleted, Expect, Key, Put, Record, Records, StoreError, Token, Version, millis};

use crate::calls::unexpected;
use crate::script::{DELETE, GET, PUT};
use crate::store::RedisStore;

/// Redis takes no end beyond this one (in ms from now); nobody sees the difference.
const LONGEST: u64 = 10_000_000_000_000;

#[async_trait]
impl Records for RedisStore {
    async fn get(&self, key: &Key) -> Result<Option<Record>, StoreError> {
        let answer = self.run(&GET, key, &[self.plainness(key)]).await?;
        let found: Option<(Vec<u8>, String, i64)> = answer.read()?;
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
    ) -> Result<Put, StoreError> {
        let (expectation, expected) = words(expect);
        let ttl = ttl.map_or(String::new(), |ttl| millis(ttl).min(LONGEST).to_string());
        // Made here, so that a put whose answer was lost recognises itself.
        let version = Token::random();
        let args: [&[u8]; 6] = [
            self.plainness(key),
            &value,
            expectation.as_bytes(),
            expected.as_bytes(),
            ttl.as_bytes(),
            version.as_str().as_bytes(),
        ];
        let mut answer = self.run(&PUT, key, &args).await?;
        let doubt = answer.doubt.take();
        match (answer.read::<Option<(String, u8)>>()?, doubt) {
            (Some((version, created)), _) => {
                Ok(Put::Stored { version: Version::new(version), created: created == 1 })
            }
            // A plain record has no room for a mark of who wrote it.
            (None, Some(doubt)) => Err(doubt),
            (None, None) => Ok(Put::Conflict),
        }
    }

    async fn delete(&self, key: &Key, expect: &Expect) -> Result<Deleted, StoreError> {
        let (expectation, expected) = words(expect);
        let args: [&[u8]; 3] = [self.plainness(key), expectation.as_bytes(), expected.as_bytes()];
        let mut answer = self.run(&DELETE, key, &args).await?;
        let doubt = answer.doubt.take();
        match (answer.read::<String>()?.as_str(), doubt) {
            ("done", _) => Ok(Deleted::Done),
            // It may have been there until the first of the two calls.
            (_, Some(doubt)) => Err(doubt),
            ("missing", None) => Ok(Deleted::Missing),
            ("conflict", None) => Ok(Deleted::Conflict),
            _ => Err(unexpected()),
        }
    }
}

fn words(expect: &Expect) -> (&'static str, &str) {
    match expect {
        Expect::Any => ("any", ""),
        Expect::Absent => ("absent", ""),
        Expect::Version(version) => ("version", version.as_str()),
    }
}
