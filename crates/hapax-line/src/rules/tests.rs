use std::time::Duration;

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

const DEFAULT: &str = include_str!("../../../../docs/rules/default.toml");
const THROTTLE: &str = include_str!("../../../../docs/rules/throttle.toml");
const WEATHER: &str = include_str!("../../../../examples/weather-bot/rules.toml");

const FIVE_SECONDS: LockRule = mutex(5000, false);
const ONE_SECOND: LockRule = LockRule::Throttle { window: Duration::from_secs(1) };

const fn mutex(ms: u64, renew: bool) -> LockRule {
    LockRule::Mutex { ttl: Duration::from_millis(ms), renew }
}

fn event(json: Value) -> LineEvent {
    LineEvent::parse(&"Uf00db07".into(), &json.to_string()).unwrap()
}

fn of_kind(kind: EventKind) -> LineEvent {
    let name = kind.as_str();
    let plain = event(json!({ "type": name }));
    if plain.kind() == kind {
        return plain;
    }
    event(json!({ "type": "message", "message": { "type": name } }))
}

fn tap(data: &str) -> LineEvent {
    event(json!({ "type": "postback", "postback": { "data": data } }))
}

fn guarding(rules: &str, event: &LineEvent) -> LockRule {
    LockRules::parse(rules).unwrap().rule_for(event)
}

#[test]
fn the_default_locks_text_location_and_postback_and_nothing_else() {
    assert_eq!(LockRules::parse(DEFAULT), Ok(LockRules::default()));
    for kind in EventKind::all() {
        let locked = [EventKind::TEXT, EventKind::LOCATION, EventKind::POSTBACK].contains(&kind);
        let expected = if locked { FIVE_SECONDS } else { LockRule::None };
        assert_eq!(LockRules::default().rule_for(&of_kind(kind)), expected, "{kind}");
        assert_eq!(LockRules::unlocked().rule_for(&of_kind(kind)), LockRule::None, "{kind}");
    }
}

#[test]
fn the_weather_bot_locks_the_taps_that_cost_a_lookup() {
    for (data, locked) in [
        ("action=weather&type=home", true),
        ("action=weather&type=office", true),
        ("type=office&action=weather&more=1", true),
        ("action=weather&type=current", false),
        ("action=weather", false),
        ("action=weather&type=", false),
        ("action=weather&type=HOME", false),
        ("type=home", false),
        ("action=recent_queries", true),
        ("action=recent_queries&type=current", true),
        ("action=settings", false),
        ("action=settings&type=home", false),
        ("action=other", false),
        ("action=unknown", false),
        ("action=", false),
        ("", false),
        ("🥚", false),
    ] {
        let or_none = |guarding| if locked { guarding } else { LockRule::None };
        assert_eq!(guarding(WEATHER, &tap(data)), or_none(FIVE_SECONDS), "{data}");
        assert_eq!(guarding(THROTTLE, &tap(data)), or_none(ONE_SECOND), "{data}");
    }
    for kind in EventKind::all() {
        for rules in [WEATHER, THROTTLE] {
            assert_eq!(guarding(rules, &of_kind(kind)), LockRule::None, "{kind}");
        }
    }
}

#[test]
fn every_file_says_the_original_text() {
    for rules in [DEFAULT, THROTTLE, WEATHER] {
        assert_eq!(LockRules::parse(rules).unwrap().busy_text(), "⏳ 正在為您查詢天氣，請稍候...");
    }
}

#[test]
fn the_first_rule_that_fits_decides() {
    let rules = r#"
        [[rule]]
        event = "postback"
        data = { action = "help" }
        guard = "none"
        [[rule]]
        event = ["text", "postback"]
        guard = "mutex"
        ttl = "1500ms"
        renew = true
        [[rule]]
        event = "*"
        guard = "throttle"
    "#;
    assert_eq!(guarding(rules, &tap("action=help")), LockRule::None);
    assert_eq!(guarding(rules, &tap("action=more")), mutex(1500, true));
    assert_eq!(guarding(rules, &of_kind(EventKind::TEXT)), mutex(1500, true));
    assert_eq!(guarding(rules, &of_kind(EventKind::LOCATION)), ONE_SECOND);
    assert_eq!(guarding(rules, &of_kind(EventKind::OTHER)), ONE_SECOND);
    assert_eq!(guarding(rules, &of_kind(EventKind::FOLLOW)), LockRule::None);
    assert_eq!(guarding(rules, &of_kind(EventKind::UNFOLLOW)), LockRule::None);
}

