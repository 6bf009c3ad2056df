use std::collections::BTreeSet;
use std::time::Duration;

use super::declare::SettingNames;
use super::*;

fn read(flags: &[&str], environment: &[(&str, &str)], file: &str) -> anyhow::Result<ServeSettings> {
    testing::read(flags, environment, file)
}

fn refused(flags: &[&str], environment: &[(&str, &str)], file: &str) -> String {
    testing::refused::<ServeSettings>(flags, environment, file)
}

#[test]
fn flags_win_over_environment_over_file_over_seeds() {
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
fn seed_lock_timeout_is_in_seconds() {
    let settings = read(&[], &[("PROCESSING_LOCK_TIMEOUT_SECONDS", "7")], "").unwrap();
    assert_eq!(settings.lock_ttl, Duration::from_secs(7));
    for wrong in ["0", "-1", "abc", "3601"] {
        refused(&[], &[("PROCESSING_LOCK_TIMEOUT_SECONDS", wrong)], "");
    }
}

#[test]
fn unknown_keys_and_flags_are_named_errors() {
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
fn wrong_values_are_errors_that_name_their_source() {
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
fn listen_without_tokens_takes_only_loopback() {
    let message = refused(&["--listen", "0.0.0.0:0"], &[], "");
    assert!(message.contains("hapax token new"), "{message}");
    let token = format!("[[token]]\nname='a'\nsha256='{}'\nscopes=['data']", "0".repeat(64));
    assert!(read(&["--listen", "0.0.0.0:0"], &[], &token).is_ok());
    assert!(read(&["--listen", "[::1]:0"], &[], "").is_ok());
}

#[test]
fn token_rules_are_checked() {
    let hash = "ab".repeat(32);
    let one = |name: &str, rest: &str| format!("[[token]]\nname='{name}'\n{rest}\n");
    let good = one("a", &format!("sha256='{hash}'\ntenant='shop'\nscopes=['data','metrics']"));
    let settings = read(&[], &[], &good).unwrap();
    assert_eq!(settings.tokens[0].tenant.as_str(), "shop");
    assert_eq!(settings.tokens[0].scopes, [TokenScope::Data, TokenScope::Metrics]);
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
fn settings_file_takes_lists_and_tables() {
    let settings = read(&[], &[], "[redis]\nverbatim = ['a:*', 'b']").unwrap();
    assert_eq!(settings.redis_verbatim.0, ["a:*", "b"]);
}

#[test]
fn store_url_is_shown_without_its_password() {
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
fn settings_have_distinct_flags_variables_and_keys() {
    for table in tables() {
        let names = || table.iter().flat_map(Setting::all_names);
        let distinct = |name: fn(&SettingNames) -> &String| {
            assert_eq!(names().map(name).collect::<BTreeSet<_>>().len(), names().count());
        };
        distinct(|names| &names.flag);
        distinct(|names| &names.env);
        distinct(|names| &names.key);
    }
}

#[test]
fn setting_names_follow_from_the_field() {
    let names = |table: &'static [Setting], flag: &str| {
        let setting = table.iter().find(|setting| setting.names.flag == flag).unwrap();
        (setting.names.env.as_str(), setting.names.key.as_str())
    };
    let [serve, proxy, relay, line] = tables();
    assert_eq!(names(serve, "body-limit"), ("HAPAX_BODY_LIMIT", "body_limit"));
    assert_eq!(names(serve, "sse-keep-alive"), ("HAPAX_SSE_KEEP_ALIVE", "sse.keep_alive"));
    assert_eq!(names(proxy, "require-key"), ("HAPAX_REQUIRE_KEY", "proxy.require_key"));
    assert_eq!(names(relay, "store-timeout"), ("HAPAX_STORE_TIMEOUT", "store_timeout"));
    assert_eq!(names(line, "store-timeout"), ("HAPAX_STORE_TIMEOUT", "line.store_timeout"));
    assert_eq!(names(line, "api-base"), ("LINE_API_BASE", "line.api_base"));
}

/// Each earlier name of a setting, as a flag, a variable and a key.
fn value_by_alias<S: CommandSettings>([flag, env, key]: [&str; 3], value: fn(&S) -> Duration) {
    let (table, name) = key.split_once('.').unwrap();
    let file = format!("[{table}]\n{name} = '7s'");
    for (flags, environment, file) in
        [(&[flag, "7s"][..], &[][..], ""), (&[], &[(env, "7s")], ""), (&[], &[], file.as_str())]
    {
        let settings = testing::read::<S>(flags, environment, file).unwrap();
        assert_eq!(value(&settings).as_secs(), 7, "{flag} {env} {key}");
    }
}

#[test]
fn settings_are_read_by_their_earlier_names() {
    value_by_alias::<ProxySettings>(
        ["--shutdown-limit", "HAPAX_SHUTDOWN_LIMIT", "proxy.shutdown_limit"],
        |settings| settings.shutdown_timeout.0,
    );
    value_by_alias::<RelaySettings>(["--keep", "HAPAX_KEEP", "relay.keep"], |settings| {
        settings.retention.0
    });
    value_by_alias::<LineSettings>(["--remember", "HAPAX_REMEMBER", "line.remember"], |settings| {
        settings.retention
    });
    value_by_alias::<ServeSettings>(
        ["--event-lifetime", "HAPAX_EVENT_LIFETIME", "events.lifetime"],
        |settings| settings.event_retention,
    );
    value_by_alias::<ServeSettings>(
        ["--event-tail-limit", "HAPAX_EVENT_TAIL_LIMIT", "events.tail_limit"],
        |settings| settings.event_tail_timeout,
    );
}

#[test]
fn setting_aliases_yield_to_current_names() {
    let environment = [("HAPAX_EVENT_LIFETIME", "7s"), ("HAPAX_EVENT_RETENTION", "8s")];
    assert_eq!(read(&[], &environment, "").unwrap().event_retention.as_secs(), 8);
    let both = refused(&[], &[], "[events]\nlifetime = '7s'\nretention = '8s'");
    assert!(both.contains("`events.lifetime`") && both.contains("`events.retention`"), "{both}");
}

/// The settings of a command as its guide shows them.
fn documented<S: CommandSettings>() -> String {
    let mut table = String::from("| flag | variable | in the file | default | what it says |\n");
    table.push_str("|---|---|---|---|---|\n");
    for Setting { names: SettingNames { flag, env, key }, declared, .. } in S::table() {
        let seed = declared.seed.map(|(name, _)| format!(", `{name}`")).unwrap_or_default();
        let (default, help) = (declared.default, declared.help);
        table.push_str(&format!(
            "| `--{flag}` | `{env}`{seed} | `{key}` | `{default}` | {help} |\n"
        ));
    }
    table
}

const PAGE: &str = include_str!("../../../../docs/server.md");

#[test]
fn server_guide_has_every_setting() {
    let table = documented::<ServeSettings>();
    assert!(PAGE.contains(&table), "docs/server.md should have this table:\n\n{table}");
}

#[test]
fn line_guide_has_every_setting() {
    let table = documented::<LineSettings>();
    let page = include_str!("../../../../docs/line.md");
    assert!(page.contains(&table), "docs/line.md should have this table:\n\n{table}");
}

#[test]
fn server_guide_files_are_read() {
    let files: Vec<_> = PAGE.split("```toml\n").skip(1).collect();
    assert!(!files.is_empty());
    for file in files {
        let file = file.split("```").next().unwrap();
        assert!(read(&[], &[], file).unwrap().tokens.len() < 3, "{file}");
    }
}
