//! Writes what was recorded to the store, and heartbeats.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep_until, timeout};

use super::entry::MAX_QUEUES;
use super::keys::{self, LogSlots};
use super::recorder::TenantActivity;
use super::{
    ActivityEntry, ActivityRecorder, DepthCounts, MAX_SAMPLES, MessageQuota, NodeReport,
    NodeTarget, install,
};
use crate::log::{Appended, LogEvent};
use crate::worker::TargetHealth;
use crate::{
    Clock, Fingerprint, Store, StoreResult, SystemClock, Tenant, Timestamp, millis, with_timeout,
};

/// How often a node says that it lives.
const HEARTBEAT: Duration = Duration::from_secs(30);
/// The shortest time between two heartbeats, so that a target that comes and goes does not fill the log.
const HEARTBEAT_PAUSE: Duration = Duration::from_secs(1);
const MINUTE: u64 = 60_000;
/// How many minutes of tenants wait for a store that is away; later ones are added to the last of them.
const MAX_PENDING_MINUTES: usize = 1000;
/// Of how many tenants the depths of queues are read at the end of a minute.
const MAX_DEPTH_TENANTS: usize = 10;

type Gate = Arc<dyn Fn() -> bool + Send + Sync>;

/// How a process reports its activity: every two seconds, as the edge `layer`.
///
/// ```no_run
/// # use std::sync::Arc;
/// use hapax_core::{activity::ActivityReport, memory::MemoryStore};
/// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let store = Arc::new(MemoryStore::default());
/// let reporter = ActivityReport::new("orders").start(store)?;
/// // … serve …
/// reporter.stop().await;
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct ActivityReport {
    node: String,
    edge: String,
    interval: Duration,
    store_timeout: Duration,
    clock: Arc<dyn Clock>,
    claims_are_requests: bool,
    with_depths: bool,
    may_write: Option<Gate>,
}

impl ActivityReport {
    /// Reports as a node of this name and a random suffix, which tells processes of one program apart.
    pub fn new(program: &str) -> Self {
        Self {
            node: random_node_name(program),
            edge: "layer".to_owned(),
            interval: Duration::from_secs(2),
            store_timeout: Duration::from_secs(5),
            clock: Arc::new(SystemClock),
            claims_are_requests: true,
            with_depths: false,
            may_write: None,
        }
    }

    /// The exact name of the node, of 1 to 64 bytes of printable ASCII without spaces; another one is ignored. No two
    /// processes should share it.
    #[must_use]
    pub fn node(mut self, name: &str) -> Self {
        if is_node_name(name) {
            self.node = name.to_owned();
        }
        self
    }

    /// The kind of the node: charts are drawn for each kind.
    #[must_use]
    pub fn edge(mut self, edge: &str) -> Self {
        self.edge = edge.to_owned();
        self
    }

    crate::builder_methods! {
        /// How often activity is written, where there was any.
        interval: Duration;
        /// The longest that one store call may take.
        store_timeout: Duration;
        /// The clock whose time entries have.
        clock: Arc<dyn Clock>;
        /// Whether each claim counts as a request. Not where an edge records its requests itself.
        claims_are_requests: bool;
        /// Whether the depths of queues are read at the end of each minute.
        with_depths: bool;
    }

    /// Writes nothing to the store while this is false, such as before the store was examined.
    #[must_use]
    pub fn may_write(mut self, may_write: impl Fn() -> bool + Send + Sync + 'static) -> Self {
        self.may_write = Some(Arc::new(may_write));
        self
    }

    /// The name of the node.
    pub fn node_name(&self) -> &str {
        &self.node
    }

    /// Records the activity of this process from now on, and reports it to the store, in a task of its own. A process has
    /// one recorder; a second call is refused.
    pub fn start(self, store: Arc<dyn Store>) -> Result<ActivityReporter, AlreadyReporting> {
        let recorder = self.recorder();
        install(recorder.clone()).map_err(|_| AlreadyReporting)?;
        Ok(self.start_with(store, recorder))
    }

    /// A recorder for [`ActivityReport::start_with`].
    pub fn recorder(&self) -> Arc<ActivityRecorder> {
        Arc::new(ActivityRecorder::new(self.clock.clone(), self.claims_are_requests))
    }

