//! The guide `docs/sql.md`: psql runs every block of its PostgreSQL half, in order.

use std::path::Path;

use hapax_postgres::migrate;

use crate::{SERVER, client};

#[tokio::test]
async fn sql_guide_runs_as_it_is_written() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/sql.md");
    let guide = std::fs::read_to_string(path).unwrap();
    let (postgres_half, _) = guide.split_once("\n## SQLite").expect("the half on SQLite");
    let blocks: Vec<&str> = postgres_half
        .split("```sql\n")
        .skip(1)
        .map(|rest| rest.split_once("```").expect("the end of a block").0)
        .collect();
    assert!(blocks.len() >= 8, "{} blocks", blocks.len());
    let url = SERVER.database("sql_guide");
    migrate(&mut client(&url).await).await.unwrap();
    // In one session, because later blocks use variables of earlier ones.
    let file = std::env::temp_dir().join(format!("hapax-sql-guide-{}.sql", std::process::id()));
    std::fs::write(&file, blocks.concat()).unwrap();
    let output = std::process::Command::new(hapax_testkit::find_binary("psql").unwrap())
        .args(["--no-psqlrc", "--no-align", "--tuples-only", "--quiet", "--set", "ON_ERROR_STOP=1"])
        .args(["--dbname", &url, "--file", file.to_str().unwrap()])
        .output();
    std::fs::remove_file(&file).unwrap();
    let output = output.unwrap();
    let (shown, errors) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{errors}");
    // The answers that the guide shows.
    for line in [
        "completed|201|{\"content-type\": \"application/json\"}|{\"order\": 1}",
        "reused",
        "completed",
        "f",
    ] {
        assert!(shown.lines().any(|shown| shown == line), "no line {line:?} in\n{shown}");
    }
}
