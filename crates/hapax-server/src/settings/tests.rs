use std::collections::BTreeSet;
use std::time::Duration;

use super::serve::TABLE;
use super::*;

fn read(flags: &[&str], environment: &[(&str, &str)], file: &str) -> anyhow::Result<Settings> {
    Settings::read(&Sources::say(flags, environment, file)?)
}

fn refused(flags: &[&str], environment: &[(&str, &str)], file: &str) -> String {
    format!("{:#}", read(flags, environment, file).expect_err("refused"))
}

#[test]
fn flags_win_over_environment_over_file_over_seeds_over_defaults() {
    let seed = ("REDIS_URL", "redis://seed");
    let environment = ("HAPAX_STORE", "redis://environment");
    let file = "store = 'redis://file'";
    let store = |flags: &[&str], environment: &[(&str, &str)], file| {
        read(flags, environment, file).unwrap().store.secret().to_owned()
    };
    assert_eq!(store(&["--store", "memory:"], &[seed, environment], file), "memory:");
    assert_eq!(store(&[], &[seed, environment], file), "redis://environment");
    assert_eq!(store(&[], &[seed], file), "redis://file");
    assert_eq!(store(&[], &[seed], ""), "redis://seed");
    assert_eq!(store(&[], &[], ""), "sqlite:hapax.db");
}

#[test]
fn the_seeds_lock_timeout_is_in_seconds() {
    let settings = read(&[], &[("PROCESSING_LOCK_TIMEOUT_SECONDS", "7")], "").unwrap();
    assert_eq!(settings.lock_ttl, Duration::from_secs(7));
    for wrong in ["0", "-1", "abc", "3601"] {
        refused(&[], &[("PROCESSING_LOCK_TIMEOUT_SECONDS", wrong)], "");
    }
}

#[test]
fn unknown_keys_and_flags_are_errors_that_name_them() {
    for (file, name) in [
        ("sotre = 'memory:'", "`sotre`"),
        ("[redis]\nverbatin = []", "`redis.verbatin`"),
        ("[listen]\nport = 1", "`listen`"),
        ("[[token]]\nname = 'a'\nsha = 'b'", "sha"),
        ("store = ", "line 1"),
    ] {
        let message = refused(&[], &[], file);
        assert!(message.contains(name), "{message}");
    }
    assert!(refused(&["--sotre", "x"], &[], "").contains("--sotre"));
}

#[test]
fn wrong_values_are_errors_that_name_their_place() {
    for (flags, environment, file, place) in [
        (&["--listen", "nowhere"][..], &[][..], "", "--listen"),
        (&[], &[("HAPAX_STORE_TIMEOUT", "2")], "", "HAPAX_STORE_TIMEOUT"),
        (&[], &[], "body_limit = 0", "`body_limit`"),
        (&[], &[], "body_limit = 1.5", "`body_limit`"),
        (&["--log", "xml"], &[], "", "--log"),
        (&["--log-level", "loud"], &[], "", "--log-level"),
    ] {
        let message = refused(flags, environment, file);
        assert!(message.contains(place), "{message}");
    }
}

#[test]
fn without_tokens_only_loopback_is_listened_on() {
    let message = refused(&["--listen", "0.0.0.0:0"], &[], "");
    assert!(message.contains("hapax token new"), "{message}");
    let token = format!("[[token]]\nname='a'\nsha256='{}'\nscopes=['data']", "0".repeat(64));
    assert!(read(&["--listen", "0.0.0.0:0"], &[], &token).is_ok());
    assert!(read(&["--listen", "[::1]:0"], &[], "").is_ok());
}

#[test]
fn tokens_are_checked() {
    let hash = "ab".repeat(32);
    let one = |name: &str, rest: &str| format!("[[token]]\nname='{name}'\n{rest}\n");
    let good = one("a", &format!("sha256='{hash}'\ntenant='shop'\nscopes=['data','metrics']"));
    let settings = read(&[], &[], &good).unwrap();
    assert_eq!(settings.tokens[0].tenant.as_str(), "shop");
    assert_eq!(settings.tokens[0].scopes, [Scope::Data, Scope::Metrics]);
    for (wrong, named) in [
        (one("a", "sha256='12'\nscopes=['data']"), "sha256"),
        (one("a", &format!("sha256='{hash}'\nscopes=[]")), "scopes"),
        (one("a", &format!("sha256='{hash}'\nscopes=['root']")), "root"),
        (one("a", &format!("sha256='{hash}'\ntenant=''\nscopes=['data']")), "tenant"),
        (format!("{good}{good}"), "twice"),
        (format!("{good}{}", good.replace("'a'", "'b'")), "same sha256"),
    ] {
        let message = refused(&[], &[], &wrong);
        assert!(message.contains(named), "{message}");
    }
}

#[test]
fn the_file_takes_lists_and_tables() {
    let settings = read(&[], &[], "[redis]\nverbatim = ['a:*', 'b']").unwrap();
    assert_eq!(settings.redis_verbatim.0, ["a:*", "b"]);
}

#[test]
fn a_store_url_is_shown_without_its_password() {
    for (url, shown) in [
        ("redis://user:p@ss@host:1/0?x=secret", "redis://host:1/0"),
        ("redis://user:p?a#b@host:1", "redis://host:1"),
        ("postgres://host/db", "postgres://host/db"),
        ("sqlite:hapax.db", "sqlite:hapax.db"),
    ] {
        let settings = read(&["--store", url], &[], "").unwrap();
        assert_eq!(settings.store.shown(), shown);
        assert_eq!(format!("{:?}", settings.store), shown);
    }
}

#[test]
fn every_setting_has_its_own_flag_variable_and_key() {
    let distinct = |name: fn(&Setting) -> &'static str| {
        assert_eq!(TABLE.iter().map(name).collect::<BTreeSet<_>>().len(), TABLE.len());
    };
    distinct(|setting| setting.flag);
    distinct(|setting| setting.env);
    distinct(|setting| setting.key);
    for setting in TABLE {
        let env = format!("HAPAX_{}", setting.flag.replace('-', "_").to_uppercase());
        assert_eq!(setting.env, env);
    }
}

const PAGE: &str = include_str!("../../../../docs/server.md");

#[test]
fn the_page_about_the_server_has_every_setting_as_it_is() {
    let mut table = String::from("| flag | variable | in the file | default | what it says |\n");
    table.push_str("|---|---|---|---|---|\n");
    for Setting { flag, env, key, default, help, seed, .. } in TABLE {
        let seed = seed.map(|(variable, _)| format!(", `{variable}`")).unwrap_or_default();
        table.push_str(&format!(
            "| `--{flag}` | `{env}`{seed} | `{key}` | `{default}` | {help} |\n"
        ));
    }
    assert!(PAGE.contains(&table), "docs/server.md should have this table:\n\n{table}");
}

#[test]
fn the_files_on_the_page_about_the_server_are_read() {
    let files: Vec<_> = PAGE.split("```toml\n").skip(1).collect();
    assert!(!files.is_empty());
    for file in files {
        let file = file.split("```").next().unwrap();
        assert!(read(&[], &[], file).unwrap().tokens.len() < 3, "{file}");
    }
}