    /// As [`ActivityReport::start`], with a recorder that need not be that of the process.
    pub fn start_with(
        self,
        store: Arc<dyn Store>,
        recorder: Arc<ActivityRecorder>,
    ) -> ActivityReporter {
        let (status, facts) = watch::channel(NodeFacts::default());
        let (stop, stopped) = watch::channel(false);
        let node = self.node.clone();
        let longest_stop = self.store_timeout;
        let now = self.clock.now();
        let task = ReporterTask {
            store,
            recorder,
            facts,
            started_at: now.0,
            collected_at: now,
            minute: now.0 / MINUTE,
            live: BTreeMap::new(),
            minutes: HashMap::new(),
            ended_minutes: Vec::new(),
            unanswered_live: None,
            unanswered_minutes: None,
            last_seq: 0,
            beat_at: Instant::now(),
            last_beat: None,
            report: self,
        };
        let task = tokio::spawn(task.run(stopped));
        let status = NodeStatus(Arc::new(status));
        ActivityReporter { node, status, stop, task, longest_stop }
    }
}

/// The error of a second [`ActivityReport::start`] in a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("this process reports its activity already")]
pub struct AlreadyReporting;

/// Whether a text can be the name of a node, and thereby a label of its claims.
pub fn is_node_name(text: &str) -> bool {
    (1..=64).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_graphic())
}

/// A name for a node: that of its program, and 32 random bits.
pub fn random_node_name(program: &str) -> String {
    let mut random = [0; 4];
    // Without randomness two processes may share a name; that is no reason to fail.
    let _ = getrandom::fill(&mut random);
    let program = if is_node_name(program) { program } else { "node" };
    let program = &program[..program.len().min(55)];
    format!("{program}-{:08x}", u32::from_be_bytes(random))
}

/// A running reporter. Where it is dropped without [`stop`](ActivityReporter::stop), it goes on.
pub struct ActivityReporter {
    node: String,
    status: NodeStatus,
    stop: watch::Sender<bool>,
    task: JoinHandle<()>,
    longest_stop: Duration,
}

impl ActivityReporter {
    /// The name of the node.
    pub fn node_name(&self) -> &str {
        &self.node
    }

    /// What the node says about itself, to be changed.
    pub fn status(&self) -> NodeStatus {
        self.status.clone()
    }

    /// Writes what is left, and a last heartbeat.
    pub async fn stop(self) {
        self.stop.send_replace(true);
        let abort = self.task.abort_handle();
        if timeout(self.longest_stop, self.task).await.is_err() {
            abort.abort();
        }
    }
}

/// What a node says about itself with its next heartbeat, which a change brings forward.
#[derive(Clone, Debug)]
pub struct NodeStatus(Arc<watch::Sender<NodeFacts>>);

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct NodeFacts {
    findings: u64,
    target: Option<NodeTarget>,
    quota: Option<MessageQuota>,
}

impl NodeStatus {
    /// How many checks of the store found something wrong.
    pub fn set_findings(&self, findings: u64) {
        self.change(|facts| facts.findings = findings);
    }

    /// Whether the target takes anything. The reason why it was last away is kept when it is back.
    pub fn set_target(&self, name: &str, queue: Option<&str>, health: &TargetHealth) {
        self.change(|facts| {
            let before = facts.target.take().unwrap_or_default();
            let last_error = match health {
                TargetHealth::Up => before.last_error,
                // That is no failure which somebody would have to look at later.
                health if *health == TargetHealth::NOT_CHECKED => before.last_error,
                TargetHealth::Down(reason) => Some(reason.clone().into_owned()),
            };
            facts.target = Some(NodeTarget {
                name: name.to_owned(),
                queue: queue.map(str::to_owned),
                up: *health == TargetHealth::Up,
                last_error,
            });
        });
    }

    /// Keeps the target of the status up to date with its health, for as long as that is told.
    pub fn follow_target(
        &self,
        name: &str,
        queue: Option<&str>,
        mut health: watch::Receiver<TargetHealth>,
    ) {
        let (status, name, queue) = (self.clone(), name.to_owned(), queue.map(str::to_owned));
        tokio::spawn(async move {
            loop {
                let now = health.borrow_and_update().clone();
                status.set_target(&name, queue.as_deref(), &now);
                if health.changed().await.is_err() {
                    return;
                }
            }
        });
    }

    /// Keeps the quota of the status up to date, for as long as it is told.
    pub fn follow_quota(&self, mut quota: watch::Receiver<Option<MessageQuota>>) {
        let status = self.clone();
        tokio::spawn(async move {
            loop {
                let now = *quota.borrow_and_update();
                now.into_iter().for_each(|quota| status.set_quota(quota));
                if quota.changed().await.is_err() {
                    return;
                }
            }
        });
    }

    /// How many messages the channel may send.
    pub fn set_quota(&self, quota: MessageQuota) {
        self.change(|facts| facts.quota = Some(quota));
    }

