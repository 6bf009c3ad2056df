//! Reading and writing records, many in one statement.

use std::collections::HashSet;

use bytes::Bytes;
use hapax_core::{Key, Put, Record};

use super::{get, put_once, read_record, stored};
use crate::batch::BatchOperation;
use crate::connect::session::SqlSession;
use crate::error::{SqlResult, corrupt};
use crate::row::{self, KeyParams};

/// How often the puts of one statement are run again, when several of them are for one key or lost a race. What is
/// left then is tried again with others.
const MAX_ROUNDS: usize = 8;

const GET: &str = include_str!("../sql/get_many.sql");
const PUT: &str = include_str!("../sql/put_many.sql");

pub(crate) struct GetBatch;

impl BatchOperation for GetBatch {
    type Item = Key;
    type Answer = Option<Record>;

    fn conflict_key(key: &Key) -> u64 {
        key.digest()
    }

    async fn run<S: SqlSession>(
        session: &mut S,
        keys: &[Key],
        answers: &mut [Option<Option<Record>>],
    ) -> SqlResult<()> {
        if let ([key], [answer]) = (keys, &mut *answers) {
            *answer = Some(get(session, key).await?);
            return Ok(());
        }
        loop {
            let open: Vec<usize> = (0..keys.len()).filter(|i| answers[*i].is_none()).collect();
            if open.is_empty() {
                return Ok(());
            }
            let asked = KeyParams::many(open.iter().map(|i| &keys[*i]));
            let mut absent: HashSet<usize> = open.iter().copied().collect();
            for found in &session.rows(GET, &asked.columns()).await? {
                let call = *open.get(row::index(found)?).ok_or_else(|| corrupt("an ordinal"))?;
                absent.remove(&call);
                if found.try_get::<Option<&[u8]>>("value")?.is_some() {
                    answers[call] = Some(Some(read_record(found)?));
                }
            }
            absent.into_iter().for_each(|call| answers[call] = Some(None));
        }
    }
}

#[derive(Clone)]
pub(crate) struct PutCall {
    pub(crate) key: Key,
    pub(crate) value: Bytes,
    /// The time to live in milliseconds.
    pub(crate) ttl: Option<i64>,
    /// The version that the record must have; `None` for any.
    pub(crate) expected: Option<i64>,
}

/// `None` if another transaction holds the key's lock, or too many others write the same key.
pub(crate) type PutAnswer = Option<Put>;

pub(crate) struct PutBatch;

impl BatchOperation for PutBatch {
    type Item = PutCall;
    type Answer = PutAnswer;

    fn conflict_key(call: &PutCall) -> u64 {
        call.key.digest()
    }

    fn bytes(call: &PutCall) -> usize {
        call.value.len()
    }

    async fn run<S: SqlSession>(
        session: &mut S,
        calls: &[PutCall],
        answers: &mut [Option<PutAnswer>],
    ) -> SqlResult<()> {
        if let ([call], [answer]) = (calls, &mut *answers) {
            *answer = Some(put_once(session, call).await?);
            return Ok(());
        }
        for _ in 0..MAX_ROUNDS {
            let open: Vec<usize> = (0..calls.len()).filter(|i| answers[*i].is_none()).collect();
            if open.is_empty() {
                return Ok(());
            }
            put_many(session, calls, &open, answers).await?;
        }
        for answer in answers {
            answer.get_or_insert(None);
        }
        Ok(())
    }
}

/// Answers what one statement can. The other puts of a key that was written, and those that lost a race, stay
/// unanswered for the next round.
async fn put_many<S: SqlSession>(
    session: &mut S,
    calls: &[PutCall],
    open: &[usize],
    answers: &mut [Option<PutAnswer>],
) -> SqlResult<()> {
    let asked = || open.iter().map(|i| &calls[*i]);
    let keys = KeyParams::many(asked().map(|call| &call.key));
    let ttls: Vec<Option<i64>> = asked().map(|call| call.ttl).collect();
    let expected: Vec<Option<i64>> = asked().map(|call| call.expected).collect();
    let mut written = HashSet::new();
    let writes: Vec<bool> = asked().map(|call| written.insert(&call.key)).collect();
    let values: Vec<&[u8]> = asked().map(|call| &call.value[..]).collect();
    let params = keys.with(&[&ttls, &expected, &writes, &values]);
    for answer in &session.rows(PUT, &params).await? {
        let call = *open.get(row::index(answer)?).ok_or_else(|| corrupt("an ordinal"))?;
        let is_mine = answer.try_get::<bool>("mine")?;
        answers[call] = Some(if is_mine { Some(stored(answer)?) } else { None });
    }
    Ok(())
}
