use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use redis::aio::{ConnectionLike, MultiplexedConnection};
use redis::cluster_async::Connect;
use redis::{
    AsyncConnectionConfig, Cmd, ErrorKind, IntoConnectionInfo, Pipeline, RedisError, RedisFuture,
    RedisResult, ServerErrorKind, Value,
};

use crate::error::{NODE_TIMEOUT, REPLY_LOST};

/// Whether the node executed nothing, because another one serves the slot or the Cluster is down.
fn is_redirection(kind: Option<ServerErrorKind>) -> bool {
    use ServerErrorKind::{Ask, ClusterDown, MasterDown, Moved, ReadOnly, TryAgain};
    kind.is_some_and(|k| matches!(k, Ask | ClusterDown | MasterDown | Moved | ReadOnly | TryAgain))
}

fn broken_pipe() -> RedisError {
    io::Error::from(io::ErrorKind::BrokenPipe).into()
}

/// A connection to one node, under the driver's Cluster client.
///
/// That client silently repeats a command when the connection breaks, so that a release that worked would be
/// answered with *lost*. This type reports the break as an error that the client does not repeat. Only calls
/// on a connection that is already known to be broken, over which nothing was sent, get an error that the
/// client repeats. The client still follows redirections.
#[derive(Clone)]
pub(crate) struct ClusterNode {
    connection: MultiplexedConnection,
    broken: Arc<AtomicBool>,
}

impl ClusterNode {
    fn check_usable(&self) -> RedisResult<()> {
        if self.broken.load(Ordering::Relaxed) {
            return Err(broken_pipe());
        }
        Ok(())
    }

    fn prevent_repetition<T>(&self, reply: RedisResult<T>) -> RedisResult<T> {
        reply.map_err(|error| {
            if !error.is_io_error() {
                return error;
            }
            if error.is_timeout() {
                return RedisError::from((ErrorKind::Client, NODE_TIMEOUT));
            }
            self.broken.store(true, Ordering::Relaxed);
            RedisError::from((ErrorKind::Client, REPLY_LOST))
        })
    }
}

impl ConnectionLike for ClusterNode {
    fn req_packed_command<'a>(&'a mut self, cmd: &'a Cmd) -> RedisFuture<'a, Value> {
        Box::pin(async move {
            self.check_usable()?;
            let reply = self.connection.send_packed_command(cmd).await;
            self.prevent_repetition(reply)
        })
    }

    fn req_packed_commands<'a>(
        &'a mut self,
        pipeline: &'a Pipeline,
        offset: usize,
        count: usize,
    ) -> RedisFuture<'a, Vec<Value>> {
        Box::pin(async move {
            self.check_usable()?;
            let replies = self.connection.send_packed_commands(pipeline, offset, count).await;
            let mut replies = self.prevent_repetition(replies)?;
            // The client follows the redirection of a pipeline only if it is returned as an error.
            match replies.first() {
                Some(Value::ServerError(error)) if is_redirection(error.kind()) => {
                    Err(replies.swap_remove(0).extract_error().err().unwrap_or_else(broken_pipe))
                }
                _ => Ok(replies),
            }
        })
    }

    fn get_db(&self) -> i64 {
        self.connection.get_db()
    }
}

impl Connect for ClusterNode {
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
