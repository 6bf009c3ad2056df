use std::time::Duration;

use hapax_line::{BUSY_TEXT, LineEvent, LockRule, LockRules};

use super::*;
use crate::settings::{CommandSettings, testing};

fn read(flags: &[&str], environment: &[(&str, &str)], file: &str) -> anyhow::Result<LineSettings> {
    testing::read(flags, environment, file)
}

fn refused(flags: &[&str], environment: &[(&str, &str)], file: &str) -> String {
    testing::refused::<LineSettings>(flags, environment, file)
}

fn rules(flags: &[&str], environment: &[(&str, &str)]) -> LockRules {
    let settings = read(flags, environment, "").unwrap();
    super::rules(&settings).unwrap()
}

fn guarding(rules: &LockRules) -> LockRule {
    let raw = r#"{"type":"message","message":{"type":"text","text":"🥚"}}"#;
    rules.rule_for(&LineEvent::parse(&"Uf00d".into(), raw).unwrap())
}

fn locked(seconds: u64) -> LockRule {
    LockRule::Mutex { ttl: Duration::from_secs(seconds), renew: false }
}

#[test]
fn line_original_variables_set_lock_and_its_ttl() {
    assert_eq!(guarding(&rules(&[], &[])), locked(5));
    for on in ["true", "True", "TRUE", "1", "yes", "on"] {
        let environment =
            [("PROCESSING_LOCK_ENABLED", on), ("PROCESSING_LOCK_TIMEOUT_SECONDS", "7")];
        assert_eq!(guarding(&rules(&[], &environment)), locked(7), "{on}");
    }
    for off in ["false", "False", "FALSE", "0", "no", "off"] {
        let rules = rules(&[], &[("PROCESSING_LOCK_ENABLED", off)]);
        assert_eq!(guarding(&rules), LockRule::None, "{off}");
    }
    let flags = ["--lock", "true", "--lock-ttl", "2s"];
    let environment = [("PROCESSING_LOCK_ENABLED", "0"), ("PROCESSING_LOCK_TIMEOUT_SECONDS", "7")];
    assert_eq!(guarding(&rules(&flags, &environment)), locked(2));
    for wrong in ["0", "-1", "abc", "3601"] {
        let read = read(&[], &[("PROCESSING_LOCK_TIMEOUT_SECONDS", wrong)], "");
        assert!(read.is_err(), "{wrong}");
    }
    let wrong = refused(&[], &[("PROCESSING_LOCK_ENABLED", "maybe")], "");
    assert!(wrong.contains("PROCESSING_LOCK_ENABLED") && wrong.contains("true"), "{wrong}");
}

#[test]
fn line_busy_text_is_the_flags_or_the_rules_or_the_default() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("rules.toml");
    std::fs::write(&file, "busy_text = 'of the rules'").unwrap();
    let file = file.to_str().unwrap();
    assert_eq!(rules(&[], &[]).busy_text(), BUSY_TEXT);
    assert_eq!(rules(&["--rules", file], &[]).busy_text(), "of the rules");
    let flags = ["--rules", file, "--busy-text", "of the flag"];
    assert_eq!(rules(&flags, &[]).busy_text(), "of the flag");
    refused(&["--busy-text", &"x".repeat(5001)], &[], "");
    let mut table = LineSettings::table().iter();
    let help = table.find(|setting| setting.names.flag == "busy-text").unwrap().declared.help;
    assert!(help.contains(BUSY_TEXT), "{help}");
}

#[test]
fn line_library_defaults_are_those_of_the_flags() {
    let ours = gateway_config(&read(&[], &[], "").unwrap()).unwrap();
    // The bot has 30s of its own.
    let default = hapax_line::GatewayConfig::new().handler_timeout(Duration::from_secs(35));
    assert_eq!(ours, default);
}

#[test]
fn line_reads_its_own_table_of_the_file() {
    let file = "store = 'memory:'\nlock_ttl = '9s'\n[line]\nlock_ttl = '3s'\nlock = true\n\
                channel_secret = 'a'\n[relay]\nto = 'stdout'";
    let settings = read(&[], &[], file).unwrap();
    assert_eq!((settings.store.shown(), settings.lock_ttl.as_secs()), ("memory:".into(), 3));
    assert!(settings.channel_secret.is_some());
    assert!(refused(&[], &[], "[line]\nlokc = true").contains("`line.lokc`"));
}

#[test]
fn line_values_that_exclude_each_other_are_refused() {
    for (flags, named) in [
        (["--lease", "2h"], "lease"),
        (["--lock-ttl", "2h"], "lock TTL"),
        (["--backoff", "2m"], "--backoff-max"),
        (["--on-unknown", "guess"], "rerun"),
        (["--on-store-error", "guess"], "open"),
        (["--channel-access-token", "a b"], "access token"),
    ] {
        let message = refused(&flags, &[], "");
        assert!(message.contains(named), "{message}");
    }
}

#[test]
fn line_secrets_are_never_shown() {
    let flags = ["--channel-secret", "hush-1,hush-2", "--channel-access-token", "hush-3"];
    let flags = [&flags[..], &["--upstream", "http://bot/x?key=hush-4"]].concat();
    let settings = read(&flags, &[], "").unwrap();
    assert!(!format!("{settings:?}").contains("hush"), "{settings:?}");
}
