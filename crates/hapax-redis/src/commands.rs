use std::sync::Arc;

use hapax_core::StoreResult;
use redis::{Cmd, Value};

use crate::RedisConfig;
use crate::client::RedisClient;
use crate::connect::RedisConnector;

/// Sends plain commands, for keys of other programs: streams that hapax did not write, for example.
///
/// As with [`RedisStore`](crate::RedisStore), every call ends within the timeout, and lost connections are made
/// again; in a Cluster a command goes to the node of its key. A command whose reply was lost is not repeated:
/// only its caller knows whether that is safe.
///
/// ```no_run
/// use hapax_redis::{RedisCommands, RedisConfig, RedisReply};
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), hapax_core::StoreError> {
/// let redis = RedisCommands::open(RedisConfig::new("redis://127.0.0.1:6379")?)?;
/// let length = redis.command(&["XLEN", "scan:events:0"]).await?;
/// assert!(matches!(length, RedisReply::Number(_)));
/// # Ok(()) }
/// ```
pub struct RedisCommands {
    client: RedisClient,
}

/// A server's reply to a command.
#[derive(Clone, Debug, PartialEq)]
pub enum RedisReply {
    /// No value.
    Nil,
    /// An integer, or a boolean as 0 or 1.
    Number(i64),
    /// Any other single value.
    Bytes(Vec<u8>),
    /// Several values; a map alternates names and values.
    Many(Vec<RedisReply>),
}

impl RedisCommands {
    /// Makes a handle; no server needs to be reachable yet. A blocking command delays all other commands on the
    /// same handle, so give it a handle of its own.
    ///
    /// # Errors
    /// [`StoreError::Incompatible`](hapax_core::StoreError::Incompatible) if the configuration cannot be used.
    pub fn open(config: RedisConfig) -> StoreResult<Self> {
        let RedisConfig { address, timeout, max_in_flight, .. } = config;
        let connector = Arc::new(RedisConnector::new(&address, timeout, max_in_flight)?);
        Ok(Self { client: RedisClient::new(connector, max_in_flight, timeout, None) })
    }

    /// Sends one command, given as its name and arguments.
    ///
    /// # Errors
    /// The errors of any store call; a lost reply is [`StoreError::Unavailable`](hapax_core::StoreError::Unavailable).
    pub async fn command<T: AsRef<[u8]>>(&self, parts: &[T]) -> StoreResult<RedisReply> {
        let mut cmd = Cmd::new();
        parts.iter().for_each(|part| {
            cmd.arg(part.as_ref());
        });
        self.client.send_to("", &cmd).await.map(RedisReply::from)
    }
}

impl std::fmt::Debug for RedisCommands {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RedisCommands").finish_non_exhaustive()
    }
}

impl From<Value> for RedisReply {
    fn from(value: Value) -> Self {
        let bytes = |text: &str| Self::Bytes(text.as_bytes().to_vec());
        match value {
            Value::Nil => Self::Nil,
            Value::Int(number) => Self::Number(number),
            Value::BulkString(bytes) => Self::Bytes(bytes),
            Value::SimpleString(text) | Value::VerbatimString { text, .. } => bytes(&text),
            Value::Okay => bytes("OK"),
            Value::Array(values) | Value::Set(values) => {
                Self::Many(values.into_iter().map(Self::from).collect())
            }
            Value::Map(pairs) => {
                let flat = pairs.into_iter().flat_map(|(name, value)| [name, value]);
                Self::Many(flat.map(Self::from).collect())
            }
            Value::Double(number) => bytes(&number.to_string()),
            Value::Boolean(flag) => Self::Number(flag.into()),
            _ => Self::Nil,
        }
    }
}
