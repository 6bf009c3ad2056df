//! Drives real `hapax` processes on real stores, breaks them, and checks what their clients saw.
//!
//! A run has clients ([`WorkloadKind`]), faults ([`FaultKind`]), a recorded history ([`history`]) and a checker
//! ([`check_history`]), which is a pure function. All choices come from one seed. `docs/torture.md` says what each workload
//! proves.

mod api_client;
mod ask_again;
mod check;
pub mod history;
mod installation;
mod load;
mod measured_store;
mod nemesis;
mod power_cut_disk;
mod process_metrics;
mod random;
mod recorder;
mod report;
mod run;
mod soak;
mod timeline;
mod workload;

pub use check::{Losses, Violation, check_history, count_faults, count_losses, count_observations};
pub use installation::StoreKind;
pub use load::{LoadConfig, LoadFailure, LoadReport, run_generator_process, run_load};
pub use nemesis::FaultKind;
pub use random::SeededRandom;
pub use report::TortureReport;
pub use run::{TortureConfig, run_torture};
pub use soak::{SoakConfig, SoakReport, run_soak};
pub use timeline::draw_timeline;
pub use workload::WorkloadKind;
