//! Event streams on which nothing happens but keep-alives.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::watch;

use super::caller::AcknowledgedWrite;
use super::generator::{GeneratorCounts, GeneratorOrder, GeneratorPlan};
use super::raw_http::{read_head, request, status_of};
use super::slow_clients::OpenCount;

/// How many jobs the streams follow.
const JOBS: usize = 100;
/// How many streams one generator opens in a second.
const OPENED_PER_SECOND: usize = 1000;

/// One stream, opened again whenever it ends.
pub(crate) async fn run(
    plan: GeneratorPlan,
    number: usize,
    counts: Arc<GeneratorCounts>,
    mut orders: watch::Receiver<GeneratorOrder>,
) -> Vec<AcknowledgedWrite> {
    let follow = async {
        let turn = Duration::from_secs(1) * number as u32 / OPENED_PER_SECOND as u32;
        tokio::time::sleep(turn).await;
        loop {
            counts.offered.fetch_add(1, Ordering::Relaxed);
            let _ = follow_once(&plan, number, &counts).await;
            counts.failed.fetch_add(1, Ordering::Relaxed);
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    };
    tokio::select! {
        () = follow => {}
        _ = orders.wait_for(|order| *order != GeneratorOrder::Run) => {}
    }
    Vec::new()
}

async fn follow_once(
    plan: &GeneratorPlan,
    number: usize,
    counts: &Arc<GeneratorCounts>,
) -> io::Result<()> {
    let mut stream = TcpStream::connect(&plan.addresses[number % plan.addresses.len()]).await?;
    let path = format!("/v1/jobs/load/idle-{}/events", number % JOBS);
    let token = &plan.tokens[number % plan.tokens.len()];
    stream.write_all(&request("GET", &path, token, "", "")).await?;
    let mut buffer = Vec::with_capacity(512);
    let end = read_head(&mut stream, &mut buffer).await?;
    if status_of(&String::from_utf8_lossy(&buffer[..end]))? != 200 {
        counts.refused.fetch_add(1, Ordering::Relaxed);
        return Ok(());
    }
    counts.served.fetch_add(1, Ordering::Relaxed);
    let _open = OpenCount::of(counts);
    loop {
        buffer.clear();
        if stream.read_buf(&mut buffer).await? == 0 {
            return Ok(());
        }
    }
}
