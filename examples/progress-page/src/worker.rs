//! The simulated job: five stages, each step published to hapax as an event.

use std::thread;

use serde_json::json;

use crate::PageSettings;

/// The domain of all jobs of this example.
pub(crate) const DOMAIN: &str = "scan";

/// Stage, seq and percent of each step. Each stage has a range of ten seqs (10–19, 20–29, …), and
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

/// Runs a job from its first step. Running the same job again, for example after a crash, publishes
/// the same events: hapax drops those that it already has as duplicates and stores the rest.
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
