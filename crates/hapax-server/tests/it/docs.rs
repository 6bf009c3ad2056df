//! Tables in the documentation match the code.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use crate::cli_support::{hapax, run};

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

pub(crate) fn read(path: &str) -> String {
    fs::read_to_string(format!("{ROOT}/{path}")).unwrap()
}

/// A row for each metric that a file declares: its name, and what its comment says.
fn metrics(source: &str) -> Vec<String> {
    let (mut rows, mut said) = (Vec::new(), Vec::new());
    for line in source.lines().map(str::trim) {
        let name = line.split_once(" = \"").and_then(|(_, rest)| rest.strip_suffix("\";"));
        match (line.strip_prefix("/// "), name) {
            (Some(text), _) => said.push(text),
            (None, Some(name)) => {
                rows.push(format!("| `{name}` | {} |\n", said.join(" ")));
                said.clear();
            }
            (None, None) => said.clear(),
        }
    }
    rows
}

#[test]
fn server_page_lists_every_metric() {
    let rows = metrics(&read("crates/hapax-core/src/metric_names.rs"));
    assert!(rows.len() > 10, "{rows:?}");
    let table = format!("| metric | what it counts or measures |\n|---|---|\n{}", rows.concat());
    let page = read("docs/server.md");
    assert!(page.contains(&table), "docs/server.md should have this table:\n\n{table}");
}

