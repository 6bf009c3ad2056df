//! Appending events, many calls in one statement.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use hapax_core::Key;
use hapax_core::log::{Appended, Cursor, Epoch, LogEvent, LogRetention};

use crate::batch::BatchOperation;
use crate::connect::session::{Params, SqlSession};
use crate::error::{SqlResult, corrupt};
use crate::row;
use crate::wake::WakeNotifier;

/// The weight of an event in a batch, beside its payload: about a thousand go into one statement.
const EVENT_BYTES: usize = 4 << 10;

const APPEND: &str =
    "SELECT * FROM hapax_append($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)";

/// The events of one call for one partition.
pub(crate) struct AppendCall {
    pub(crate) partition: u16,
    pub(crate) events: Vec<LogEvent>,
    pub(crate) keep: LogRetention,
}

pub(crate) struct AppendBatch;

impl BatchOperation for AppendBatch {
    type Item = AppendCall;
    type Answer = Vec<Appended>;

    /// Appends to one partition wait for each other anyway.
    fn conflict_key(item: &AppendCall) -> u64 {
        item.partition.into()
    }

    fn bytes(item: &AppendCall) -> usize {
        item.events.iter().map(|event| event.payload.len() + EVENT_BYTES).sum()
    }

    async fn run<S: SqlSession>(
        session: &mut S,
        items: &[AppendCall],
        answers: &mut [Option<Vec<Appended>>],
    ) -> SqlResult<()> {
        let all: Vec<PartitionedEvent<'_>> = items
            .iter()
            .flat_map(|item| item.events.iter().map(move |event| PartitionedEvent { item, event }))
            .collect();
        let mut given: Vec<Option<Appended>> = vec![None; all.len()];
        loop {
            // An identity goes into a statement once; repeats are answered from its answer.
            let mut firsts: HashMap<(&Key, &Arc<str>, u64), usize> = HashMap::new();
            let open: Vec<usize> = (0..all.len()).filter(|i| given[*i].is_none()).collect();
            if open.is_empty() {
                break;
            }
            let is_first = |i: &usize| *firsts.entry(all[*i].identity()).or_insert(*i) == *i;
            let (round, repeats): (Vec<usize>, Vec<usize>) = open.into_iter().partition(is_first);
            let batch: Vec<&PartitionedEvent<'_>> = round.iter().map(|i| &all[*i]).collect();
            for (i, answer) in round.into_iter().zip(append(session, &batch).await?) {
                given[i] = Some(answer);
            }
            for i in repeats {
                let first = firsts[&all[i].identity()];
                let same = all[i].event.fingerprint == all[first].event.fingerprint;
                given[i] = given[first].and_then(|answer| repeat_answer(answer, same));
            }
        }
        let mut given = given.into_iter().flatten();
        for (item, answer) in items.iter().zip(answers) {
            *answer = Some(given.by_ref().take(item.events.len()).collect());
        }
        Ok(())
    }

    fn after_commit(wakes: &WakeNotifier, item: &AppendCall, answer: &Vec<Appended>) {
        let mut told = HashSet::new();
        for (event, answer) in item.events.iter().zip(answer) {
            if matches!(answer, Appended::Published(_)) && told.insert(&event.job) {
                wakes.wake(&event.job);
            }
        }
    }
}

/// The answer to an event whose identity was answered just before; `None` if that answer does not
/// say what is stored.
fn repeat_answer(first: Appended, same: bool) -> Option<Appended> {
    match first {
        Appended::Published(at) | Appended::Duplicate(at) if same => Some(Appended::Duplicate(at)),
        Appended::Published(_) | Appended::Duplicate(_) => Some(Appended::Conflict),
        Appended::Conflict => same.then_some(Appended::Conflict),
        Appended::Closed => Some(Appended::Closed),
    }
}

struct PartitionedEvent<'a> {
    item: &'a AppendCall,
    event: &'a LogEvent,
}

impl<'a> PartitionedEvent<'a> {
    fn identity(&self) -> (&'a Key, &'a Arc<str>, u64) {
        (&self.event.job, &self.event.stage, self.event.seq)
    }
}

async fn append<S: SqlSession>(
    session: &mut S,
    batch: &[&PartitionedEvent<'_>],
) -> SqlResult<Vec<Appended>> {
    let events = || batch.iter().map(|batch| batch.event);
    let tenants: Vec<&str> = events().map(|event| event.job.tenant().as_str()).collect();
    let domains: Vec<&str> = events().map(|event| event.job.scope()).collect();
    let names: Vec<&str> = events().map(|event| event.job.name()).collect();
    let partitions: Vec<i32> = batch.iter().map(|batch| batch.item.partition.into()).collect();
    let mut firsts: HashMap<&Key, i64> = HashMap::new();
    let job_firsts: Vec<i64> =
        events().zip(1..).map(|(event, at)| *firsts.entry(&event.job).or_insert(at)).collect();
    let stages: Vec<&str> = events().map(|event| &*event.stage).collect();
    let seqs: Vec<i64> = events().map(|event| row::to_i64(event.seq)).collect();
    let fingerprints: Vec<&[u8]> =
        events().map(|event| event.fingerprint.as_str().as_bytes()).collect();
    let payloads: Vec<&[u8]> = events().map(|event| &event.payload[..]).collect();
    let closings: Vec<bool> = events().map(|event| event.closes).collect();
    let retentions: Vec<i64> =
        batch.iter().map(|batch| row::duration(batch.item.keep.retention)).collect();
    let keeps: Vec<i64> =
        batch.iter().map(|batch| row::to_i64(batch.item.keep.max_entries.max(1))).collect();
    let params: Params<'_> = &[
        &tenants,
        &domains,
        &names,
        &partitions,
        &job_firsts,
        &stages,
        &seqs,
        &fingerprints,
        &payloads,
        &closings,
        &retentions,
        &keeps,
    ];
    let rows = session.rows(APPEND, params).await?;
    let answer = row::only(&rows)?;
    let outcomes: Vec<i16> = answer.try_get("outcomes")?;
    let epochs: Vec<i64> = answer.try_get("entry_epochs")?;
    let places: Vec<i64> = answer.try_get("places")?;
    if outcomes.len() != batch.len() {
        return Err(corrupt("an answer that is too short").into());
    }
    let at = |i: usize| Cursor {
        epoch: Epoch(epochs[i].unsigned_abs()),
        offset: places[i].unsigned_abs(),
    };
    let told = |(i, outcome): (usize, &i16)| match outcome {
        0 => Appended::Published(at(i)),
        1 => Appended::Duplicate(at(i)),
        2 => Appended::Conflict,
        _ => Appended::Closed,
    };
    Ok(outcomes.iter().enumerate().map(told).collect())
}
