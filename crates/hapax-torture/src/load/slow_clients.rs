//! Clients that send a byte now and then, or never read.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::io::AsyncWriteExt;
use tokio::net::{TcpSocket, TcpStream};
use tokio::sync::watch;

use super::caller::AcknowledgedWrite;
use super::generator::{GeneratorCounts, GeneratorOrder, GeneratorPlan};
use super::raw_http::request;

const BETWEEN_BYTES: Duration = Duration::from_millis(500);
/// Each client begins a millisecond after the one before; after so many, from the start again.
const ARRIVAL_MILLIS: usize = 5000;
/// The record that some ask for and do not read.
pub(crate) const LARGE_RECORD: &str = "large";
pub(crate) const LARGE_RECORD_BYTES: usize = 64 * 1024;

/// How long it takes until so many clients have begun.
pub(crate) fn arrival_time(clients: usize) -> Duration {
    Duration::from_millis(clients.min(ARRIVAL_MILLIS) as u64)
}

/// One slow client, which comes back whenever it is cut off.
pub(crate) async fn run(
    plan: GeneratorPlan,
    number: usize,
    counts: Arc<GeneratorCounts>,
    mut orders: watch::Receiver<GeneratorOrder>,
) -> Vec<AcknowledgedWrite> {
    let slow = async {
        // Not all in the same moment.
        tokio::time::sleep(arrival_time(number % ARRIVAL_MILLIS)).await;
        loop {
            counts.offered.fetch_add(1, Ordering::Relaxed);
            let _ = connect_and_dawdle(&plan, number, &counts).await;
            counts.failed.fetch_add(1, Ordering::Relaxed);
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    };
    tokio::select! {
        () = slow => {}
        _ = orders.wait_for(|order| *order != GeneratorOrder::Run) => {}
    }
    Vec::new()
}

async fn connect_and_dawdle(
    plan: &GeneratorPlan,
    number: usize,
    counts: &Arc<GeneratorCounts>,
) -> io::Result<()> {
    let address = plan.addresses[number % plan.addresses.len()].parse();
    let socket = TcpSocket::new_v4()?;
    // A small window, so that what is not read stays with the server.
    socket.set_recv_buffer_size(4096)?;
    let mut stream = socket.connect(address.map_err(io::Error::other)?).await?;
    let _open = OpenCount::of(counts);
    let token = &plan.tokens[number % plan.tokens.len()];
    match number % 3 {
        0 => {
            let head = request("GET", "/v1/records/slow", token, "", "");
            send_slowly(&mut stream, &head).await
        }
        1 => {
            let body = format!("\"{}\"", "x".repeat(2000));
            let whole = request("PUT", "/v1/records/slow", token, "", &body);
            let (head, body) = whole.split_at(whole.len() - body.len());
            stream.write_all(head).await?;
            send_slowly(&mut stream, body).await
        }
        _ => {
            let path = format!("/v1/records/{LARGE_RECORD}");
            stream.write_all(&request("GET", &path, token, "", "").repeat(20)).await?;
            loop {
                tokio::time::sleep(Duration::from_secs(5)).await;
                // Fails once the server has closed the connection.
                stream.write_all(b"\r\n").await?;
            }
        }
    }
}

async fn send_slowly(stream: &mut TcpStream, bytes: &[u8]) -> io::Result<()> {
    for byte in bytes {
        stream.write_all(&[*byte]).await?;
        tokio::time::sleep(BETWEEN_BYTES).await;
    }
    Ok(())
}

/// Counts a connection as open while it lives.
pub(super) struct OpenCount(Arc<GeneratorCounts>);

impl OpenCount {
    pub(super) fn of(counts: &Arc<GeneratorCounts>) -> Self {
        counts.open.fetch_add(1, Ordering::Relaxed);
        Self(counts.clone())
    }
}

impl Drop for OpenCount {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Ordering::Relaxed);
    }
}
