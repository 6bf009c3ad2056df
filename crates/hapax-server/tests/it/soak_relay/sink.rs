//! A webhook that fails and cuts, with an inbox and an effect behind it.

use std::sync::{Arc, Mutex};

use hapax::inbox::MessageStatus;
use hapax::postgres::HapaxTransaction;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::soak_bus::random::Random;
use crate::soak_relay::writers::client;

/// Whether the sink fails some requests.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum SinkFaults {
    None,
    Random,
}

/// Ids in the order in which they arrived.
pub(crate) type Deliveries = Arc<Mutex<Vec<String>>>;

/// Starts to listen; returns the address and the received ids.
pub(crate) async fn listen(database: &str, faults: SinkFaults) -> (String, Deliveries) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("one").to_string();
    let deliveries = Deliveries::default();
    let effects = "CREATE TABLE effects (id text NOT NULL)";
    client(database).await.batch_execute(effects).await.expect("a table");
    let (database, heard) = (database.to_owned(), deliveries.clone());
    tokio::spawn(async move {
        for seed in 1.. {
            let Ok((stream, _)) = listener.accept().await else { return };
            let (database, heard) = (database.clone(), heard.clone());
            tokio::spawn(async move {
                let mut hook =
                    Hook { stream, heard, faults, random: Random::new(seed), read: Vec::new() };
                let mut database = client(&database).await;
                while hook.request(&mut database).await.is_some() {}
            });
        }
    });
    (address, deliveries)
}

struct Hook {
    stream: TcpStream,
    heard: Deliveries,
    faults: SinkFaults,
    random: Random,
    read: Vec<u8>,
}

impl Hook {
    /// Answers one request; `None` if the connection ended.
    async fn request(&mut self, database: &mut tokio_postgres::Client) -> Option<()> {
        let id = self.id().await?;
        let draw = if self.faults == SinkFaults::None { 9 } else { self.random.below(10) };
        match draw {
            0 => return self.answer("500 Internal Server Error").await,
            1 => return None,
            _ => {}
        }
        self.heard.lock().expect("no panic").push(id.clone());
        let done = effect(database, &id).await;
        match draw {
            2 => None,
            _ if done => self.answer("204 No Content").await,
            _ => self.answer("503 Service Unavailable").await,
        }
    }

    async fn answer(&mut self, status: &str) -> Option<()> {
        let head = format!("HTTP/1.1 {status}\r\nContent-Length: 0\r\n\r\n");
        self.stream.write_all(head.as_bytes()).await.ok()
    }

    /// The next request's `Idempotency-Key`, when all of it has been read.
    async fn id(&mut self) -> Option<String> {
        loop {
            if let Some((id, length)) = whole(&self.read) {
                self.read.drain(..length);
                return Some(id);
            }
            let mut chunk = [0; 4096];
            let count = self.stream.read(&mut chunk).await.ok().filter(|count| *count > 0)?;
            self.read.extend_from_slice(&chunk[..count]);
        }
    }
}

fn whole(read: &[u8]) -> Option<(String, usize)> {
    let text = String::from_utf8_lossy(read);
    let (head, _) = text.split_once("\r\n\r\n")?;
    let header = |name: &str| {
        let mut lines = head.lines().filter_map(|line| line.split_once(": "));
        lines.find(|(n, _)| n.eq_ignore_ascii_case(name)).map(|(_, value)| value.to_owned())
    };
    let length = head.len() + 4 + header("content-length")?.parse::<usize>().ok()?;
    let id = header("idempotency-key").expect("every message carries its id");
    (read.len() >= length).then(|| (id.trim_matches('"').to_owned(), length))
}

/// Commits the effect and the inbox entry in one transaction; returns whether they are stored.
async fn effect(database: &mut tokio_postgres::Client, id: &str) -> bool {
    let mut tx = database.transaction().await.expect("a transaction");
    match tx.hapax().receive("billing", id).await.expect("PostgreSQL answers") {
        MessageStatus::First => {
            tx.execute("INSERT INTO effects VALUES ($1)", &[&id]).await.expect("an effect");
            tx.commit().await.is_ok()
        }
        MessageStatus::Duplicate => true,
        MessageStatus::Busy => false,
    }
}