    fn change(&self, change: impl FnOnce(&mut NodeFacts)) {
        self.0.send_if_modified(|facts| {
            let before = facts.clone();
            change(facts);
            *facts != before
        });
    }
}

/// Adds an entry to what waits for a key.
fn add<K: Ord>(entries: &mut BTreeMap<K, ActivityEntry>, key: K, entry: ActivityEntry) {
    match entries.get_mut(&key) {
        Some(kept) => {
            kept.ms = entry.at.saturating_add(entry.ms).saturating_sub(kept.at);
            kept.merge(entry);
        }
        None => drop(entries.insert(key, entry)),
    }
}

/// Entries whose append was not answered. They may be in the log, so they are sent again with the same identity until that is
/// known; otherwise they could be counted twice.
struct UnansweredAppend {
    entries: Vec<(Box<str>, ActivityEntry)>,
    events: Vec<LogEvent>,
    made_at: Timestamp,
}

struct ReporterTask {
    report: ActivityReport,
    store: Arc<dyn Store>,
    recorder: Arc<ActivityRecorder>,
    facts: watch::Receiver<NodeFacts>,
    started_at: u64,
    /// Until when activity was collected.
    collected_at: Timestamp,
    /// The minute that is being collected.
    minute: u64,
    /// Entries of some seconds that are not written yet.
    live: BTreeMap<Box<str>, ActivityEntry>,
    minutes: HashMap<Box<str>, ActivityEntry>,
    /// Entries of minutes that are not written yet.
    ended_minutes: Vec<(Box<str>, ActivityEntry)>,
    unanswered_live: Option<UnansweredAppend>,
    unanswered_minutes: Option<UnansweredAppend>,
    last_seq: u64,
    beat_at: Instant,
    last_beat: Option<Instant>,
}

impl ReporterTask {
    async fn run(mut self, mut stop: watch::Receiver<bool>) {
        let interval = self.report.interval.max(Duration::from_millis(10));
        let mut collect_at = Instant::now() + interval;
        loop {
            tokio::select! {
                biased;
                // A reporter that was dropped goes on.
                Ok(_) = stop.wait_for(|stop| *stop) => break,
                Ok(()) = self.facts.changed() => {
                    let soonest = self.last_beat.map_or(Instant::now(), |at| at + HEARTBEAT_PAUSE);
                    self.beat_at = self.beat_at.min(soonest);
                    continue;
                }
                () = sleep_until(collect_at.min(self.beat_at)) => {}
            }
            if Instant::now() >= collect_at {
                self.collect().await;
                self.write().await;
                collect_at = (collect_at + interval).max(Instant::now());
            }
            if Instant::now() >= self.beat_at {
                self.beat(interval, false).await;
            }
        }
        self.collect().await;
        self.end_minute().await;
        self.write().await;
        // Only a node that was seen has to be seen to stop.
        if self.last_beat.is_some() {
            self.beat(interval, true).await;
        }
    }

    fn may_write(&self) -> bool {
        self.report.may_write.as_ref().is_none_or(|may_write| may_write())
    }

    /// Takes what was recorded since the last time.
    async fn collect(&mut self) {
        let (from, now) = (self.collected_at, self.report.clock.now());
        self.collected_at = now;
        if from.0 / MINUTE != self.minute {
            self.end_minute().await;
            self.minute = from.0 / MINUTE;
        }
        let mut drained = self.recorder.drain();
        if drained.is_empty() {
            return;
        }
        if self.may_write() {
            let look = self.look_at_samples(&mut drained, now);
            // Samples that could not be looked at are reported without the time.
            let _ = timeout(self.report.store_timeout, look).await;
        }
        let open = self.recorder.open_streams();
        for (tenant, activity) in drained {
            let mut entry = activity.into_entry();
            entry.at = from.0;
            entry.ms = millis(now.since(from));
            entry.node.clone_from(&self.report.node);
            entry.edge.clone_from(&self.report.edge);
            entry.streams.open = open.get(&tenant).copied().unwrap_or_default();
            let of_minute = ActivityEntry { jobs: Vec::new(), ..entry.clone() };
            match self.minutes.get_mut(&tenant) {
                Some(kept) => kept.merge(of_minute),
                None => drop(self.minutes.insert(tenant.clone(), of_minute)),
            }
            add(&mut self.live, tenant, entry);
        }
    }