#[test]
fn docs_links_lead_somewhere() {
    let docs = fs::read_dir(format!("{ROOT}/docs")).unwrap();
    let docs = docs.map(|entry| format!("docs/{}", entry.unwrap().file_name().to_string_lossy()));
    let mut pages: Vec<_> = docs.filter(|page| page.ends_with(".md")).collect();
    let others = ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md"];
    pages.extend(others.map(str::to_owned));
    pages.push("deploy/README.md".to_owned());
    let examples = fs::read_dir(format!("{ROOT}/examples")).unwrap();
    let examples = examples.map(|entry| {
        format!("examples/{}/README.md", entry.unwrap().file_name().to_string_lossy())
    });
    pages.extend(examples.filter(|page| fs::exists(format!("{ROOT}/{page}")).unwrap()));
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

/// Every test beneath this folder, as `path: name`.
fn tests(folder: &Path, found: &mut BTreeSet<String>) {
    for entry in fs::read_dir(folder).unwrap().map(Result::unwrap) {
        let path = entry.path();
        if path.is_dir() {
            tests(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = fs::read_to_string(&path).unwrap();
            let lines: Vec<_> = text.lines().map(str::trim).collect();
            let attributes = ["#[test]", "#[tokio::test"];
            let marked = lines
                .windows(2)
                .filter(|pair| attributes.iter().any(|attribute| pair[0].starts_with(attribute)));
            let names = marked.filter_map(|pair| pair[1].split_once("fn ")?.1.split('(').next());
            // The rows of `tests_on_stores!`: `name on store,`.
            let rows = lines.iter().filter_map(|line| line.strip_suffix(',')?.split_once(" on "));
            let names = names.chain(rows.map(|(name, _)| name));
            found.extend(names.map(|name| format!("{}: {name}", path.display())));
        }
    }
}

fn all_tests() -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for folder in ["crates", "examples"] {
        tests(Path::new(&format!("{ROOT}/{folder}")), &mut found);
    }
    found
}

#[test]
fn promises_page_names_exactly_the_hole_tests() {
    let tests = all_tests();
    let names = tests.iter().filter_map(|test| test.rsplit_once(": ")).map(|(_, name)| name);
    let there: BTreeSet<_> = names.filter(|name| name.starts_with("hole_")).collect();
    let page = read("docs/promises.md");
    let named: BTreeSet<_> = page.split('`').filter(|word| word.starts_with("hole_")).collect();
    assert_eq!(named, there);
    let rows = table(&page, "| | the usual design |");
    assert_eq!(rows.len(), 26);
    for (row, hole) in rows.iter().zip(1..) {
        let (test, named) = (format!("hole_{hole}_"), code(&row[3]).collect::<Vec<_>>());
        let is_tested = !named.is_empty() && named.iter().all(|name| name.starts_with(&test));
        assert!(row[0] == hole.to_string() && is_tested, "row {hole}: {row:?}");
    }
}

/// The rows of the table whose header begins so, without the header, each cut into cells.
fn table(page: &str, header: &str) -> Vec<Vec<String>> {
    let rows = page.lines().skip_while(|line| !line.starts_with(header)).skip(2);
    let rows = rows.take_while(|line| line.starts_with('|'));
    let cells =
        |row: &str| row.trim_matches('|').split(" | ").map(|cell| cell.trim().to_owned()).collect();
    rows.map(cells).collect()
}

/// The first cell of each row.
fn firsts(rows: &[Vec<String>]) -> Vec<&String> {
    rows.iter().map(|row| &row[0]).collect()
}

/// The words of a text that are written as code.
fn code(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

/// The laws that the conformance suite runs on every store.
fn all_laws() -> BTreeSet<String> {
    fn laws(folder: &Path, found: &mut BTreeSet<String>) {
        for path in fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
            if path.is_dir() {
                laws(&path, found);
                continue;
            }
            let text = fs::read_to_string(&path).unwrap();
            for list in text.split("laws![").skip(1).filter_map(|rest| rest.split(']').next()) {
                let names = list.split([',', ';']).map(str::trim);
                found.extend(names.filter(|name| name.contains('_')).map(str::to_owned));
            }
        }
    }
    let mut found = BTreeSet::new();
    laws(Path::new(&format!("{ROOT}/crates/hapax-conformance/src")), &mut found);
    found
}

/// The names of all tests and laws.
fn tests_and_laws() -> BTreeSet<String> {
    let (tests, mut found) = (all_tests(), all_laws());
    found.extend(tests.iter().filter_map(|test| Some(test.rsplit_once(": ")?.1.to_owned())));
    found
}

#[test]
fn promises_page_names_a_test_for_every_line() {
    let (page, tests) = (read("docs/promises.md"), tests_and_laws());
    let workloads: Vec<_> = hapax_torture::WorkloadKind::ALL.map(|kind| kind.name()).into();
    let exists = |name: &str| assert!(tests.contains(name), "there is no test or law {name}");
    let promises = table(&page, "| where the effect is |");
    let named = table(&page, "| promise on |");
    assert!(promises.len() > 10);
    assert_eq!(firsts(&promises), firsts(&named), "a row of tests for each promise");
    for row in &named {
        code(&row[1]).for_each(|name| assert!(workloads.contains(&name), "no workload {name}"));
        code(&row[2]).for_each(exists);
        assert!(code(&row[2]).next().is_some(), "no test of: {}", row[0]);
    }
    let by_sql = table(&page, "| promise | test |");
    assert!(by_sql.len() > 5);
    for row in by_sql {
        code(&row[1]).for_each(exists);
        assert!(code(&row[1]).next().is_some(), "no test of: {}", row[0]);
    }
}

#[test]
fn promises_page_names_a_test_of_each_store() {
    let page = read("docs/promises.md");
    let (promises, named) = (table(&page, "| | SQLite |"), table(&page, "| tests of |"));
    assert!(promises.len() > 10);
    assert_eq!(firsts(&promises), firsts(&named), "a row of tests for each line of the stores");
    let (tests, laws, names) = (all_tests(), all_laws(), tests_and_laws());
    // A test of a store is in its crate, or has its name.
    let is_of = |store: &str, name: &str| {
        let is_named = |test: &&String| test.rsplit_once(": ").is_some_and(|(_, it)| it == name);
        let mut named = tests.iter().filter(is_named).filter_map(|test| test.strip_prefix(ROOT));
        laws.contains(name) || named.any(|test| test.contains(store))
    };
    for (promised, named) in promises.iter().zip(&named) {
        assert_eq!((promised.len(), named.len()), (4, 4), "{promised:?}");
        for (at, store) in [(1, "sqlite"), (2, "postgres"), (3, "redis")] {
            for name in code(&named[at]) {
                assert!(names.contains(name), "there is no test or law {name}");
            }
            let is_promise = !["–", "no"].contains(&promised[at].split(';').next().unwrap());
            let is_tested = code(&named[at]).any(|name| is_of(store, name));
            assert_eq!(is_tested, is_promise, "{}, {store}: {}", promised[0], named[at]);
        }
    }
}

#[test]
fn topologies_page_names_existing_tests() {
    let (page, tests) = (read("docs/topologies.md"), tests_and_laws());
    let rows = page.lines().filter(|line| line.starts_with('|')).flat_map(code);
    let named: Vec<_> = rows.filter(|word| word.matches('_').count() > 2).collect();
    assert!(named.len() > 30, "{named:?}");
    for name in named {
        assert!(tests.contains(name), "there is no test {name}");
    }
}

#[test]
fn line_acceptance_page_names_existing_tests_and_checklists() {
    let tests = all_tests();
    let page = read("docs/line-acceptance.md");
    let named: Vec<_> = page.split('`').filter(|word| word.contains(".rs: ")).collect();
    assert!(named.len() > 100, "{}", named.len());
    let is = |test: &str, named: &str| test.ends_with(&format!("/{named}"));
    for named in &named {
        assert!(tests.iter().any(|test| is(test, named)), "there is no test {named}");
    }
    let checklists = ["/tests/it/line/checklist.rs: ", "/tests/it/last_transaction.rs: "];
    for test in tests.iter().filter(|test| checklists.iter().any(|file| test.contains(file))) {
        assert!(named.iter().any(|named| is(test, named)), "{test} is not on the page");
    }
}

#[test]
fn outbox_page_names_every_relay_flag() {
    let help = run(hapax().args(["relay", "--help"])).ok();
    let page = read("docs/outbox.md");
    let flags = help.lines().filter_map(|line| line.trim_start().strip_prefix("--"));
    let flags: Vec<_> = flags.filter_map(|rest| rest.split([' ', '[']).next()).collect();
    assert!(flags.len() > 15, "{flags:?}");
    for flag in flags {
        assert!(page.contains(&format!("`--{flag}")), "docs/outbox.md says nothing of --{flag}");
    }
}

#[test]
fn readme_promises_are_rows_of_the_promises_page() {
    let (readme, page) = (read("README.md"), read("docs/promises.md"));
    let section = readme.split("## What is promised").nth(1).unwrap();
    let rows: Vec<_> = section.lines().skip(1).skip_while(|line| line.is_empty()).collect();
    let rows: Vec<_> = rows.into_iter().take_while(|line| line.starts_with('|')).collect();
    assert!(rows.len() > 6, "{rows:?}");
    for row in rows {
        assert!(page.lines().any(|line| line == row), "docs/promises.md has no such row: {row}");
    }
}

#[test]
fn fault_43_every_rust_block_is_compiled() {
    let docs = fs::read_dir(format!("{ROOT}/docs")).unwrap();
    let docs = docs.map(|entry| format!("docs/{}", entry.unwrap().file_name().to_string_lossy()));
    let pages = docs.filter(|page| page.ends_with(".md")).chain(["README.md".to_owned()]);
    let crates = ["hapax", "hapax-http", "hapax-line"];
    let sources = crates.map(|name| read(&format!("crates/{name}/src/lib.rs"))).concat();
    let mut compiled = 0;
    for page in pages.filter(|page| read(page).contains("```rust")) {
        assert!(!read(&page).contains("```rust,"), "{page} has a block that is not run");
        let included = format!("{}\")]", page.trim_start_matches("docs/"));
        assert!(sources.contains(&included), "no crate compiles the blocks of {page}");
        compiled += 1;
    }
    assert!(compiled > 7, "{compiled} pages");
}

#[test]
fn fault_43_front_page_can_be_copied() {
    let source = read("crates/hapax/src/lib.rs");
    let page: Vec<_> = source.lines().map_while(|line| line.strip_prefix("//!")).collect();
    assert!(page.iter().any(|line| line.contains("[dependencies]")));
    let hidden: Vec<_> = page.iter().filter(|line| line.starts_with(" # ")).collect();
    assert!(hidden.is_empty(), "a reader cannot see these lines: {hidden:?}");
}

#[test]
fn fault_43_front_page_lists_every_feature() {
    let (page, manifest) = (read("crates/hapax/src/lib.rs"), read("crates/hapax/Cargo.toml"));
    let section = manifest.split("[features]").nth(1).unwrap().split("\n[").next().unwrap();
    let features = section.lines().filter_map(|line| line.split_once(" = ")).map(|(name, _)| name);
    for feature in features.filter(|name| *name != "default") {
        assert!(page.contains(&format!("`{feature}`")), "the front page says nothing of {feature}");
    }
}

#[test]
fn fault_44_readme_shows_the_duplicate_getting_the_answer() {
    let readme = read("README.md");
    let completed = readme.find("-X PUT localhost:8787/v1/commands").expect("completes a command");
    assert!(readme[completed..].contains(r#"{"state":"completed","status":201"#));
    assert!(readme[completed..].contains("Idempotent-Replayed"), "the proxy's duplicate");
    assert!(readme.contains("cargo install"), "how to install the command line tool");
    for line in readme.lines().filter(|line| line.contains("exactly once")) {
        assert!(line.contains("transaction"), "exactly once holds in a transaction: {line}");
    }
}

#[test]
fn fault_47_upgrade_page_names_the_schema_versions() {
    let page = read("docs/upgrading.md");
    let (sqlite, postgres) = (hapax::sqlite::SCHEMA_VERSION, hapax::postgres::SCHEMA_VERSION);
    for row in
        [format!("| SQLite, schema {sqlite} |"), format!("| PostgreSQL, schema {postgres} |")]
    {
        assert!(
            page.contains(&row),
            "docs/upgrading.md should have a row {row:?}: what does it change?"
        );
    }
    assert!(read("docs/SUMMARY.md").contains("(upgrading.md)"));
}
