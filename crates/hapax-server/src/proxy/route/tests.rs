use std::time::Duration;

use hapax::OnUnknown;
use hapax_http::{CallerScope, FingerprintOf, Verdict};
use hyper::{Method, StatusCode};

use super::*;
use crate::settings::values::ByteSize;
use crate::settings::{CommandSettings, SettingValue, testing};

const UP: [&str; 2] = ["--upstream", "http://127.0.0.1:3000"];

fn read(
    flags: &[&str],
    environment: &[(&str, &str)],
    file: &str,
) -> anyhow::Result<Vec<ProxyRoute>> {
    routes(&testing::read(flags, environment, file)?)
}

fn refused(flags: &[&str], environment: &[(&str, &str)], file: &str) -> String {
    format!("{:#}", read(flags, environment, file).expect_err("refused"))
}

#[test]
fn proxy_flags_win_over_environment_over_file() {
    let wait = |flags: &[&str], environment: &[(&str, &str)], file| {
        let flags = [&UP[..], flags].concat();
        read(&flags, environment, file).unwrap()[0].policy.wait().as_secs()
    };
    let (environment, file) = (("HAPAX_WAIT", "2s"), "[proxy]\nwait = '3s'");
    assert_eq!(wait(&["--wait", "0s"], &[environment], file), 0);
    assert_eq!(wait(&[], &[environment], file), 2);
    assert_eq!(wait(&[], &[], file), 3);
    assert_eq!(wait(&[], &[], ""), 10);
}

#[test]
fn proxy_defaults_are_the_documented_ones() {
    let settings = testing::read::<ProxySettings>(&UP, &[], "").unwrap();
    assert_eq!(settings.listen.text(), "127.0.0.1:8788");
    assert_eq!(settings.store.secret(), "sqlite:hapax.db");
    let policy = &routes(&settings).unwrap()[0].policy;
    assert_eq!(policy.methods(), [Method::POST, Method::PATCH]);
    assert_eq!((policy.lease().as_secs(), policy.retention().as_secs()), (30, 86_400));
    assert_eq!((*policy.on_unknown(), *policy.max_body()), (OnUnknown::Refuse, 1 << 20));
    assert_eq!(*policy.scope(), CallerScope::Authorization);
    assert!(!*policy.require_key() && settings.admin.is_none());
}

#[test]
fn proxy_route_overrides_what_differs() {
    let file = r#"
        store = "memory:"
        [proxy]
        upstream = "http://127.0.0.1:3000"
        lease = "5s"
        statuses = { 409 = "give-back" }
        [[proxy.route]]
        path = "/payments/*"
        upstream = "https://pay.example/base"
        methods = ["POST", "PUT"]
        wait = "500ms"
        retention = "7days"
        require_key = true
        on_unknown = "rerun"
        fingerprint = { except = ["/at"] }
        statuses = { 404 = "give-back", 500 = "unknown" }
        [[proxy.route]]
        path = "/health"
        methods = []
        fingerprint = "json"
    "#;
    let routes = read(&[], &[], file).unwrap();
    let [pay, health, rest] = &routes[..] else { panic!("three routes") };
    assert!(pay.pattern.matches("/payments/1") && !pay.pattern.matches("/payments"));
    assert_eq!(pay.target.to_string(), "https://pay.example/base");
    assert_eq!(pay.policy.methods(), [Method::POST, Method::PUT]);
    assert_eq!(*pay.policy.wait(), Duration::from_millis(500));
    assert_eq!((pay.policy.lease().as_secs(), pay.policy.retention().as_secs()), (5, 604_800));
    assert!(*pay.policy.require_key() && *pay.policy.on_unknown() == OnUnknown::TakeOver);
    assert_eq!(*pay.policy.fingerprint(), FingerprintOf::Except(vec!["/at".into()]));
    let verdict = |status| pay.policy.verdicts().of(StatusCode::from_u16(status).unwrap());
    assert_eq!(verdict(404), Verdict::GiveBack);
    assert_eq!(verdict(409), Verdict::GiveBack);
    assert_eq!(verdict(500), Verdict::Unknown);
    assert!(health.pattern.matches("/health") && !health.pattern.matches("/health/x"));
    assert!(health.policy.methods().is_empty());
    assert_eq!(*health.policy.fingerprint(), FingerprintOf::Json);
    assert_eq!(rest.pattern, PathPattern::Everything);
    assert_eq!(rest.target.to_string(), "http://127.0.0.1:3000");
}

#[test]
fn proxy_ignores_keys_of_other_commands() {
    let file = "listen = '127.0.0.1:1'\nlock_ttl = '5s'\n[redis]\nverbatim = []\n[proxy]\nupstream = 'http://up'";
    let settings = testing::read::<ProxySettings>(&[], &[], file).unwrap();
    assert_eq!(settings.listen.text(), "127.0.0.1:8788");
}

