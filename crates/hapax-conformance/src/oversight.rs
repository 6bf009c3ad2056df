//! The laws of `Oversight`.

use std::collections::{BTreeSet, HashSet};

use hapax_core::activity::keys;
use hapax_core::log::{Appended, PageRequest};
use hapax_core::{
    ClaimQuery, ClaimRequest, ClaimStatus, ClaimSummary, Expect, GiveBack, Key, KeyKind,
    OpenClaims, Operation, Put, Tenant,
};

use crate::context::{LONG, LawContext, SHORT};
use crate::log::{KEEP, event};
use crate::suite::laws;

laws![
    list_shows_exactly_the_claims_of_its_tenant_and_kind,
    list_filters_by_state,
    list_filters_by_scope,
    list_shows_the_label_of_the_owner,
    tenants_lists_each_tenant_once,
    tenants_lists_those_with_records_or_jobs_alone,
    tenants_leaves_out_what_is_kept_for_operators,
    open_claims_are_counted_by_status,
    open_claims_are_counted_by_tenant,
    claims_of_a_tenant_are_counted_up_to_a_limit,
];

/// The tenants of all pages, none of which has one twice.
async fn all_tenants(s: &LawContext, at_most: u32) -> BTreeSet<String> {
    let (mut all, mut after) = (BTreeSet::new(), None);
    loop {
        let page = s.store.tenants(after.as_deref(), at_most).await.expect("the store answers");
        let names = page.tenants.iter().map(|tenant| tenant.as_str().to_owned());
        let distinct: BTreeSet<_> = names.collect();
        assert_eq!(distinct.len(), page.tenants.len(), "{:?}", page.tenants);
        all.extend(distinct);
        after = page.next;
        if after.is_none() {
            return all;
        }
    }
}

async fn tenants_lists_each_tenant_once(s: LawContext) {
    let scoped = s.tenant.scoped("0123abcd").unwrap();
    let near = Tenant::new(&format!("{}-b", s.tenant.as_str())).unwrap();
    for tenant in [&s.tenant, &scoped, &near] {
        let key = Key::command(tenant, Operation("pay"), "k").unwrap();
        s.granted(&key, &ClaimRequest::new(LONG).retention(LONG)).await;
    }
    for at_most in [1, 1000] {
        let all = all_tenants(&s, at_most).await;
        let mine: Vec<_> =
            all.iter().filter(|found| found.starts_with(s.tenant.as_str())).collect();
        assert_eq!(mine, [s.tenant.as_str(), near.as_str()], "in pages of {at_most}");
    }
}

async fn tenants_lists_those_with_records_or_jobs_alone(s: LawContext) {
    let [records, jobs, scoped] = ["-records", "-jobs", "-scoped"]
        .map(|end| Tenant::new(&format!("{}{end}", s.tenant.as_str())).unwrap());
    for tenant in [&records, &scoped.scoped("0123abcd").unwrap()] {
        let key = Key::record(tenant, "k").unwrap();
        let put = s.store.put(&key, "{}".into(), &Expect::Any, None).await;
        assert!(matches!(put, Ok(Put::Stored { .. })));
    }
    let job = Key::job(&jobs, "law", "j").unwrap();
    let appended = s.store.append(&[event(&job, "s", 1)], &KEEP).await;
    assert!(matches!(appended.expect("the store answers")[..], [Appended::Published(_)]));
    let all = all_tenants(&s, 1000).await;
    for tenant in [&records, &jobs, &scoped] {
        assert!(all.contains(tenant.as_str()), "{all:?}");
    }
}

