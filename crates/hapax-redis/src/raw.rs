use std::sync::Arc;

use hapax_core::{StoreError, limited};
use redis::{Cmd, Value};
use tokio::time::Instant;

use crate::RedisConfig;
use crate::connect::Connector;
use crate::fault::Fault;
use crate::link::Link;

/// Plain commands, for keys that other programs have made: streams that hapax did not write, say.
///
/// As with [`RedisStore`](crate::RedisStore) every call ends within the limit, and connections are
/// made again for ever; in a Cluster a command goes to the node of its key. A command whose answer was
/// lost is not repeated: only its caller knows whether that is safe.
///
/// ```no_run
/// use hapax_redis::{RawRedis, RedisConfig, Reply};
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), hapax_core::StoreError> {
/// let redis = RawRedis::open(RedisConfig::new("redis://127.0.0.1:6379")?)?;
/// let length = redis.command(&["XLEN", "scan:events:0"]).await?;
/// assert!(matches!(length, Reply::Number(_)));
/// # Ok(()) }
/// ```
pub struct RawRedis {
    link: Link,
    limit: std::time::Duration,
}

/// What a server answered.
#[derive(Clone, Debug, PartialEq)]
pub enum Reply {
    /// Nothing.
    Nil,
    /// A whole number.
    Number(i64),
    /// Bytes, and everything else that is one value.
    Bytes(Vec<u8>),
    /// Several; a map is its names and values in turn.
    Many(Vec<Reply>),
}

impl RawRedis {
    /// A handle; nothing needs to be reachable yet. Blocking commands keep everybody else on the same
    /// handle waiting, and need one of their own.
    ///
    /// # Errors
    /// [`StoreError::Incompatible`] where the settings cannot be used.
    pub fn open(config: RedisConfig) -> Result<Self, StoreError> {
        let RedisConfig { address, limit, in_flight, .. } = config;
        let connector = Arc::new(Connector::new(&address, limit, in_flight)?);
        Ok(Self { link: Link::new(connector), limit })
    }

    /// Sends one command.
    pub async fn command<T: AsRef<[u8]>>(&self, parts: &[T]) -> Result<Reply, StoreError> {
        let mut cmd = Cmd::new();
        parts.iter().for_each(|part| {
            cmd.arg(part.as_ref());
        });
        let started = Instant::now();
        let answer = limited(self.limit, self.ask(&cmd)).await;
        if matches!(answer, Err(StoreError::Timeout { .. })) {
            self.link.was_silent(started);
        }
        answer.map(Reply::from)
    }

    async fn ask(&self, cmd: &Cmd) -> Result<Value, StoreError> {
        let connection = self.link.connection().await;
        let (mut connection, generation) =
            connection.map_err(|error| Fault::of(&error).error(error, self.limit))?;
        connection.ask(cmd).await.map_err(|error| {
            let (fault, error) = self.link.reported(generation, error);
            fault.error(error, self.limit)
        })
    }
}

impl std::fmt::Debug for RawRedis {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RawRedis").field("limit", &self.limit).finish_non_exhaustive()
    }
}

impl From<Value> for Reply {
    fn from(value: Value) -> Self {
        let text = |text: &str| Self::Bytes(text.as_bytes().to_vec());
        match value {
            Value::Nil => Self::Nil,
            Value::Int(number) => Self::Number(number),
            Value::BulkString(bytes) => Self::Bytes(bytes),
            Value::SimpleString(said) => text(&said),
            Value::Okay => text("OK"),
            Value::Array(values) | Value::Set(values) => {
                Self::Many(values.into_iter().map(Self::from).collect())
            }
            Value::Map(pairs) => {
                let flat = pairs.into_iter().flat_map(|(name, value)| [name, value]);
                Self::Many(flat.map(Self::from).collect())
            }
            Value::Double(number) => text(&number.to_string()),
            Value::Boolean(flag) => Self::Number(flag.into()),
            Value::VerbatimString { text: said, .. } => text(&said),
            _ => Self::Nil,
        }
    }
}