    /// Finds out how long after the first one duplicates came.
    async fn look_at_samples(
        &self,
        drained: &mut BTreeMap<Box<str>, TenantActivity>,
        now: Timestamp,
    ) {
        let samples = drained.values_mut().flat_map(TenantActivity::samples_mut);
        for sample in samples.take(MAX_SAMPLES) {
            if let Ok(Some(view)) = self.store.look(&sample.key).await {
                let first = view.granted_ago.map(|ago| now.0.saturating_sub(millis(ago)));
                sample.after_first_ms = first.map(|first| sample.at.saturating_sub(first));
            }
        }
    }

    /// Closes the minute that is over. A tenant with open streams has an entry for it even if nothing happened.
    async fn end_minute(&mut self) {
        let open = self.recorder.open_streams();
        for tenant in open.keys() {
            if !self.minutes.contains_key(tenant) {
                self.minutes.insert(tenant.clone(), self.empty_entry());
            }
        }
        let mut ended: Vec<_> = self.minutes.drain().collect();
        for (tenant, entry) in &mut ended {
            (entry.at, entry.ms) = (self.minute * MINUTE, MINUTE);
            entry.streams.open = open.get(tenant).copied().unwrap_or_default();
        }
        if self.report.with_depths && self.may_write() && !ended.is_empty() {
            let read = read_depths(&*self.store, &mut ended);
            let _ = timeout(self.report.store_timeout, read).await;
        }
        for (tenant, entry) in ended {
            let is_full = self.ended_minutes.len() >= MAX_PENDING_MINUTES;
            let last = self.ended_minutes.iter_mut().rev().find(|(of, _)| *of == tenant);
            match last.filter(|_| is_full) {
                Some((_, kept)) => kept.merge(entry),
                None if is_full => {}
                None => self.ended_minutes.push((tenant, entry)),
            }
        }
    }

    fn empty_entry(&self) -> ActivityEntry {
        let (node, edge) = (self.report.node.clone(), self.report.edge.clone());
        ActivityEntry { node, edge, ..ActivityEntry::default() }
    }

    /// Writes the entries that wait. Those that come while an earlier append is not answered wait for it, as one.
    async fn write(&mut self) {
        if !self.may_write() {
            return;
        }
        let now = self.report.clock.now();
        let unanswered = self.unanswered_live.take();
        let (refused, unanswered) = self.send_again(&keys::LIVE, now, unanswered).await;
        self.unanswered_live = unanswered;
        refused.into_iter().for_each(|(tenant, entry)| add(&mut self.live, tenant, entry));
        if !self.live.is_empty() && self.unanswered_live.is_none() {
            let live: Vec<_> = std::mem::take(&mut self.live).into_iter().collect();
            let with_jobs = live.iter().filter(|(_, entry)| !entry.jobs.is_empty());
            let jobs: Vec<_> =
                with_jobs.map(|(tenant, entry)| (tenant.clone(), entry.jobs.clone())).collect();
            if !jobs.is_empty() {
                // A list that is not written is left out: the job itself tells more.
                let jobs = &jobs[..jobs.len().min(crate::log::MAX_APPEND)];
                let events = self.events(&keys::RECENT_JOBS, now, jobs);
                self.append_events(&keys::RECENT_JOBS, &events).await;
            }
            let (refused, unanswered) = self.append_entries(&keys::LIVE, now, live).await;
            self.unanswered_live = unanswered;
            refused.into_iter().for_each(|(tenant, entry)| add(&mut self.live, tenant, entry));
        }
        let unanswered = self.unanswered_minutes.take();
        let (mut refused, unanswered) = self.send_again(&keys::MINUTES, now, unanswered).await;
        self.unanswered_minutes = unanswered;
        self.ended_minutes.append(&mut refused);
        if !self.ended_minutes.is_empty() && self.unanswered_minutes.is_none() {
            let ended = std::mem::take(&mut self.ended_minutes);
            (self.ended_minutes, self.unanswered_minutes) =
                self.append_entries(&keys::MINUTES, now, ended).await;
        }
    }

    /// Appends the entries of tenants; returns those that were refused or not sent, and those that were not answered.
    async fn append_entries(
        &mut self,
        slots: &LogSlots,
        now: Timestamp,
        mut entries: Vec<(Box<str>, ActivityEntry)>,
    ) -> (Vec<(Box<str>, ActivityEntry)>, Option<UnansweredAppend>) {
        let mut later = entries.split_off(entries.len().min(crate::log::MAX_APPEND));
        let events = self.events(slots, now, &entries);
        let append = UnansweredAppend { entries, events, made_at: now };
        let (mut refused, unanswered) = self.send_again(slots, now, Some(append)).await;
        refused.append(&mut later);
        (refused, unanswered)
    }

