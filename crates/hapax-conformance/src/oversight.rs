//! The laws of `Oversight`.

use std::collections::HashSet;

use hapax_core::activity::keys;
use hapax_core::log::{Appended, PageRequest};
use hapax_core::{
    ClaimQuery, ClaimRequest, ClaimStatus, Expect, GiveBack, Key, KeyKind, OpenClaims, Operation,
    Put, Tenant,
};

use crate::context::{LONG, LawContext, SHORT};
use crate::log::{KEEP, event};
use crate::suite::laws;

laws![
    list_shows_exactly_the_claims_of_its_tenant_and_kind,
    list_filters_by_state,
    tenants_lists_each_tenant_once,
    tenants_lists_those_with_records_or_jobs_alone,
    tenants_leaves_out_what_is_kept_for_operators,
    open_claims_are_counted_by_status,
];

async fn tenants_lists_each_tenant_once(s: LawContext) {
    let scoped = s.tenant.scoped("0123abcd").unwrap();
    let near = Tenant::new(&format!("{}-b", s.tenant.as_str())).unwrap();
    for tenant in [&s.tenant, &scoped, &near] {
        let key = Key::command(tenant, Operation("pay"), "k").unwrap();
        s.granted(&key, &ClaimRequest::new(LONG).retention(LONG)).await;
    }
    let all = s.store.tenants(u32::MAX).await.expect("the store answers");
    let mine: Vec<_> =
        all.iter().filter(|found| found.as_str().starts_with(s.tenant.as_str())).collect();
    assert_eq!(mine, [&s.tenant, &near]);
    assert_eq!(s.store.tenants(1).await.expect("the store answers").len(), 1);
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
    let all = s.store.tenants(u32::MAX).await.expect("the store answers");
    for tenant in [&records, &jobs, &scoped] {
        assert_eq!(all.iter().filter(|found| *found == tenant).count(), 1, "{all:?}");
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
    let all = s.store.tenants(u32::MAX).await.expect("the store answers");
    assert!(!all.iter().any(|found| found.as_str().is_empty() || *found == seen), "{all:?}");
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

/// The keys on all pages of a list.
async fn listed(s: &LawContext, tenant: &Tenant, status: Option<ClaimStatus>) -> HashSet<Key> {
    let (tenant, kind) = (tenant.clone(), KeyKind::Command);
    let mut list = ClaimQuery { tenant, kind, status, scope: None, after: None, max_claims: 7 };
    let mut keys = HashSet::new();
    for _ in 0..100_000 {
        let page = s.store.list(&list).await.expect("the store answers");
        keys.extend(page.claims.into_iter().map(|listed| listed.key));
        if page.next.is_none() {
            return keys;
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
