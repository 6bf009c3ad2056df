use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::future::try_join_all;
use hapax_core::{StoreResult, Swept};
use tokio::time::Instant;

use crate::script::SWEEP_TAIL;
use crate::store::RedisStore;

/// How many partitions are swept at once.
const AT_ONCE: u16 = 16;
/// The most pointers that one script removes, so that it blocks the server only for a moment.
const MAX_POINTERS: u64 = 1000;

/// Sweeps the tails of all partitions. A call that ends early continues there the next time.
pub(crate) async fn sweep(
    store: &RedisStore,
    at_most: u32,
    time_limit: Duration,
) -> StoreResult<Swept> {
    let (partitions, start) = (store.partitions.count, Instant::now());
    let page = MAX_POINTERS.min(u64::from(at_most.max(1)));
    let mut swept = Swept { count: 0, more: false };
    let mut visited = 0;
    while visited < partitions {
        if swept.count >= u64::from(at_most) || start.elapsed() >= time_limit {
            return Ok(Swept { more: true, ..swept });
        }
        let first = store.partitions.next_swept.load(Ordering::Relaxed);
        let number = AT_ONCE.min(partitions - visited);
        let calls = (0..number).map(|nth| {
            let partition =
                u16::try_from((u32::from(first) + u32::from(nth)) % u32::from(partitions));
            sweep_tail(store, partition.unwrap_or(0), page)
        });
        let counts = try_join_all(calls).await?;
        swept.count += counts.iter().sum::<u64>();
        swept.more |= counts.iter().any(|count| *count >= page);
        let next = (u32::from(first) + u32::from(number)) % u32::from(partitions);
        store.partitions.next_swept.store(u16::try_from(next).unwrap_or(0), Ordering::Relaxed);
        visited += number;
    }
    Ok(swept)
}

async fn sweep_tail(store: &RedisStore, partition: u16, at_most: u64) -> StoreResult<u64> {
    let [head, tail] = ["head", "tail"].map(|part| store.names.partition(partition, part));
    let at_most = at_most.to_string();
    store.client.run(&SWEEP_TAIL, &[&head, &tail], &[at_most.as_bytes()]).await?.read()
}
