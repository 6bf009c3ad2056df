//! `hapax-torture load` and `soak` with few clients for a few seconds: nothing acknowledged is lost, and no server dies or
//! takes too much memory. How fast it is depends on what else runs, so that is not checked.

use std::path::PathBuf;
use std::time::Duration;

use hapax_torture::{LoadConfig, LoadFailure, SoakConfig, StoreKind, run_load, run_soak};

#[test]
fn torture_load_loses_nothing_acknowledged() {
    let config = LoadConfig {
        hapax: PathBuf::from(env!("CARGO_BIN_EXE_hapax")),
        store: StoreKind::Sqlite,
        seconds: 1,
        slow_clients: 20,
        streams: 20,
        flood: 20,
        store_calls: None,
        program: None,
    };
    let report = run_load(&config, |_| {}).expect("everything starts and ends");
    let is_about_speed = |failure: &&LoadFailure| matches!(failure, LoadFailure::NotRecovered(_));
    let broken: Vec<_> =
        report.failures.iter().filter(|failure| !is_about_speed(failure)).collect();
    assert!(broken.is_empty(), "{broken:?}\n{}", report.table());
    assert!(report.acknowledged() > 0, "{}", report.table());
}

#[test]
fn torture_soak_measures_every_process() {
    let config = SoakConfig {
        hapax: PathBuf::from(env!("CARGO_BIN_EXE_hapax")),
        store: StoreKind::Redis,
        duration: Duration::from_secs(5),
        rate: 40,
    };
    let report = run_soak(&config, |_| {}).expect("everything starts and ends");
    assert!(report.ended().is_empty(), "{}", report.table());
    assert!(report.served() > 0, "{}", report.table());
    let csv = report.csv();
    for curve in [
        "serve-1,resident memory",
        "proxy,open files",
        "relay,resident memory",
        "store,resident memory",
        "store,size of the data",
    ] {
        assert!(csv.contains(curve), "{curve} is missing in\n{csv}");
    }
    assert!(report.picture().contains("<polyline"));
}