async fn tenants_leaves_out_what_is_kept_for_operators(s: LawContext) {
    let seen = Tenant::new(&format!("{}-seen", s.tenant.as_str())).unwrap();
    let mut jobs = keys::live_jobs(&seen).to_vec();
    jobs.push(keys::audit_job(&seen));
    jobs.extend(keys::node_jobs());
    let events: Vec<_> = jobs.iter().map(|job| event(job, "node", 1)).collect();
    s.store.append(&events, &KEEP).await.expect("the store answers");
    let record = keys::session_record(s.tenant.as_str());
    let put = s.store.put(&record, "{}".into(), &Expect::Any, Some(LONG)).await;
    assert!(matches!(put, Ok(Put::Stored { .. })));
    let all = all_tenants(&s, 1000).await;
    assert!(!all.contains("") && !all.contains(seen.as_str()), "{all:?}");
    assert!(s.store.attach(&jobs[0], &PageRequest::new(0, 1)).await.unwrap().is_some());
}

async fn open_claims_are_counted_by_status(s: LawContext) {
    let [pending, unknown, settled, failed] = ["pending", "unknown", "settled", "failed"]
        .map(|name| Key::inbox(&s.tenant, "count", name).unwrap());
    let ask = ClaimRequest::new(LONG).retention(LONG);
    s.granted(&unknown, &ClaimRequest::new(SHORT).retention(LONG)).await;
    s.granted(&pending, &ask).await;
    let ticket = s.granted(&settled, &ask.with_fresh_token()).await;
    s.settled(&settled, &ticket, "v").await;
    let ticket = s.granted(&failed, &ask.with_fresh_token()).await;
    s.given_back(&failed, &ticket, GiveBack::Keep).await;
    s.outlive(SHORT).await;
    let count = s.store.count_open(None, KeyKind::Inbox).await.expect("the store answers");
    // Redis cannot count.
    let Some(OpenClaims { pending, unknown, failed }) = count else { return };
    assert!(pending > 0 && unknown > 0 && failed > 0, "{count:?}");
    // Elsewhere other laws may have claims in the same store.
    if s.subject.is_private() {
        assert_eq!((pending, unknown, failed), (1, 1, 1));
        let commands = s.store.count_open(None, KeyKind::Command).await.expect("the store answers");
        assert_eq!(commands, Some(OpenClaims::default()), "another kind");
    }
}

/// A tenant and its scope, and tenants whose names sort around them.
fn tenant_and_neighbours(s: &LawContext) -> ([Tenant; 2], [Tenant; 4]) {
    let neighbour = |end: &str| Tenant::stored(&format!("{}{end}", s.tenant.as_str()));
    let others = [neighbour("-b"), neighbour(".b"), neighbour("0"), s.other_tenant()];
    ([s.tenant.clone(), s.tenant.scoped("0123abcd").unwrap()], others)
}

async fn open_claims_are_counted_by_tenant(s: LawContext) {
    let (mine, others) = tenant_and_neighbours(&s);
    let ask = ClaimRequest::new(LONG).retention(LONG);
    for tenant in mine.iter().chain(&others) {
        let key = Key::inbox(tenant, "count", "pending").unwrap();
        s.granted(&key, &ask.with_fresh_token()).await;
    }
    let failed = Key::inbox(&mine[1], "count", "failed").unwrap();
    let ticket = s.granted(&failed, &ask.with_fresh_token()).await;
    s.given_back(&failed, &ticket, GiveBack::Keep).await;
    let count = async |tenant, kind| s.store.count_open(Some(tenant), kind).await.unwrap();
    // Redis cannot count.
    let Some(open) = count(&s.tenant, KeyKind::Inbox).await else { return };
    assert_eq!(open, OpenClaims { pending: 2, unknown: 0, failed: 1 });
    let scoped = OpenClaims { pending: 1, unknown: 0, failed: 1 };
    assert_eq!(count(&mine[1], KeyKind::Inbox).await, Some(scoped));
    let other = OpenClaims { pending: 1, ..OpenClaims::default() };
    assert_eq!(count(&others[0], KeyKind::Inbox).await, Some(other));
    assert_eq!(count(&s.tenant, KeyKind::Lock).await, Some(OpenClaims::default()));
}

