//! `{domain}:state:{job_id}`, which other programs read: kept at the event with the highest seq, also
//! where a worker's own script wrote a lower one after it.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use hapax::bus::NewEvent;
use hapax::log::{Appended, Cursor};

/// How many jobs are remembered; beyond that the log is asked.
const MOST: usize = 10_000;

/// Sets a state that is not lower than the one that is there, and renews the lifetime of an equal
/// one: the workers' is shorter than the log's. What is there may be anything, and is then replaced.
pub(super) const SCRIPT: &str = "\
local current = redis.pcall('GET', KEYS[1])
if type(current) ~= 'string' then current = '' end
local known, event = pcall(cjson.decode, current)
local seq = known and type(event) == 'table' and tonumber(event.seq)
if seq and seq > tonumber(ARGV[2]) then return 0 end
if seq and seq == tonumber(ARGV[2]) then return redis.call('PEXPIRE', KEYS[1], ARGV[3]) end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[3])
return 1
";

/// A job's state as it should be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct State {
    pub(super) seq: u64,
    pub(super) json: Vec<u8>,
}

/// Domain and job.
pub(super) type Job = (String, String);

/// What is known of jobs whose every event went through here: their state needs no question.
#[derive(Default)]
pub(super) struct States(Mutex<HashMap<Job, (Cursor, State)>>);

impl States {
    /// The job's state after this event; `None` where only the log knows it, as another router, or an
    /// earlier life of this one, published some of its events.
    pub(super) fn after(&self, event: &NewEvent, json: &[u8], answer: &Appended) -> Option<State> {
        let job = (event.domain.clone(), event.job_id.clone());
        let Appended::Published(at) = *answer else {
            self.jobs().remove(&job);
            return None;
        };
        let mut jobs = self.jobs();
        let follows = |last: Cursor| last.epoch == at.epoch && last.offset + 1 == at.offset;
        let before = match jobs.remove(&job) {
            _ if at.offset == 1 => None,
            Some((last, state)) if follows(last) => Some(state),
            _ => return None,
        };
        let state = match before {
            Some(higher) if higher.seq > event.seq => higher,
            _ => State { seq: event.seq, json: json.to_vec() },
        };
        if jobs.len() >= MOST {
            jobs.clear();
        }
        jobs.insert(job, (at, state.clone()));
        Some(state)
    }

    fn jobs(&self) -> MutexGuard<'_, HashMap<Job, (Cursor, State)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hapax::log::Epoch;

    fn published(offset: u64) -> Appended {
        Appended::Published(Cursor { epoch: Epoch(1), offset })
    }

    fn after(states: &States, seq: u64, answer: &Appended) -> Option<u64> {
        let event = NewEvent::new("scan", "job", "vision", seq);
        states.after(&event, b"{}", answer).map(|state| state.seq)
    }

    #[test]
    fn the_highest_seq_is_known_as_long_as_every_event_was_seen() {
        let states = States::default();
        assert_eq!(after(&states, 10, &published(1)), Some(10));
        assert_eq!(after(&states, 20, &published(2)), Some(20));
        assert_eq!(after(&states, 11, &published(3)), Some(20), "a late one");
        assert_eq!(after(&states, 30, &published(5)), None, "somebody else published the fourth");
        assert_eq!(after(&states, 31, &published(6)), None);
        let again = Appended::Duplicate(Cursor { epoch: Epoch(1), offset: 1 });
        assert_eq!(after(&states, 10, &again), None);
    }
}