    /// Sends an append as it was made; returns the entries that were refused, and the append if it is still not answered.
    async fn send_again(
        &self,
        slots: &LogSlots,
        now: Timestamp,
        append: Option<UnansweredAppend>,
    ) -> (Vec<(Box<str>, ActivityEntry)>, Option<UnansweredAppend>) {
        // After that long nobody looks for the entries, and their log may have begun anew.
        let is_wanted =
            |append: &UnansweredAppend| now.since(append.made_at) < slots.retention().retention;
        let Some(append) = append.filter(is_wanted) else { return (Vec::new(), None) };
        match self.append_events(slots, &append.events).await {
            Some(answers) => {
                let answered = append.entries.into_iter().zip(answers);
                // Another node of this name took the number.
                let refused = answered.filter(|(_, answer)| *answer == Appended::Conflict);
                (refused.map(|(entry, _)| entry).collect(), None)
            }
            None => (Vec::new(), Some(append)),
        }
    }

    /// `None` if the store did not answer.
    async fn append_events(&self, slots: &LogSlots, events: &[LogEvent]) -> Option<Vec<Appended>> {
        let append = self.store.append(events, slots.retention());
        let answer = with_timeout(self.report.store_timeout, append).await;
        let failed = |error: &crate::StoreError| {
            tracing::debug!(reason = error.label(), "activity was not written: {error}");
        };
        answer.inspect_err(failed).ok()
    }

    fn events<T: Serialize>(
        &mut self,
        slots: &LogSlots,
        now: Timestamp,
        entries: &[(Box<str>, T)],
    ) -> Vec<LogEvent> {
        entries.iter().map(|(tenant, entry)| self.event(slots, tenant, now, entry)).collect()
    }

    /// The identity of an entry is the node and a number that grows.
    fn event<T: Serialize>(
        &mut self,
        slots: &LogSlots,
        tenant: &str,
        now: Timestamp,
        entry: &T,
    ) -> LogEvent {
        let payload = serde_json::to_vec(entry).expect("an entry becomes JSON");
        self.last_seq = now.0.max(self.last_seq + 1).min(crate::log::MAX_NUMBER);
        LogEvent {
            job: slots.job_at(tenant, now),
            stage: self.report.node.as_str().into(),
            seq: self.last_seq,
            fingerprint: Fingerprint::of(&[&payload]),
            payload: payload.into(),
            closes: false,
        }
    }

    async fn beat(&mut self, interval: Duration, stopped: bool) {
        let begun = Instant::now();
        let written = self.may_write() && self.write_heartbeat(stopped).await;
        if written {
            self.last_beat = Some(begun);
        }
        self.beat_at = begun + if written { HEARTBEAT } else { interval };
    }

    /// Whether the heartbeat was written.
    async fn write_heartbeat(&mut self, stopped: bool) -> bool {
        let begun = Instant::now();
        let ping = with_timeout(self.report.store_timeout, self.store.ping()).await;
        let store_latency_ms = ping.is_ok().then(|| millis(begun.elapsed()));
        let facts = self.facts.borrow_and_update().clone();
        let now = self.report.clock.now();
        let report = NodeReport {
            at: now.0,
            node: self.report.node.clone(),
            edge: self.report.edge.clone(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            started_at: self.started_at,
            pid: std::process::id(),
            store_latency_ms,
            findings: facts.findings,
            stopped,
            target: facts.target,
            quota: facts.quota,
        };
        let events = self.events(&keys::NODES, now, &[("".into(), report)]);
        let answers = self.append_events(&keys::NODES, &events).await;
        answers.is_some_and(|answers| !answers.contains(&Appended::Conflict))
    }
}

/// Reads what waits in each queue for each tenant, as far as the time reaches.
async fn read_depths(
    store: &dyn Store,
    ended: &mut [(Box<str>, ActivityEntry)],
) -> StoreResult<()> {
    let queues = store.queues().await?;
    for (tenant, entry) in ended.iter_mut().take(MAX_DEPTH_TENANTS) {
        let tenant = Tenant::stored(tenant);
        for queue in queues.iter().take(MAX_QUEUES) {
            let depth = store.depth(queue, Some(&tenant)).await?;
            let (waiting, in_flight, dead) = (depth.waiting, depth.in_flight, depth.dead);
            // An empty queue that had items is measured too: that is how fast it was filled.
            if waiting + in_flight + dead > 0 || entry.queues.contains_key(queue.as_str()) {
                let depth = DepthCounts { waiting, in_flight, dead };
                entry.depths.insert(queue.as_str().to_owned(), depth);
            }
        }
    }
    Ok(())
}