#[test]
fn a_mutex_without_a_time_has_that_of_the_setting() {
    let rules = LockRules::parse("[[rule]]\nevent = 'text'\nguard = 'mutex'").unwrap();
    assert_eq!(rules.rule_for(&of_kind(EventKind::TEXT)), FIVE_SECONDS);
    let rules = rules.with_default_ttl(Duration::from_secs(7));
    assert_eq!(rules.rule_for(&of_kind(EventKind::TEXT)), mutex(7000, false));
    let own = LockRules::parse("[[rule]]\nevent = 'text'\nguard = 'mutex'\nttl = '5s'").unwrap();
    let own = own.with_default_ttl(Duration::from_secs(7));
    assert_eq!(own.rule_for(&of_kind(EventKind::TEXT)), FIVE_SECONDS);
    assert_eq!(
        LockRules::locking(Duration::from_secs(7)).rule_for(&of_kind(EventKind::TEXT)),
        mutex(7000, false)
    );
}

#[test]
fn no_rules_lock_nothing() {
    assert_eq!(LockRules::parse(""), Ok(LockRules::unlocked()));
}

#[test]
fn the_text_has_the_length_that_line_takes() {
    let with = |text: String| LockRules::parse(&format!("busy_text = '{text}'"));
    assert_eq!(with("請稍候 🥚".into()).unwrap().busy_text(), "請稍候 🥚");
    assert!(with("候".repeat(5000)).is_ok());
    // The egg emoji is two UTF-16 units.
    assert!(with("🥚".repeat(2500)).is_ok());
    for text in [String::new(), "候".repeat(5001), "🥚".repeat(2501)] {
        let error = with(text).unwrap_err().to_string();
        assert_eq!(error, "`busy_text`: a text of 1 to 5000 UTF-16 units is expected");
    }
}

