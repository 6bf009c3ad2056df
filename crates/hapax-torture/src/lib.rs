//! Drives real `hapax` processes on real stores, breaks them, and checks what their clients saw.
//!
//! A run has clients ([`WorkloadKind`]), faults ([`FaultKind`]), a recorded history ([`history`]) and a checker
//! ([`check_history`]), which is a pure function. All choices come from one seed. `docs/torture.md` says what each workload
//! proves.

mod api_client;
mod check;
pub mod history;
mod installation;
mod nemesis;
mod power_cut_disk;
mod random;
mod recorder;
mod report;
mod run;
mod timeline;
mod workload;

pub use check::{Violation, check_history, count_faults, count_observations};
pub use installation::StoreKind;
pub use nemesis::FaultKind;
pub use random::SeededRandom;
pub use report::TortureReport;
pub use run::{TortureConfig, run_torture};
pub use timeline::draw_timeline;
pub use workload::WorkloadKind;
