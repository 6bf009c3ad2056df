use futures_util::future::join_all;
use hapax_core::log::{PartitionTail, TailChange, TailPosition};
use hapax_core::{Key, StoreError, StoreResult};

use crate::script::TAIL;
use crate::store::RedisStore;

/// The present epoch, the stream id at which an empty page ends, 1 if entries were lost, the pointers.
type TailReply = (String, String, u8, Vec<(String, Vec<String>)>);

/// Reads all partitions concurrently.
pub(super) async fn tail(
    store: &RedisStore,
    from: &[(u16, TailPosition)],
    at_most: usize,
) -> StoreResult<Vec<PartitionTail>> {
    let at_most = at_most.clamp(1, 1 << 30).to_string();
    let calls = from
        .iter()
        .map(|(partition, position)| tail_of_partition(store, *partition, position, &at_most));
    join_all(calls).await.into_iter().collect()
}

async fn tail_of_partition(
    store: &RedisStore,
    partition: u16,
    from: &TailPosition,
    at_most: &str,
) -> StoreResult<PartitionTail> {
    let [head, tail] = ["head", "tail"].map(|part| store.names.partition(partition, part));
    let (epoch, id) = parse_position(from).ok_or_else(foreign_position)?;
    let args = [epoch.as_bytes(), id.as_bytes(), at_most.as_bytes()];
    let reply = store.client.run(&TAIL, &[&head, &tail], &args).await?;
    let (epoch, empty, lost, found) = reply.read::<TailReply>()?;
    let position = |id: &str| TailPosition::new(&format!("{epoch}-{id}"));
    let mut changes = Vec::with_capacity(found.len());
    for (id, pointer) in found {
        let [offset, job] = pointer.as_slice() else { return Err(corrupt_pointer()) };
        let (job, offset) = (Key::from_canonical(job), offset.parse().ok());
        let (job, offset) = job.zip(offset).ok_or_else(corrupt_pointer)?;
        changes.push(TailChange { job, offset, position: position(&id) });
    }
    let next = changes.last().map_or_else(|| position(&empty), |last| last.position.clone());
    Ok(PartitionTail { changes, next, lost: lost == 1 })
}

/// The epoch under which the position was read, and its stream id; both empty for the start, `$` for the end.
fn parse_position(position: &TailPosition) -> Option<(&str, &str)> {
    match position.as_str() {
        "" => Some(("", "")),
        "$" => Some(("$", "")),
        text => {
            let (epoch, id) = text.split_once('-')?;
            let (ms, seq) = id.split_once('-')?;
            let number = |part: &str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
            [epoch, ms, seq].into_iter().all(number).then_some((epoch, id))
        }
    }
}

fn foreign_position() -> StoreError {
    StoreError::Corrupt { reason: "the position in the tail is not one of this store".into() }
}

fn corrupt_pointer() -> StoreError {
    StoreError::Corrupt { reason: "a pointer in the tail was not written by hapax".into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn position_of_another_form_is_refused() {
        assert_eq!(parse_position(&TailPosition::start()), Some(("", "")));
        assert_eq!(parse_position(&TailPosition::new("7-12-0")), Some(("7", "12-0")));
        for wrong in ["7", "7-12", "7-12-x", "--", "7-12-0-1", "+7-1-1"] {
            assert_eq!(parse_position(&TailPosition::new(wrong)), None, "{wrong}");
        }
    }
}
