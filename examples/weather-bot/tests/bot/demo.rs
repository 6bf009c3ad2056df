//! The demo runs without any server, and succeeds.

use std::process::Command;

#[test]
fn the_demo_shows_a_double_tap_that_costs_one_lookup() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_weather-bot"));
    let output = command.arg("--demo").env_clear().output().expect("it runs");
    let (said, log) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{said}\n{log}");
    for part in ["fixed data", "⏳ 正在為您查詢天氣，請稍候...", "📍 台北（臺灣）", "(1 lookup)"]
    {
        assert!(said.contains(part), "{part}\n{said}");
    }
    assert!(!said.contains("Uf00d") && log.is_empty(), "{said}\n{log}");
}
