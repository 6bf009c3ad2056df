//! Tables in the documentation are those of the code.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

fn read(path: &str) -> String {
    fs::read_to_string(format!("{ROOT}/{path}")).unwrap()
}

/// A row for each metric that a file declares: its name, and what its comment says.
fn metrics(source: &str) -> Vec<String> {
    let (mut rows, mut said) = (Vec::new(), Vec::new());
    for line in source.lines() {
        let name = line.strip_prefix("pub const ").and_then(|rest| rest.split_once(": &str = \""));
        match (line.strip_prefix("/// "), name) {
            (Some(text), _) => said.push(text),
            (None, Some((_, name))) => {
                let name = name.trim_end_matches("\";");
                rows.push(format!("| `{name}` | {} |\n", said.join(" ")));
                said.clear();
            }
            (None, None) => said.clear(),
        }
    }
    rows
}

#[test]
fn the_page_about_the_server_has_every_metric_as_it_is() {
    let rows = metrics(&read("crates/hapax-core/src/meters.rs"));
    assert!(rows.len() > 10, "{rows:?}");
    let table = format!("| metric | what it counts or measures |\n|---|---|\n{}", rows.concat());
    let page = read("docs/server.md");
    assert!(page.contains(&table), "docs/server.md should have this table:\n\n{table}");
}

#[test]
fn every_link_between_pages_leads_somewhere() {
    let mut pages: Vec<_> = fs::read_dir(format!("{ROOT}/docs"))
        .unwrap()
        .map(|entry| format!("docs/{}", entry.unwrap().file_name().to_string_lossy()))
        .filter(|page| page.ends_with(".md"))
        .collect();
    let others = ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md"];
    pages.extend(others.map(str::to_owned));
    let examples = ["orders", "behind-fastapi", "progress-page", "order-flow"];
    pages.extend(examples.map(|example| format!("examples/{example}/README.md")));
    for page in pages {
        let folder = page.rsplit_once('/').map_or("", |(folder, _)| folder).to_owned();
        for link in read(&page).split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            let file = link.split('#').next().unwrap_or_default();
            if file.is_empty() || file.contains("://") || file.contains([' ', '`', '\n']) {
                continue;
            }
            let target = format!("{ROOT}/{folder}/{file}");
            assert!(fs::exists(&target).unwrap(), "{page} links {link}, which is not there");
        }
    }
}

/// The names of all functions `hole_…` beneath this folder.
fn holes(folder: &Path, found: &mut BTreeSet<String>) {
    for entry in fs::read_dir(folder).unwrap().map(Result::unwrap) {
        let path = entry.path();
        if path.is_dir() {
            holes(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = fs::read_to_string(&path).unwrap();
            let names = text.lines().filter_map(|line| {
                let (before, name) = line.split_once("fn hole_")?;
                matches!(before.trim(), "" | "async").then(|| name.split('(').next()).flatten()
            });
            found.extend(names.map(|name| format!("hole_{name}")));
        }
    }
}

#[test]
fn the_page_about_promises_names_every_test_of_a_hole_and_no_other() {
    let mut there = BTreeSet::new();
    holes(Path::new(&format!("{ROOT}/crates")), &mut there);
    let page = read("docs/promises.md");
    let words = page.split('`').filter(|word| word.starts_with("hole_"));
    let named: BTreeSet<_> = words.map(str::to_owned).collect();
    assert_eq!(named, there);
}

#[test]
fn the_page_about_the_outbox_names_every_flag_of_the_relay() {
    let help = Command::new(env!("CARGO_BIN_EXE_hapax")).args(["relay", "--help"]).output();
    let help = String::from_utf8(help.unwrap().stdout).unwrap();
    let page = read("docs/outbox.md");
    let flags = help.lines().filter_map(|line| line.trim_start().strip_prefix("--"));
    let flags: Vec<_> = flags.filter_map(|rest| rest.split([' ', '[']).next()).collect();
    assert!(flags.len() > 15, "{flags:?}");
    for flag in flags {
        assert!(page.contains(&format!("`--{flag}")), "docs/outbox.md says nothing of --{flag}");
    }
}
