//! Checks the structure of the workspace: the allowed dependencies between its crates (edges →
//! features → core ← stores), and the rules for names of types and tests.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

/// For each crate, the crates of this workspace that it may depend on (tests and examples aside).
const MAY: &[(&str, &str)] = &[
    ("hapax-core", ""),
    ("hapax-conformance", "hapax-core"),
    ("hapax-sqlite", "hapax-core"),
    ("hapax-redis", "hapax-core"),
    ("hapax-postgres", "hapax-core"),
    ("hapax", "hapax-core hapax-sqlite hapax-redis hapax-postgres"),
    ("hapax-http", "hapax-core"),
    ("hapax-http-client", ""),
    ("hapax-line", "hapax-core hapax-http-client"),
    ("hapax-relay", "hapax-core hapax-http-client"),
    ("hapax-testkit", ""),
    ("hapax-torture", "hapax hapax-line hapax-relay hapax-testkit"),
    ("hapax-workload", "hapax-core"),
    ("hapax-server", "hapax hapax-http hapax-http-client hapax-line hapax-relay hapax-workload"),
    (
        "hapax-bench",
        "hapax hapax-core hapax-http hapax-line hapax-relay hapax-sqlite hapax-redis hapax-postgres \
         hapax-testkit hapax-workload",
    ),
];

/// Crates for I/O, stores and edges, which the core must not depend on.
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
            let allowed = may.split_whitespace().any(|name| name == needed);
            assert!(allowed, "{package} must not depend on {needed}");
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

/// The lines of all Rust files beneath these folders of the workspace, each with its file.
fn source_lines(folders: &[&str]) -> Vec<(PathBuf, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut open: Vec<PathBuf> = folders.iter().map(|folder| root.join(folder)).collect();
    let mut lines = Vec::new();
    while let Some(path) = open.pop() {
        if path.is_dir() {
            let entries = fs::read_dir(&path).expect("a readable folder");
            open.extend(entries.map(|entry| entry.expect("a readable entry").path()));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = fs::read_to_string(&path).expect("a readable file");
            lines.extend(text.lines().map(|line| (path.clone(), line.trim().to_owned())));
        }
    }
    lines
}

/// The name of the type that a line declares, if other modules can see it and it is not the parameter of
/// a macro (`$name`).
fn visible_type(line: &str) -> Option<&str> {
    let rest = line
        .strip_prefix("pub ")
        .or_else(|| line.strip_prefix("pub(")?.split_once(") ").map(|(_, rest)| rest))?;
    let (keyword, rest) = rest.split_once(' ')?;
    let declares = ["struct", "enum", "trait"].contains(&keyword) && !rest.starts_with('$');
    declares.then(|| rest.split(|c: char| !c.is_alphanumeric() && c != '_').next()).flatten()
}

/// Traits that both SQL stores declare, for use inside a caller's transaction.
const SHARED_NAMES: [&str; 2] = ["HapaxTransaction", "Sealed"];

#[test]
fn type_names_are_unique_in_the_workspace() {
    let mut files = BTreeMap::<String, BTreeSet<PathBuf>>::new();
    for (file, line) in source_lines(&["crates", "bench/src", "examples"]) {
        let in_tests = file.components().any(|part| part.as_os_str() == "tests");
        if let Some(name) = visible_type(&line).filter(|_| !in_tests) {
            files.entry(name.to_owned()).or_default().insert(file);
        }
    }
    assert!(files.len() > 300, "{}", files.len());
    files.retain(|name, files| files.len() > 1 && !SHARED_NAMES.contains(&name.as_str()));
    assert!(files.is_empty(), "one name, several types: {files:#?}");
}

#[test]
fn test_names_are_short() {
    let lines = source_lines(&["crates", "bench", "examples"]);
    let is_test = |line: &str| line.starts_with("#[test]") || line.starts_with("#[tokio::test");
    let marked = lines.windows(2).filter(|pair| is_test(&pair[0].1));
    let names = marked.filter_map(|pair| pair[1].1.split_once("fn ")?.1.split('(').next());
    let long: Vec<_> = names.filter(|name| name.len() > 65 && !name.starts_with("hole_")).collect();
    assert!(long.is_empty(), "test names of more than 65 characters: {long:#?}");
}
