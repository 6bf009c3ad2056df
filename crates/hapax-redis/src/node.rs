//! One node of a Cluster.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use redis::aio::{ConnectionLike, MultiplexedConnection};
use redis::cluster_async::Connect;
use redis::{
    AsyncConnectionConfig, Cmd, ErrorKind, IntoConnectionInfo, Pipeline, RedisError, RedisFuture,
    RedisResult, ServerErrorKind, Value,
};

use crate::fault::{LOST, SILENT};

/// Whether the node did nothing, because another one is in charge or nobody is.
fn elsewhere(kind: Option<ServerErrorKind>) -> bool {
    use ServerErrorKind::{Ask, ClusterDown, MasterDown, Moved, ReadOnly, TryAgain};
    kind.is_some_and(|k| matches!(k, Ask | ClusterDown | MasterDown | Moved | ReadOnly | TryAgain))
}

fn gone() -> RedisError {
    io::Error::from(io::ErrorKind::BrokenPipe).into()
}

/// A connection to one node, under the driver's Cluster client.
///
/// That client repeats a command by itself when a connection breaks under it, and nobody hears of
/// it: a give-back that worked would then be told that it lost. So the break itself is reported as
/// an error that is not repeated, and only a connection that is known to be broken, over which
/// nothing was sent, as one that is. Redirections are followed as ever.
#[derive(Clone)]
pub(crate) struct Node {
    connection: MultiplexedConnection,
    broken: Arc<AtomicBool>,
}

impl Node {
    fn usable(&self) -> RedisResult<()> {
        if self.broken.load(Ordering::Relaxed) {
            return Err(gone());
        }
        Ok(())
    }

    fn checked<T>(&self, answer: RedisResult<T>) -> RedisResult<T> {
        answer.map_err(|error| {
            if !error.is_io_error() {
                return error;
            }
            if error.is_timeout() {
                return RedisError::from((ErrorKind::Client, SILENT));
            }
            self.broken.store(true, Ordering::Relaxed);
            RedisError::from((ErrorKind::Client, LOST))
        })
    }
}

impl ConnectionLike for Node {
    fn req_packed_command<'a>(&'a mut self, cmd: &'a Cmd) -> RedisFuture<'a, Value> {
        Box::pin(async move {
            self.usable()?;
            let answer = self.connection.send_packed_command(cmd).await;
            self.checked(answer)
        })
    }

    fn req_packed_commands<'a>(
        &'a mut self,
        pipeline: &'a Pipeline,
        offset: usize,
        count: usize,
    ) -> RedisFuture<'a, Vec<Value>> {
        Box::pin(async move {
            self.usable()?;
            let answer = self.connection.send_packed_commands(pipeline, offset, count).await;
            let mut answers = self.checked(answer)?;
            // The client follows redirections of commands by itself, of pipelines only if told.
            match answers.first() {
                Some(Value::ServerError(error)) if elsewhere(error.kind()) => {
                    Err(answers.swap_remove(0).extract_error().err().unwrap_or_else(gone))
                }
                _ => Ok(answers),
            }
        })
    }

    fn get_db(&self) -> i64 {
        self.connection.get_db()
    }
}

impl Connect for Node {
    fn connect_with_config<'a, T>(info: T, config: AsyncConnectionConfig) -> RedisFuture<'a, Self>
    where
        T: IntoConnectionInfo + Send + 'a,
    {
        Box::pin(async move {
            let connection = MultiplexedConnection::connect_with_config(info, config).await?;
            Ok(Self { connection, broken: Arc::default() })
        })
    }
}