#[test]
fn errors_name_the_rule_the_field_and_what_would_be_right() {
    let postback = "event = 'postback'\nguard = 'mutex'";
    let follow = "is never locked; leave it out, or say guard = \"none\"";
    let postback_alone = "say event = \"postback\", and that alone";
    for (second, field, fix) in [
        ("guard = 'mutex'", "event", "a text is expected, or a list of at least one"),
        ("event = []\nguard = 'mutex'", "event", "a list of at least one"),
        ("event = 5\nguard = 'mutex'", "event", "a text is expected"),
        ("event = 'txet'\nguard = 'mutex'", "event", "names of these: text, image"),
        ("event = ['*', 'text']\nguard = 'mutex'", "event", "\"*\" alone"),
        ("event = 'follow'\nguard = 'mutex'", "event", follow),
        ("event = ['text', 'unfollow']\nguard = 'throttle'", "event", follow),
        ("event = 'text'", "guard", "\"mutex\", \"throttle\" or \"none\""),
        ("event = 'text'\nguard = true", "guard", "\"mutex\", \"throttle\" or \"none\""),
        ("event = 'text'\nguard = 'lock'", "guard", "\"mutex\", \"throttle\" or \"none\""),
        (&format!("{postback}\nttl = 5"), "ttl", "from 1ms to 1h"),
        (&format!("{postback}\nttl = '5'"), "ttl", "with its unit"),
        (&format!("{postback}\nttl = '0s'"), "ttl", "from 1ms to 1h"),
        (&format!("{postback}\nttl = '-5s'"), "ttl", "from 1ms to 1h"),
        (&format!("{postback}\nttl = '61m'"), "ttl", "from 1ms to 1h"),
        (&format!("{postback}\nttl = '99999999999999999999y'"), "ttl", "from 1ms to 1h"),
        (&format!("{postback}\nrenew = 'yes'"), "renew", "true or false"),
        ("event = 'text'\nguard = 'throttle'\nrenew = true", "renew", "only a mutex"),
        ("event = 'text'\nguard = 'none'\nttl = '1s'", "ttl", "leave it out"),
        (&format!("{postback}\ndata = 'action=x'"), "data", "fields and their values"),
        (&format!("{postback}\ndata = {{}}"), "data", "fields and their values"),
        (&format!("{postback}\ndata = {{ a = [] }}"), "data.a", "at least one"),
        (&format!("{postback}\ndata = {{ a = 1 }}"), "data.a", "a text is expected"),
        ("event = 'text'\nguard = 'none'\ndata = { a = 'b' }", "data", postback_alone),
        ("event = '*'\nguard = 'none'\ndata = { a = 'b' }", "data", postback_alone),
        (&format!("{postback}\ntll = '5s'"), "tll", "event, data, guard, ttl, renew"),
    ] {
        let text = format!("[[rule]]\nevent = 'text'\nguard = 'none'\n[[rule]]\n{second}");
        let error = LockRules::parse(&text).unwrap_err().to_string();
        assert!(error.starts_with(&format!("rule 2, `{field}`: ")), "{second}: {error}");
        assert!(error.contains(fix), "{second}: {error}");
    }
    for (text, expected) in [
        ("rules = []", "`rules`: is not known; there are busy_text, rule"),
        ("[rule]\nevent = 'text'", "`rule`: begin each rule with [[rule]], in double brackets"),
        ("rule = [1]", "rule 1, `rule`: a table is expected: [[rule]]"),
        ("busy_text = 5", "`busy_text`: a text of 1 to 5000 UTF-16 units is expected"),
    ] {
        assert_eq!(LockRules::parse(text).unwrap_err().to_string(), expected);
    }
    let syntax = LockRules::parse("[[rule]]\nevent = 'a'\nevent = 'b'").unwrap_err().to_string();
    assert!(syntax.starts_with("the rules are no TOML: ") && syntax.contains("line 3"), "{syntax}");
}

/// Random rule files, some valid and some not.
fn rules() -> impl Strategy<Value = String> {
    let names: Vec<_> = EventKind::all().map(EventKind::as_str).chain(["*", "x"]).collect();
    let events = prop::collection::vec(prop::sample::select(names), 1..4);
    let guard = prop::sample::select(vec!["mutex", "throttle", "none", "lock"]);
    let more = prop::sample::select(vec!["", "ttl = '2s'", "renew = true", "data = { a = 'b' }"]);
    let rule = (events, guard, more).prop_map(|(events, guard, more)| {
        let event = if events.len() == 1 { json!(events[0]) } else { json!(events) };
        format!("[[rule]]\nevent = {event}\nguard = '{guard}'\n{more}\n")
    });
    prop::collection::vec(rule, 0..4).prop_map(|rules| rules.concat())
}

fn cases() -> ProptestConfig {
    ProptestConfig::with_cases(512 * hapax_testkit::scale())
}

proptest! {
    #![proptest_config(cases())]

    #[test]
    fn no_text_makes_it_panic(text in ".*", bytes in prop::collection::vec(any::<u8>(), 0..64)) {
        let _ = LockRules::parse(&text);
        let _ = LockRules::parse(&String::from_utf8_lossy(&bytes));
        let _ = LockRules::parse(&format!("busy_text = '''{text}'''\n[[rule]]\nttl = '''{text}'''"));
        let _ = LockRules::parse(&format!("[[rule]]\nevent = 'postback'\n{text} = '{text}'"));
    }

    #[test]
    fn follow_and_unfollow_are_never_locked(text in rules()) {
        let Ok(rules) = LockRules::parse(&text) else { return Ok(()) };
        for kind in [EventKind::FOLLOW, EventKind::UNFOLLOW] {
            prop_assert_eq!(rules.rule_for(&of_kind(kind)), LockRule::None, "{}", text);
        }
    }
}
