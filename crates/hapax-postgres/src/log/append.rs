//! Appends, many in one statement.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use hapax_core::Key;
use hapax_core::log::{Appended, Cursor, Epoch, LogEvent, LogRetention};
use tokio_postgres::types::Type;

use crate::batch::Work;
use crate::connect::session::{Session, Sql};
use crate::error::{Failure, corrupt};
use crate::row;
use crate::wake::Wakes;

/// What an event weighs beside its payload: a thousand or so go into one statement.
const WEIGHT: usize = 4 << 10;

const APPEND: Sql = Sql {
    text: "SELECT * FROM hapax_append($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)",
    types: &[
        Type::TEXT_ARRAY,
        Type::TEXT_ARRAY,
        Type::TEXT_ARRAY,
        Type::INT4_ARRAY,
        Type::INT8_ARRAY,
        Type::TEXT_ARRAY,
        Type::INT8_ARRAY,
        Type::BYTEA_ARRAY,
        Type::BYTEA_ARRAY,
        Type::BOOL_ARRAY,
        Type::INT8_ARRAY,
        Type::INT8_ARRAY,
    ],
};

/// Events of one call for one partition.
pub(crate) struct Sent {
    pub(crate) partition: u16,
    pub(crate) events: Vec<LogEvent>,
    pub(crate) keep: LogRetention,
}

pub(crate) struct Appending;

impl Work for Appending {
    type Item = Sent;
    type Answer = Vec<Appended>;

    /// Appends to one partition wait for each other anyway.
    fn lane(item: &Sent) -> u64 {
        item.partition.into()
    }

    fn weight(item: &Sent) -> usize {
        item.events.iter().map(|event| event.payload.len() + WEIGHT).sum()
    }

    async fn run<S: Session>(
        session: &mut S,
        items: &[Sent],
        answers: &mut [Option<Vec<Appended>>],
    ) -> Result<(), Failure> {
        let all: Vec<Asked<'_>> = items
            .iter()
            .flat_map(|item| item.events.iter().map(move |event| Asked { item, event }))
            .collect();
        let mut given: Vec<Option<Appended>> = vec![None; all.len()];
        loop {
            // An identity goes once into a statement; its twins are answered from its own answer.
            let mut firsts: HashMap<(&Key, &Arc<str>, u64), usize> = HashMap::new();
            let open: Vec<usize> = (0..all.len()).filter(|i| given[*i].is_none()).collect();
            if open.is_empty() {
                break;
            }
            let is_first = |i: &usize| *firsts.entry(all[*i].identity()).or_insert(*i) == *i;
            let (round, twins): (Vec<usize>, Vec<usize>) = open.into_iter().partition(is_first);
            let asked: Vec<&Asked<'_>> = round.iter().map(|i| &all[*i]).collect();
            for (i, answer) in round.into_iter().zip(append(session, &asked).await?) {
                given[i] = Some(answer);
            }
            for i in twins {
                let first = firsts[&all[i].identity()];
                let same = all[i].event.fingerprint == all[first].event.fingerprint;
                given[i] = given[first].and_then(|answer| twin(answer, same));
            }
        }
        let mut given = given.into_iter().flatten();
        for (item, answer) in items.iter().zip(answers) {
            *answer = Some(given.by_ref().take(item.events.len()).collect());
        }
        Ok(())
    }

    fn after(wakes: &Wakes, item: &Sent, answer: &Vec<Appended>) {
        let mut told = HashSet::new();
        for (event, answer) in item.events.iter().zip(answer) {
            if matches!(answer, Appended::Published(_)) && told.insert(&event.job) {
                wakes.wake(&event.job);
            }
        }
    }
}

/// The answer to an event whose identity was answered just before; none where that does not tell
/// what is stored.
fn twin(first: Appended, same: bool) -> Option<Appended> {
    match first {
        Appended::Published(at) | Appended::Duplicate(at) if same => Some(Appended::Duplicate(at)),
        Appended::Published(_) | Appended::Duplicate(_) => Some(Appended::Conflict),
        Appended::Conflict => same.then_some(Appended::Conflict),
        Appended::Closed => Some(Appended::Closed),
    }
}

struct Asked<'a> {
    item: &'a Sent,
    event: &'a LogEvent,
}

impl<'a> Asked<'a> {
    fn identity(&self) -> (&'a Key, &'a Arc<str>, u64) {
        (&self.event.job, &self.event.stage, self.event.seq)
    }
}

async fn append<S: Session>(
    session: &mut S,
    asked: &[&Asked<'_>],
) -> Result<Vec<Appended>, Failure> {
    let events = || asked.iter().map(|asked| asked.event);
    let tenants: Vec<&str> = events().map(|event| event.job.tenant().as_str()).collect();
    let domains: Vec<&str> = events().map(|event| event.job.scope()).collect();
    let names: Vec<&str> = events().map(|event| event.job.name()).collect();
    let partitions: Vec<i32> = asked.iter().map(|asked| asked.item.partition.into()).collect();
    let mut firsts: HashMap<&Key, i64> = HashMap::new();
    let job_firsts: Vec<i64> =
        events().zip(1..).map(|(event, at)| *firsts.entry(&event.job).or_insert(at)).collect();
    let stages: Vec<&str> = events().map(|event| &*event.stage).collect();
    let seqs: Vec<i64> = events().map(|event| row::signed(event.seq)).collect();
    let fingerprints: Vec<&[u8]> =
        events().map(|event| event.fingerprint.as_str().as_bytes()).collect();
    let payloads: Vec<&[u8]> = events().map(|event| &event.payload[..]).collect();
    let closings: Vec<bool> = events().map(|event| event.closes).collect();
    let lifetimes: Vec<i64> =
        asked.iter().map(|asked| row::duration(asked.item.keep.retention)).collect();
    let keeps: Vec<i64> =
        asked.iter().map(|asked| row::signed(asked.item.keep.max_entries.max(1))).collect();
    let rows = session
        .rows(
            &APPEND,
            &[
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
                &lifetimes,
                &keeps,
            ],
        )
        .await?;
    let answer = rows.first().ok_or_else(|| corrupt("an empty answer"))?;
    let outcomes: Vec<i16> = answer.try_get("outcomes")?;
    let epochs: Vec<i64> = answer.try_get("entry_epochs")?;
    let places: Vec<i64> = answer.try_get("places")?;
    if outcomes.len() != asked.len() {
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
