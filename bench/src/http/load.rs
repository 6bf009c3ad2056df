//! The load: every task has a connection of its own.

use std::net::SocketAddr;
use std::sync::Arc;

use async_trait::async_trait;
use hapax_bench::{Failure, Operation};
use hapax_core::Token;
use tokio::sync::Mutex;

use super::client::{Answered, Connection};
use super::stage::Subject;

/// Which keys the requests have. No other run has the same.
pub(super) struct Keys {
    run: String,
    fresh: bool,
}

impl Keys {
    /// Each request has a key of its own: first runs.
    pub(super) fn fresh() -> Self {
        Self { run: Token::random().as_str()[..16].to_owned(), fresh: true }
    }

    /// All have the same: replays.
    pub(super) fn one() -> Self {
        Self { fresh: false, ..Self::fresh() }
    }

    fn key(&self, task: usize, turn: u64) -> String {
        if self.fresh { format!("{}-{task}-{turn}", self.run) } else { self.run.clone() }
    }
}

pub(super) struct Load {
    keys: Keys,
    expected: Answered,
    /// One for each task, which alone locks it.
    connections: Vec<Mutex<Connection>>,
}

impl Load {
    /// Connects, and settles the key that is to be replayed.
    pub(super) async fn connect(
        subject: &Subject,
        keys: Keys,
        connections: usize,
    ) -> Result<Arc<Self>, Failure> {
        let address = subject.server.address();
        let replayed = subject.role.keeps_answers() && !keys.fresh;
        Self::to(address, keys, Answered { replayed }, connections).await
    }

    async fn to(
        address: SocketAddr,
        keys: Keys,
        expected: Answered,
        connections: usize,
    ) -> Result<Arc<Self>, Failure> {
        let open = || async {
            Connection::open(address).await.map_err(|error| Failure::Engine(error.to_string()))
        };
        if !keys.fresh {
            open().await?.post(&keys.key(0, 0)).await?;
        }
        let mut opened = Vec::new();
        for _ in 0..connections {
            opened.push(Mutex::new(open().await?));
        }
        Ok(Arc::new(Self { keys, expected, connections: opened }))
    }
}

#[async_trait]
impl Operation for Load {
    async fn run(&self, task: usize, turn: u64) -> Result<(), Failure> {
        let answered = self.connections[task].lock().await.post(&self.keys.key(task, turn)).await?;
        match answered == self.expected {
            true => Ok(()),
            false if answered.replayed => Err(Failure::Unexpected("a fresh key was answered")),
            false => Err(Failure::Unexpected("a settled key ran again")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::handler::{bare, layered};
    use hapax_bench::{Plan, Span, measure};

    async fn serve(app: axum::Router) -> SocketAddr {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move { axum::serve(listener, app).await });
        address
    }

    async fn load(address: SocketAddr, keys: Keys, replayed: bool) -> Result<u64, Failure> {
        let load = Load::to(address, keys, Answered { replayed }, 8).await?;
        Ok(measure(load, &Plan::new(8, Span::Count(200))).await?.operations)
    }

    #[tokio::test]
    async fn first_runs_and_replays_are_told_apart() {
        let address = serve(layered("memory:").await.unwrap()).await;
        assert_eq!(load(address, Keys::fresh(), false).await.unwrap(), 200);
        assert_eq!(load(address, Keys::one(), true).await.unwrap(), 200);
        assert!(load(address, Keys::fresh(), true).await.is_err());
        assert!(load(address, Keys::one(), false).await.is_err());
    }

    #[tokio::test]
    async fn a_bare_handler_replays_nothing() {
        let address = serve(bare()).await;
        assert_eq!(load(address, Keys::one(), false).await.unwrap(), 200);
    }
}
