//! The metrics that `deploy/alerts.yaml` and `deploy/grafana.json` name.

use std::collections::BTreeSet;
use std::time::Instant;

use hapax_testkit::{Redis, free_port};

use crate::cli_support::hapax;
use crate::docs::read;
use crate::proxy_support::Proxy;
use crate::support::http::HttpRequest;
use crate::support::server::Setup;
use crate::support::store::TestStore;
use crate::support::{HapaxProcess, WAIT_TIMEOUT};

const FILES: [&str; 2] = ["deploy/alerts.yaml", "deploy/grafana.json"];

/// Each selector of the expressions: a metric's name, with its labels where there are any.
fn selectors(file: &str) -> BTreeSet<(String, Option<String>)> {
    let text = read(file).replace("\\\"", "\"");
    let mut found = BTreeSet::new();
    for (at, _) in text.match_indices("hapax_").chain(text.match_indices("processing_")) {
        let rest = &text[at..];
        let end = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(rest.len());
        let (name, after) = rest.split_at(end);
        let label = after.strip_prefix('{').and_then(|after| after.split_once('}'));
        found.insert((name.to_owned(), label.map(|(label, _)| label.to_owned())));
    }
    found
}

#[test]
fn fault_42_alerts_name_existing_metrics() {
    let names = read("crates/hapax-core/src/metric_names.rs");
    for file in FILES {
        let found = selectors(file);
        assert!(found.len() >= 10, "only {found:?} in {file}");
        for (word, _) in found {
            let name = word.strip_suffix("_bucket").unwrap_or(&word);
            let is_declared = names.contains(&format!("\"{name}\""));
            assert!(is_declared, "{file} names {word}, which is no metric");
        }
    }
}

/// Whether a series of this selector is in the text of `/metrics`.
fn has_series(metrics: &str, (name, label): &(String, Option<String>)) -> bool {
    let is_of_name = |line: &str| {
        line.strip_prefix(name.as_str()).is_some_and(|rest| rest.starts_with(['{', ' ']))
    };
    let has_label = |line: &str| label.as_ref().is_none_or(|label| line.contains(label.as_str()));
    metrics.lines().any(|line| is_of_name(line) && has_label(line))
}

/// Fresh processes, of which each has served one request at most: an alert that waits for the first failure
/// must find its series before it.
#[tokio::test(flavor = "multi_thread")]
async fn fault_42_series_of_alerts_exist_from_the_start() {
    let (file, outbox) = (TestStore::sqlite(), TestStore::sqlite());
    let server = Setup::on(&file.url()).flags(&["--gauge-interval", "50ms"]).start();
    server.post("/v1/locks/k").status();
    let evicting = Redis::with(&["--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru"]);
    let risky = Setup::on(&evicting.url()).flags(&["--accept-risk", "redis.eviction"]).start();
    let [relay_admin, proxy_admin] = [free_port(), free_port()].map(|p| format!("127.0.0.1:{p}"));
    let mut relay = hapax();
    // Nothing listens there, so that the relay never sends.
    relay.args(["relay", "--from", &outbox.url(), "--to", "redis://127.0.0.1:1"]);
    let _relay =
        HapaxProcess::start(relay.args(["--config", "/dev/null", "--admin", &relay_admin]));
    let proxy = Proxy::start("http://127.0.0.1:1", "memory:", &["--admin", &proxy_admin]);
    proxy.order("k").await;

    let wanted: BTreeSet<_> = FILES.into_iter().flat_map(selectors).collect();
    let until = Instant::now() + WAIT_TIMEOUT;
    loop {
        let of = |address: &str| HttpRequest::new(address, "GET", "/metrics").send().text();
        let all = server.metrics() + &risky.metrics() + &of(&relay_admin) + &of(&proxy_admin);
        let missing: Vec<_> = wanted.iter().filter(|wanted| !has_series(&all, wanted)).collect();
        if missing.is_empty() {
            break;
        }
        assert!(Instant::now() < until, "no series of {missing:?}");
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    let sink = HttpRequest::new(&relay_admin, "GET", "/metrics").send().text();
    assert!(sink.contains("hapax_relay_sink_up{sink=\"redis\"} 0\n"), "{sink}");
}