async fn claims_of_a_tenant_are_counted_up_to_a_limit(s: LawContext) {
    let (mine, others) = tenant_and_neighbours(&s);
    let ask = ClaimRequest::new(LONG).retention(LONG);
    for tenant in mine.iter().chain(&others) {
        for name in ["a", "b"] {
            let key = Key::command(tenant, Operation("pay"), name).unwrap();
            let ticket = s.granted(&key, &ask.with_fresh_token()).await;
            s.settled(&key, &ticket, "v").await;
        }
        s.granted(&Key::lock(tenant, "l").unwrap(), &ask.with_fresh_token()).await;
    }
    let count = async |tenant, at_most| s.store.count_claims(tenant, at_most).await.unwrap();
    // Redis cannot count.
    let Some(all) = count(&s.tenant, 1000).await else { return };
    assert_eq!(all, 6, "the tenant and its scope");
    assert_eq!(count(&mine[1], 1000).await, Some(3));
    assert_eq!(count(&others[0], 1000).await, Some(3));
    for limit in 0..=6 {
        assert_eq!(count(&s.tenant, limit).await, Some(limit));
    }
}

/// The keys of commands on all pages of a list.
async fn listed(s: &LawContext, tenant: &Tenant, status: Option<ClaimStatus>) -> HashSet<Key> {
    let (tenant, kind) = (tenant.clone(), KeyKind::Command);
    let list = ClaimQuery { tenant, kind, status, scope: None, after: None, max_claims: 7 };
    summaries(s, list).await.into_iter().map(|listed| listed.key).collect()
}

/// The claims on all pages of a list.
async fn summaries(s: &LawContext, mut list: ClaimQuery) -> Vec<ClaimSummary> {
    let mut claims = Vec::new();
    for _ in 0..100_000 {
        let page = s.store.list(&list).await.expect("the store answers");
        claims.extend(page.claims);
        if page.next.is_none() {
            return claims;
        }
        list.after = page.next;
    }
    panic!("the list has no end");
}

async fn list_shows_exactly_the_claims_of_its_tenant_and_kind(s: LawContext) {
    let ask = ClaimRequest::new(LONG).retention(LONG);
    let scoped = s.tenant.scoped("0123abcd").unwrap();
    let mut mine = HashSet::new();
    for i in 0..20 {
        mine.insert(
            Key::command(&s.tenant, Operation("POST /a:b"), &format!("k{i}:*{{}}%")).unwrap(),
        );
        mine.insert(Key::command(&scoped, Operation("pay"), &format!("k{i}")).unwrap());
    }
    let other_tenant = s.other_tenant();
    // Names that sort between the tenant and its scopes, and right behind them.
    let neighbour = |end: &str| Tenant::stored(&format!("{}{end}", s.tenant.as_str()));
    let others = [
        Key::command(&neighbour("-b"), Operation("pay"), "k").unwrap(),
        Key::command(&neighbour(".b"), Operation("pay"), "k").unwrap(),
        Key::command(&neighbour("0"), Operation("pay"), "k").unwrap(),
        Key::command(&other_tenant, Operation("pay"), "k").unwrap(),
        Key::inbox(&s.tenant, "pay", "k").unwrap(),
        Key::lock(&s.tenant, "k").unwrap(),
    ];
    for key in mine.iter().chain(&others) {
        s.granted(key, &ask.with_fresh_token()).await;
    }
    assert_eq!(listed(&s, &s.tenant, None).await, mine);
    assert_eq!(listed(&s, &scoped, None).await.len(), 20);
    assert_eq!(listed(&s, &other_tenant, None).await.len(), 1);
}

