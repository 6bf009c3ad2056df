//! What processes report to their store, for the console of any server on it.

use std::sync::Arc;

use hapax::activity::{ActivityEntry, ActivityReader, NodeReport, keys};
use hapax::log::PageRequest;
use hapax::{Key, Operation, Store, StoreConfig, Tenant};
use hapax_testkit::{HttpStub, StubAnswer};

use crate::cli_support::{hapax, run};
use crate::support::server::Setup;
use crate::support::store::TestStore;
use crate::support::{HapaxProcess, eventually};

/// The test's own handle of the store.
struct Observer(Arc<dyn Store>, tokio::runtime::Runtime);

impl Observer {
    fn new(store: &TestStore) -> Self {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let _entered = runtime.enter();
        let store = hapax::open(&store.url(), &StoreConfig::default()).unwrap();
        Self(store, runtime)
    }

    fn nodes(&self) -> Vec<NodeReport> {
        self.1.block_on(ActivityReader::new(&*self.0).nodes()).unwrap()
    }

    fn live(&self) -> Vec<ActivityEntry> {
        let reader = ActivityReader::new(&*self.0);
        self.1.block_on(reader.live(&Tenant::default(), None, 1000)).unwrap().entries
    }

    fn sum(&self, count: impl Fn(&ActivityEntry) -> u64) -> u64 {
        self.live().iter().map(count).sum()
    }
}

/// A service that takes everything.
fn takes_all() -> HttpStub {
    HttpStub::start(|_| {
        StubAnswer::Respond("HTTP/1.1 204 Done\r\nContent-Length: 0\r\n\r\n".to_owned())
    })
}

#[test]
fn server_reports_requests_replays_and_itself() {
    let store = TestStore::sqlite();
    let flags = ["--report-interval", "50ms", "--node", "front-1"];
    let server = Setup::on(&store.url()).flags(&flags).start();
    let observer = Observer::new(&store);
    eventually("a heartbeat", || observer.nodes().len() == 1);
    let node = &observer.nodes()[0];
    assert_eq!((&*node.node, &*node.edge, node.stopped), ("front-1", "api", false));
    assert!(observer.live().is_empty(), "nothing has happened");
    let tenants = run(hapax().args(["tenant", "list", "--store", &store.url()]));
    assert_eq!(tenants.ok().trim(), "", "a process that merely runs is no tenant");

    server.lock("k");
    assert_eq!(server.post("/v1/locks/k").status(), 409);
    assert_eq!(server.get("/v1/operator/locks").status(), 200);
    eventually("both requests", || observer.sum(|entry| entry.counts.requests) == 2);
    assert_eq!(observer.sum(|entry| entry.counts.first_runs), 1);
    assert_eq!(observer.sum(|entry| entry.counts.refusals), 1);
    assert_eq!(observer.sum(|entry| entry.latency.count()), 2, "operators' calls are no activity");
    let samples: Vec<_> = observer.live().into_iter().flat_map(|e| e.suppressed).collect();
    assert_eq!((samples.len(), &*samples[0].operation), (1, "lock"));
    assert!(samples[0].after_first_ms.is_some());
    let key = Key::lock(&Tenant::default(), "k").unwrap();
    let owner = observer.1.block_on(observer.0.look(&key)).unwrap().unwrap().token.unwrap();
    assert_eq!(owner.label(), Some("front-1"));

    server.signal(rustix::process::Signal::TERM);
    server.ended();
    assert!(observer.nodes()[0].stopped);
    assert_eq!(
        observer.1.block_on(observer.0.tenants(None, 9)).unwrap().tenants,
        [Tenant::default()]
    );
}

#[test]
fn server_without_report_interval_writes_nothing() {
    let store = TestStore::sqlite();
    let server = Setup::on(&store.url()).flags(&["--report-interval", "0s"]).start();
    server.lock("k");
    server.signal(rustix::process::Signal::TERM);
    server.ended();
    let observer = Observer::new(&store);
    let page = PageRequest::new(0, 1);
    for job in keys::live_jobs(&Tenant::default()).iter().chain(&keys::node_jobs()) {
        let attached = observer.0.attach(job, &page);
        assert_eq!(observer.1.block_on(attached).unwrap(), None);
    }
}

#[test]
fn relay_reports_its_sink_and_the_rows_that_it_sent() {
    let (store, webhook) = (TestStore::sqlite(), takes_all());
    let mut command = hapax();
    command.args(["relay", "--from", &store.url(), "--to", &webhook.url("/"), "--allow-private"]);
    command.args(["--report-interval", "50ms", "--config", "/dev/null"]);
    let mut relay = HapaxProcess::start(&mut command);
    let observer = Observer::new(&store);
    eventually("its sink is up", || {
        let nodes = observer.nodes();
        nodes.iter().any(|node| node.target.as_ref().is_some_and(|target| target.up))
    });
    let node = &observer.nodes()[0];
    assert!(node.node.starts_with("relay-") && &*node.edge == "relay", "{node:?}");
    assert_eq!(node.target.as_ref().unwrap().queue.as_deref(), Some("outbox"));
    let queue = hapax::queue::QueueName::outbox();
    let item = hapax::queue::QueueItem::new(&Tenant::default(), "orders", "{}");
    observer.1.block_on(observer.0.enqueue(&queue, &[item])).unwrap();
    assert_eq!(node.target.as_ref().unwrap().last_error, None, "it was never away");
    let acked = |entry: &ActivityEntry| entry.queues.get("outbox").map_or(0, |queue| queue.acked);
    eventually("the row is counted", || observer.sum(acked) == 1);
    assert_eq!(observer.sum(|entry| entry.counts.requests), 1);
    assert_eq!(observer.sum(|entry| entry.counts.first_runs), 1);
    assert_eq!(observer.sum(|entry| entry.latency.count()), 1);
    relay.stop();
    assert!(observer.nodes()[0].stopped);
}

#[test]
fn proxy_reports_replays_once_and_labels_its_claims() {
    let (store, upstream) = (TestStore::sqlite(), takes_all());
    let mut command = hapax();
    command.args(["proxy", "--upstream", &upstream.url(""), "--store", &store.url()]);
    command.args(["--listen", "127.0.0.1:0", "--config", "/dev/null"]);
    command.args(["--report-interval", "50ms", "--node", "edge-1"]);
    let proxy = HapaxProcess::start(&mut command);
    let observer = Observer::new(&store);
    for _ in 0..3 {
        let request = crate::support::http::HttpRequest::new(&proxy.address(), "POST", "/nowhere");
        request.header("Idempotency-Key", "order-1").header("Authorization", "Bearer x").send();
    }
    eventually("three requests", || observer.sum(|entry| entry.counts.requests) == 3);
    assert_eq!(observer.sum(|entry| entry.counts.first_runs), 1);
    assert_eq!(observer.sum(|entry| entry.counts.replays), 2);
    assert_eq!(observer.sum(|entry| entry.latency.count()), 3);
    let samples: Vec<_> = observer.live().into_iter().flat_map(|e| e.suppressed).collect();
    assert_eq!((samples.len(), &*samples[0].operation), (2, "POST /nowhere"));
    let caller = samples[0].caller.clone().expect("a caller");
    let tenant = Tenant::default().scoped(&caller).unwrap();
    let key = Key::command(&tenant, Operation("POST /nowhere"), "order-1").unwrap();
    let owner = observer.1.block_on(observer.0.look(&key)).unwrap().unwrap().token.unwrap();
    assert_eq!(owner.label(), Some("edge-1"));
}
