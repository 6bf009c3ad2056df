//! What is published: jobs as the usual design has them, ten events each.

use hapax_core::Token;
use hapax_core::bus::NewEvent;
use serde_json::json;

const DOMAIN: &str = "scan";
const STAGES: [&str; 5] = ["vision", "rule", "answer", "reward", "done"];
/// Each stage begins and ends.
const EACH: u64 = 2;
const EVENTS: u64 = EACH * STAGES.len() as u64;
/// What makes the event about 200 bytes long.
const NOTE: &str = "one of two photos was looked at, three labels found";

/// One event of a job that no other run has. The last one, `done` at 51, closes it.
pub(super) struct Publish {
    pub(super) job: String,
    pub(super) stage: &'static str,
    pub(super) seq: u64,
}

pub(super) struct Events {
    run: String,
}

impl Events {
    pub(super) fn fresh() -> Self {
        Self { run: Token::random().as_str()[..12].to_owned() }
    }

    /// The event of a task's nth turn: one job after the other.
    pub(super) fn event(&self, task: usize, turn: u64) -> Publish {
        let (job, nth) = (turn / EVENTS, turn % EVENTS);
        let stage = STAGES[(nth / EACH) as usize];
        let seq = 10 * (nth / EACH + 1) + nth % EACH;
        Publish { job: format!("{}-{task}-{job}", self.run), stage, seq }
    }
}

impl Publish {
    /// As hapax takes it.
    pub(super) fn for_hapax(&self) -> NewEvent {
        NewEvent::new(DOMAIN, &*self.job, self.stage, self.seq)
            .data(json!({"status": "running", "note": NOTE}))
    }

    /// As the usual design's worker writes it.
    pub(super) fn for_raw(&self) -> String {
        json!({
            "job_id": self.job,
            "domain": DOMAIN,
            "stage": self.stage,
            "seq": self.seq,
            "data": {"status": "running", "note": NOTE},
            "timestamp": "2026-01-01T00:00:00.000000",
        })
        .to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_ends_with_done_at_51_and_the_next_begins() {
        let events = Events::fresh();
        let last = events.event(3, EVENTS - 1);
        assert_eq!((last.stage, last.seq), ("done", 51));
        let next = events.event(3, EVENTS);
        assert_eq!((next.stage, next.seq), ("vision", 10));
        assert_ne!(last.job, next.job);
    }
}