#[test]
fn proxy_unknown_keys_and_flags_are_named_errors() {
    let route = "[[proxy.route]]\npath = '/a'\n";
    for (file, named) in [
        ("sotre = 'memory:'".to_owned(), "`sotre`"),
        ("[proxy]\nupsteam = 'http://a'".to_owned(), "`proxy.upsteam`"),
        (format!("{route}retries = 1"), "retries"),
        (format!("{route}fingerprint = {{ only = ['/a'], all = 1 }}"), "fingerprint"),
        ("[proxy".to_owned(), "line 1"),
    ] {
        let message = refused(&UP, &[], &file);
        assert!(message.contains(named), "{message}");
    }
    assert!(refused(&["--upsteam", "x"], &[], "").contains("--upsteam"));
}

#[test]
fn proxy_wrong_values_say_what_is_expected() {
    let route = |rest: &str| format!("[[proxy.route]]\npath = '/a'\n{rest}");
    for (flags, file, expected) in [
        (&["--upstream", "localhost:3000"][..], String::new(), "http://127.0.0.1:3000"),
        (&["--wait", "10"], String::new(), "--wait"),
        (&["--wait", "61s"], String::new(), "60s"),
        (&["--lease", "2h"], String::new(), "1h"),
        (&["--lease", "1ms"], String::new(), "300ms"),
        (&["--retention", "0s"], String::new(), "retention"),
        (&["--limit", "1MB"], String::new(), "1MiB"),
        (&["--methods", "GET"], String::new(), "POST"),
        (&["--scope", "bearer"], String::new(), "header:NAME"),
        (&["--on-unknown", "maybe"], String::new(), "rerun"),
        (&["--tls-cert", "a.pem"], String::new(), "--tls-key"),
        (&[], "[[proxy.route]]\npath = 'a'".to_owned(), "slash"),
        (&[], "[[proxy.route]]\npath = '/a/{id}'".to_owned(), "/orders/*"),
        (&[], "[[proxy.route]]\npath = '//a/../%62'".to_owned(), "normal form"),
        (&["--credential-headers", "X Key"], String::new(), "X-Api-Key"),
        (&[], route("wait = '2m'"), "number 1, `/a`"),
        (&[], route("statuses = { 99 = 'keep' }"), "200 to 599"),
        (&[], route("statuses = { 404 = 'drop' }"), "give-back"),
        (&[], route("fingerprint = { only = ['a'] }"), "/order/id"),
        (&[], format!("{}\n{}", route(""), route("")), "twice"),
    ] {
        let flags = [&UP[..], flags].concat();
        // A flag that is there twice is clap's own error.
        let flags = if flags.len() > 2 && flags[2] == "--upstream" { &flags[2..] } else { &flags };
        let message = refused(flags, &[], &file);
        assert!(message.contains(expected), "{message}");
    }
    assert!(refused(&[], &[], "").contains("--upstream http://127.0.0.1:3000"));
    assert!(refused(&[], &[], &route("")).contains("`upstream` is missing"));
}

#[test]
fn proxy_sizes_and_scopes_are_parsed() {
    assert_eq!(ByteSize::parse("64KiB"), Ok(ByteSize(65_536)));
    assert_eq!(ByteSize::parse("1048576"), Ok(ByteSize(1 << 20)));
    assert!(ByteSize::parse("0").is_err() && ByteSize::parse("MiB").is_err());
    assert_eq!(CallerScope::parse("cookie:sid"), Ok(CallerScope::Cookie("sid".into())));
    assert_eq!(
        CallerScope::parse("header:X-User"),
        Ok(CallerScope::Header("x-user".parse().unwrap()))
    );
    assert!(CallerScope::parse("header:").is_err() && CallerScope::parse("cookie:").is_err());
}

#[test]
fn proxy_guide_file_is_read_and_its_flags_exist() {
    let guide = include_str!("../../../../../docs/proxy.md");
    let file = guide.split("```toml\n").nth(1).and_then(|rest| rest.split("```").next()).unwrap();
    assert_eq!(read(&[], &[], file).unwrap().len(), 4);
    // `hapax command` has flags of its own.
    let lines = guide.lines().filter(|line| !line.contains("$ hapax command"));
    let words = lines.flat_map(|l| l.split(|c: char| !(c.is_ascii_alphanumeric() || c == '-')));
    for flag in words
        .filter_map(|word| word.strip_prefix("--"))
        .filter(|flag| flag.starts_with(char::is_alphabetic))
    {
        let mut settings = ProxySettings::table().iter();
        let known = flag == "help" || settings.any(|setting| setting.names.flag == flag);
        assert!(known, "--{flag}");
    }
}
