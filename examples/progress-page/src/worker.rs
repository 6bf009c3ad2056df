//! The work behind the bar: five stages, told to hapax step by step.

use std::thread;

use serde_json::json;

use crate::PageSettings;

/// What the jobs are about.
pub(crate) const DOMAIN: &str = "scan";

/// Stage, seq and percent of each step. Every stage has ten seqs of its own (10–19, 20–29, …), and
/// `done` at 51 closes the job.
const STEPS: [(&str, u64, u64); 7] = [
    ("vision", 10, 10),
    ("vision", 11, 25),
    ("rule", 20, 40),
    ("answer", 30, 55),
    ("answer", 31, 75),
    ("reward", 40, 90),
    ("done", 51, 100),
];

/// Does a job from its first step on. The same job a second time, also after a crash in the middle,
/// publishes the same events, which hapax takes for what they are: duplicates up to where the first
/// one came, and news from there on.
#[expect(clippy::print_stderr, reason = "the log of a small example")]
pub(crate) fn run(settings: &PageSettings, job: &str) {
    for (stage, seq, percent) in STEPS {
        thread::sleep(settings.pace);
        let event = json!({
            "domain": DOMAIN,
            "job_id": job,
            "stage": stage,
            "seq": seq,
            "data": { "percent": percent },
        });
        if let Err(error) = settings.hapax.publish(&event) {
            eprintln!("a job stands still at {stage} {seq}: {error:#}");
            return;
        }
    }
}
