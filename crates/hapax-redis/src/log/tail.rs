use futures_util::future::join_all;
use hapax_core::log::{Change, Position, Tail};
use hapax_core::{Key, StoreError};

use crate::script::TAIL;
use crate::store::RedisStore;

/// The epoch now, where an empty answer ends, whether something was lost, what is there.
type Found = (String, String, u8, Vec<(String, Vec<String>)>);

/// All partitions at once; none of the calls waits for anything to happen.
pub(super) async fn tail(
    store: &RedisStore,
    from: &[(u16, Position)],
    at_most: usize,
) -> Result<Vec<Tail>, StoreError> {
    let at_most = at_most.clamp(1, 1 << 30).to_string();
    let calls =
        from.iter().map(|(partition, position)| of_one(store, *partition, position, &at_most));
    join_all(calls).await.into_iter().collect()
}

async fn of_one(
    store: &RedisStore,
    partition: u16,
    from: &Position,
    at_most: &str,
) -> Result<Tail, StoreError> {
    let [head, tail] = ["head", "tail"].map(|what| store.naming.partition(partition, what));
    let (epoch, id) = parts(from).ok_or_else(foreign)?;
    let args = [epoch.as_bytes(), id.as_bytes(), at_most.as_bytes()];
    let answer = store.calls.run(&TAIL, &[&head, &tail], &args).await?;
    let (epoch, empty, lost, found) = answer.read::<Found>()?;
    let position = |id: &str| Position::new(&format!("{epoch}-{id}"));
    let mut changes = Vec::with_capacity(found.len());
    for (id, pointer) in found {
        let [offset, job] = pointer.as_slice() else { return Err(damaged()) };
        let (job, offset) = (Key::from_canonical(job), offset.parse().ok());
        let (job, offset) = job.zip(offset).ok_or_else(damaged)?;
        changes.push(Change { job, offset, position: position(&id) });
    }
    let next = changes.last().map_or_else(|| position(&empty), |last| last.position.clone());
    Ok(Tail { changes, next, lost: lost == 1 })
}

/// The epoch under which it was read and the id in the stream; both empty for the start, and `$` for
/// the end.
fn parts(position: &Position) -> Option<(&str, &str)> {
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

fn foreign() -> StoreError {
    StoreError::Corrupt { reason: "the position in the tail is not one of this store".into() }
}

fn damaged() -> StoreError {
    StoreError::Corrupt { reason: "a pointer in the tail was not written by hapax".into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_positions_of_this_store_are_taken() {
        assert_eq!(parts(&Position::start()), Some(("", "")));
        assert_eq!(parts(&Position::new("7-12-0")), Some(("7", "12-0")));
        for wrong in ["7", "7-12", "7-12-x", "--", "7-12-0-1", "+7-1-1"] {
            assert_eq!(parts(&Position::new(wrong)), None, "{wrong}");
        }
    }
}
