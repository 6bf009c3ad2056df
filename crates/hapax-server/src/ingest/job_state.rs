//! `{domain}:state:{job_id}`, which other programs read: the event with the highest seq. It is
//! repaired if a worker's own script overwrites it with a lower one.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use hapax::bus::NewEvent;
use hapax::log::{Appended, Cursor};

/// How many jobs are cached; the log is read for others.
const MAX_JOBS: usize = 10_000;

/// Sets a state unless the stored one is higher, and renews the TTL of an equal one, because the
/// workers set a shorter TTL than the log's retention. A stored value that is no event is replaced.
pub(super) const SET_STATE_SCRIPT: &str = "\
local current = redis.pcall('GET', KEYS[1])
if type(current) ~= 'string' then current = '' end
local known, event = pcall(cjson.decode, current)
local seq = known and type(event) == 'table' and tonumber(event.seq)
if seq and seq > tonumber(ARGV[2]) then return 0 end
if seq and seq == tonumber(ARGV[2]) then return redis.call('PEXPIRE', KEYS[1], ARGV[3]) end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[3])
return 1
";

/// The state that a job's key should have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct IngestedState {
    pub(super) seq: u64,
    pub(super) json: Vec<u8>,
}

pub(super) type JobName = (String, String);

/// The states of jobs whose every event passed through this process, so that the log need not be read.
#[derive(Default)]
pub(super) struct JobStateCache(Mutex<HashMap<JobName, (Cursor, IngestedState)>>);

impl JobStateCache {
    /// The job's state after this event; `None` if only the log knows it, because another process
    /// published some of the job's events.
    pub(super) fn after(
        &self,
        event: &NewEvent,
        json: &[u8],
        answer: &Appended,
    ) -> Option<IngestedState> {
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
            _ => IngestedState { seq: event.seq, json: json.to_vec() },
        };
        if jobs.len() >= MAX_JOBS {
            jobs.clear();
        }
        jobs.insert(job, (at, state.clone()));
        Some(state)
    }

    fn jobs(&self) -> MutexGuard<'_, HashMap<JobName, (Cursor, IngestedState)>> {
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

    fn after(states: &JobStateCache, seq: u64, answer: &Appended) -> Option<u64> {
        let event = NewEvent::new("scan", "job", "vision", seq);
        states.after(&event, b"{}", answer).map(|state| state.seq)
    }

    #[test]
    fn state_cache_knows_highest_seq_of_unbroken_jobs() {
        let states = JobStateCache::default();
        assert_eq!(after(&states, 10, &published(1)), Some(10));
        assert_eq!(after(&states, 20, &published(2)), Some(20));
        assert_eq!(after(&states, 11, &published(3)), Some(20), "a late one");
        assert_eq!(after(&states, 30, &published(5)), None, "somebody else published the fourth");
        assert_eq!(after(&states, 31, &published(6)), None);
        let again = Appended::Duplicate(Cursor { epoch: Epoch(1), offset: 1 });
        assert_eq!(after(&states, 10, &again), None);
    }
}