async fn list_filters_by_state(s: LawContext) {
    let [pending, unknown, settled, failed, gone] =
        ["pending", "unknown", "settled", "failed", "gone"].map(|name| s.command(name));
    let ask = ClaimRequest::new(LONG).retention(LONG);
    s.granted(&unknown, &ClaimRequest::new(SHORT).retention(LONG)).await;
    s.granted(&gone, &ClaimRequest::new(SHORT)).await;
    s.granted(&pending, &ask).await;
    let ticket = s.granted(&settled, &ask.with_fresh_token()).await;
    s.settled(&settled, &ticket, "v").await;
    let ticket = s.granted(&failed, &ask.with_fresh_token()).await;
    s.given_back(&failed, &ticket, GiveBack::Keep).await;
    s.outlive(SHORT).await;
    for (status, key) in [
        (ClaimStatus::Pending, &pending),
        (ClaimStatus::Unknown, &unknown),
        (ClaimStatus::Settled, &settled),
        (ClaimStatus::Failed, &failed),
    ] {
        let found = listed(&s, &s.tenant, Some(status)).await;
        assert_eq!(found, HashSet::from([key.clone()]), "{status:?}");
    }
    assert_eq!(listed(&s, &s.tenant, None).await.len(), 4);
}

async fn list_filters_by_scope(s: LawContext) {
    let (mine, others) = tenant_and_neighbours(&s);
    let ask = ClaimRequest::new(LONG).retention(LONG);
    // Names that sort around the scope, continue it, and would be patterns.
    let scopes = ["POST /a:b*", "POST /a:b", "POST /a:b*c", "POST /a", "pay"];
    let (mut open, mut settled) = (HashSet::new(), HashSet::new());
    for tenant in mine.iter().chain(&others) {
        for scope in scopes {
            for i in 0..5 {
                let key = Key::command(tenant, Operation(scope), &format!("k{i}")).unwrap();
                let ticket = s.granted(&key, &ask.with_fresh_token()).await;
                let is_mine = mine.contains(tenant) && scope == scopes[0];
                if i == 0 {
                    s.settled(&key, &ticket, "v").await;
                    settled.extend(Some(key).filter(|_| is_mine));
                } else {
                    open.extend(Some(key).filter(|_| is_mine));
                }
            }
        }
    }
    let (tenant, kind, scope) = (s.tenant.clone(), KeyKind::Command, Some(scopes[0].into()));
    let query = ClaimQuery { tenant, kind, status: None, scope, after: None, max_claims: 3 };
    let found = async |status| -> HashSet<Key> {
        let found = summaries(&s, ClaimQuery { status, ..query.clone() }).await;
        found.into_iter().map(|listed| listed.key).collect()
    };
    assert_eq!(found(Some(ClaimStatus::Pending)).await, open);
    assert_eq!(found(Some(ClaimStatus::Settled)).await, settled);
    assert_eq!(found(Some(ClaimStatus::Unknown)).await, HashSet::new());
    assert_eq!(found(None).await, &open | &settled);
    let absent = ClaimQuery { scope: Some("POST".into()), ..query.clone() };
    assert_eq!(summaries(&s, absent).await, []);
}

async fn list_shows_the_label_of_the_owner(s: LawContext) {
    let [labelled, plain] = ["labelled", "plain"].map(|name| s.command(name));
    let ask = ClaimRequest::new(LONG).retention(LONG);
    let ticket = s.granted(&labelled, &ask.clone().label("node-1")).await;
    s.granted(&plain, &ask).await;
    let label = async |key: &Key| {
        let (tenant, kind) = (s.tenant.clone(), KeyKind::Command);
        let query =
            ClaimQuery { tenant, kind, status: None, scope: None, after: None, max_claims: 7 };
        let found = summaries(&s, query).await;
        found.into_iter().find(|listed| listed.key == *key).expect("a claim").label
    };
    assert_eq!(label(&labelled).await.as_deref(), Some("node-1"));
    assert_eq!(label(&plain).await, None);
    s.given_back(&labelled, &ticket, GiveBack::Keep).await;
    assert_eq!(label(&labelled).await.as_deref(), Some("node-1"), "of the last owner");
    s.granted(&labelled, &ask.label("node 2")).await;
    assert_eq!(label(&labelled).await.as_deref(), Some("node 2"));
}
