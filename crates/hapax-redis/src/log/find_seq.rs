use hapax_core::log::{Epochs, FoundSeq, SeqSearch};
use hapax_core::{Key, StoreResult};

use super::attach::corrupt_job;
use super::cursor;
use crate::script::FIND_SEQ;
use crate::store::RedisStore;

/// The job's `now`, the offset and seq of the best entry so far (0 and nothing if there is none), the next offset to
/// look at.
type FindSeqReply = (String, u64, Option<u64>, u64);

/// Looks at the entries inside Redis, a few megabytes in each call.
pub(super) async fn find_seq(
    store: &RedisStore,
    job: &Key,
    seq: u64,
) -> StoreResult<Option<SeqSearch>> {
    let (name, seq) = (store.job_name(job), seq.to_string());
    let (mut next, mut best) = (1, None::<(u64, u64)>);
    loop {
        let (from, best_seq) =
            (next.to_string(), best.map_or(String::new(), |(_, s)| s.to_string()));
        let args = [seq.as_bytes(), from.as_bytes(), best_seq.as_bytes()];
        let reply = store.client.run(&FIND_SEQ, &[&name], &args).await?;
        let Some(reply) = reply.read::<Option<FindSeqReply>>()? else { return Ok(None) };
        let (now, offset, found, after) = reply;
        best = found.map(|seq| (offset, seq)).or(best);
        let fields: Vec<_> = now.split(' ').collect();
        let [last, _, _, _, _, first, epochs] = fields[..] else { return Err(corrupt_job()) };
        let (Ok(last), Ok(first)) = (last.parse::<u64>(), first.parse()) else {
            return Err(corrupt_job());
        };
        if after > last {
            let epochs: Epochs = epochs.parse().map_err(|_| corrupt_job())?;
            let found = |(offset, seq)| FoundSeq { seq, at: cursor(&epochs, offset) };
            return Ok(Some(SeqSearch { first, found: best.map(found) }));
        }
        if after <= next {
            return Err(corrupt_job());
        }
        next = after;
    }
}
