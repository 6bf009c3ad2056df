//! edges → features → core ← stores: who may depend on whom, held by the build itself.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

use serde_json::Value;

/// For each crate, the crates of this workspace that it may depend on (tests and examples aside).
const MAY: &[(&str, &[&str])] = &[
    ("hapax-core", &[]),
    ("hapax-conformance", &["hapax-core"]),
    ("hapax-sqlite", &["hapax-core"]),
    ("hapax-redis", &["hapax-core"]),
    ("hapax-postgres", &["hapax-core"]),
    ("hapax", &["hapax-core", "hapax-sqlite", "hapax-redis", "hapax-postgres"]),
    ("hapax-http", &["hapax-core"]),
    ("hapax-http-client", &[]),
    ("hapax-line", &["hapax-core", "hapax-http-client"]),
    ("hapax-relay", &["hapax-core", "hapax-http-client"]),
    ("hapax-testkit", &[]),
    ("hapax-workload", &["hapax-core"]),
    (
        "hapax-server",
        &[
            "hapax",
            "hapax-http",
            "hapax-http-client",
            "hapax-line",
            "hapax-relay",
            "hapax-workload",
        ],
    ),
    (
        "hapax-bench",
        &[
            "hapax",
            "hapax-core",
            "hapax-http",
            "hapax-line",
            "hapax-relay",
            "hapax-sqlite",
            "hapax-redis",
            "hapax-postgres",
            "hapax-testkit",
            "hapax-workload",
        ],
    ),
];

/// What would be I/O, a store or an edge inside the core.
const NOT_IN_CORE: &[&str] = &["rusqlite", "redis", "tokio-postgres", "axum", "hyper", "reqwest"];

fn dependencies() -> BTreeMap<String, BTreeSet<String>> {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--format-version", "1", "--no-deps", "--offline"])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .expect("cargo metadata runs");
    let metadata: Value = serde_json::from_slice(&output.stdout).expect("cargo metadata is JSON");
    let packages = metadata["packages"].as_array().expect("packages");
    let name = |value: &Value| value["name"].as_str().expect("a name").to_owned();
    packages
        .iter()
        .map(|package| {
            let dependencies = package["dependencies"].as_array().expect("dependencies");
            let normal = dependencies.iter().filter(|d| d["kind"].is_null());
            (name(package), normal.map(name).collect())
        })
        .collect()
}

#[test]
fn the_arrow_holds() {
    let dependencies = dependencies();
    let ours: BTreeSet<_> = dependencies.keys().cloned().collect();
    for (package, needs) in &dependencies {
        let Some((_, may)) = MAY.iter().find(|(name, _)| name == package) else {
            assert!(package.starts_with("example-"), "{package} has no line in {}", file!());
            continue;
        };
        for needed in needs.intersection(&ours) {
            assert!(may.contains(&needed.as_str()), "{package} must not depend on {needed}");
        }
    }
}

#[test]
fn the_core_does_no_io() {
    let core = &dependencies()["hapax-core"];
    for banned in NOT_IN_CORE {
        assert!(!core.contains(*banned), "hapax-core must not depend on {banned}");
    }
}
