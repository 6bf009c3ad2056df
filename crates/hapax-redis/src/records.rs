use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use hapax_core::{
    Deleted, Expect, Key, Put, Record, Records, StoreError, StoreResult, Token, Version,
};

use crate::client::{ScriptCall, ScriptReply, unexpected_reply};
use crate::connect::RedisConnection;
use crate::keys::KeyName;
use crate::script::{DELETE, GET, PUT, Script, script_millis};
use crate::store::RedisStore;

/// The digits of a version that a put made.
const VERSION_DIGITS: usize = 32;
/// The bytes of a row before its value (`lua/record.lua`): `hapax-record1 `, the version, a space, a flag and a line feed.
const ROW_HEAD_BYTES: usize = "hapax-record1 ".len() + VERSION_DIGITS + " 0\n".len();

#[async_trait]
impl Records for RedisStore {
    async fn get(&self, key: &Key) -> StoreResult<Option<Record>> {
        let KeyName { name, verbatim } = self.names.of(key);
        let read = self.client.within_timeout(async |deadline| {
            if !verbatim && let Some(found) = self.read_without_script(&name).await? {
                return Ok(found);
            }
            let (keys, args) = ([&*name], [self.verbatim_flag(key)]);
            let call = ScriptCall::new(&GET, &keys, &args);
            let reply = self.client.call_until(call, deadline).await?;
            let found: Option<(Vec<u8>, String, i64)> = reply.read()?;
            Ok(found.map(|(value, version, ttl)| record(value.into(), version, ttl)))
        });
        read.await
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
    /// Reads a record with plain commands, which cost the server less than the script: a half where calls come in
    /// batches, a seventh for values of 10 kB. `None` where the script has to read it: in a Cluster, where there is no
    /// whole row of hapax, where the server did not answer, and where the record was changed meanwhile.
    ///
    /// In a Cluster a master that hands its slots over (`CLUSTER FAILOVER`) holds scripts back, but still answers `GET`,
    /// while its successor may already have accepted a newer put.
    async fn read_without_script(&self, name: &str) -> StoreResult<Option<Option<Record>>> {
        let read = async |connection: &mut RedisConnection| match connection {
            RedisConnection::Server(_) => {
                connection.read_with_ttl_and_head(name, ROW_HEAD_BYTES).await.map(Some)
            }
            RedisConnection::Cluster(_) => Ok(None),
        };
        Ok(match self.client.read_plainly(read).await?.flatten() {
            Some((Some(row), ttl, head_after)) => record_of_row(row, ttl, &head_after).map(Some),
            Some((None, ..)) => Some(None),
            None => None,
        })
    }

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

/// The record of a row, of the row's TTL in ms, and of the head of the row, which was read after the TTL. If the version is
/// still the same there, the TTL is that of this version, because each put makes a new one. `None` if it is another one, or if the
/// row is not one of hapax.
fn record_of_row(row: Vec<u8>, ttl: i64, head_after: &[u8]) -> Option<Record> {
    let (head, _) = row.split_at_checked(ROW_HEAD_BYTES)?;
    let text = str::from_utf8(head).ok()?.strip_prefix("hapax-record1 ")?;
    let (version, rest) = text.split_at_checked(VERSION_DIGITS)?;
    let is_whole =
        version.bytes().all(|byte| byte.is_ascii_hexdigit()) && matches!(rest, " 0\n" | " 1\n");
    if !is_whole || head != head_after {
        return None;
    }
    let version = version.to_owned();
    Some(record(Bytes::from(row).slice(ROW_HEAD_BYTES..), version, ttl))
}

/// A record as the server returned it; it never expires if its TTL in ms is negative.
fn record(value: Bytes, version: String, ttl: i64) -> Record {
    let expires_in = u64::try_from(ttl).ok().map(Duration::from_millis);
    Record { value, version: Version::new(version), expires_in }
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

#[cfg(test)]
mod tests {
    use hapax_core::Tenant;
    use hapax_testkit::Redis;

    use super::*;
    use crate::RedisConfig;

    const MINUTE: Duration = Duration::from_secs(60);

    #[tokio::test]
    async fn record_is_read_without_a_script() {
        let redis = Redis::with(&["--appendonly", "no"]);
        let config = RedisConfig::new(&redis.url()).unwrap().timeout(MINUTE);
        let store = RedisStore::open(config).unwrap();
        let key = |name| Key::record(&Tenant::default(), name).unwrap();
        let binary = Bytes::from_static(b"\0\xff\r\n$-1\r\n");
        for (name, value, ttl) in [("binary", binary, Some(MINUTE)), ("empty", Bytes::new(), None)]
        {
            let put = store.put(&key(name), value.clone(), &Expect::Any, ttl).await.unwrap();
            let Put::Stored { version: stored, .. } = put else { panic!("{put:?}") };
            redis.cli(&["CONFIG", "RESETSTAT"]);
            let found = store.get(&key(name)).await.unwrap().unwrap();
            assert_eq!((found.value, found.version), (value, stored));
            assert_eq!(found.expires_in.is_some(), ttl.is_some());
            assert!(found.expires_in <= ttl);
            assert!(!redis.cli(&["INFO", "commandstats"]).contains("cmdstat_eval"), "{name}");
        }
        redis.cli(&["CONFIG", "RESETSTAT"]);
        assert_eq!(store.get(&key("absent")).await.unwrap(), None);
        assert!(!redis.cli(&["INFO", "commandstats"]).contains("cmdstat_eval"));
    }

    #[test]
    fn record_of_row_is_read_from_whole_rows_alone() {
        let version = Token::random();
        let head = |version: &str, flag| format!("hapax-record1 {version} {flag}\n");
        let row = |head: &str| [head.as_bytes(), b"a\nb"].concat();
        let read = |head: &str| record_of_row(row(head), 5, head.as_bytes());
        let whole = head(version.as_str(), '0');
        let found = read(&whole).unwrap();
        assert_eq!((&*found.value, found.version), (&b"a\nb"[..], Version::new(version.as_str())));
        assert_eq!(found.expires_in, Some(Duration::from_millis(5)));
        let found = record_of_row(whole.clone().into_bytes(), -1, whole.as_bytes()).unwrap();
        assert_eq!((found.value, found.expires_in), (Bytes::new(), None));

        let other = head(Token::random().as_str(), '0');
        assert_eq!(record_of_row(row(&whole), 5, other.as_bytes()), None, "another version");
        assert_eq!(record_of_row(row(&whole), -2, b""), None, "expired");
        let digits = version.as_str();
        for head in [
            head(digits, '2'),
            head(&digits[1..], '0'),
            head(&format!("{digits}0"), '0'),
            head(&"g".repeat(VERSION_DIGITS), '0'),
            // A shorter version, and a value with a line feed where the head of a whole row ends.
            format!("hapax-record1 abc 1\n{}\n", "x".repeat(28)),
            whole.replace("record1", "record2"),
            whole[..whole.len() - 1].to_owned(),
            String::new(),
        ] {
            let after = &row(&head)[..ROW_HEAD_BYTES.min(row(&head).len())];
            assert_eq!(record_of_row(row(&head), 5, after), None, "{head}");
        }
    }
}
