//! Several nodes on one database, and many operations in one statement.

use std::time::Duration;

use bytes::Bytes;
use hapax_core::{
    Claimed, Claims, Expect, Fingerprint, GiveBack, Key, Records, Step, Store, Swept, Tenant, Token,
};
use hapax_postgres::{PostgresConfig, PostgresStore};
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::{LONG, SERVER, ask, granted, key, open};

/// A timeout that does not fail on a busy machine.
const PATIENT: Duration = Duration::from_secs(60);

#[tokio::test(flavor = "multi_thread")]
async fn claims_on_two_nodes_grant_one_of_64() {
    let url = SERVER.database("one_winner");
    let nodes = [open(&url), open(&url)];
    let mut last = 0;
    for round in 0..20 {
        let mut askers = JoinSet::new();
        for asker in 0..64 {
            let (node, key) = (nodes[asker % 2].clone(), key("contended"));
            askers.spawn(async move { node.claim(&key, &ask()).await.unwrap() });
        }
        let answers = askers.join_all().await;
        let mut tickets = answers.iter().filter_map(|answer| match answer {
            Claimed::Granted { ticket, .. } => Some(ticket.clone()),
            Claimed::Busy { .. } => None,
            other => panic!("{other:?}"),
        });
        let ticket = tickets.next().expect("one is granted");
        assert_eq!(tickets.next(), None, "round {round}");
        assert!(ticket.fence.0 > last);
        last = ticket.fence.0;
        let node = &nodes[round % 2];
        let back = node.give_back(&key("contended"), &ticket.token, GiveBack::Forget).await;
        assert_eq!(back.unwrap(), Step::Done(ticket.fence));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn batch_answers_each_operation() {
    let store = open(&SERVER.database("mixed"));
    let settled = granted(&store, &key("settled"), &ask()).await;
    let _ = store.settle(&key("settled"), &settled.token, "value".into()).await.unwrap();
    let own = ask();
    let owned = granted(&store, &key("own"), &own).await;
    granted(&store, &key("busy"), &ask()).await;
    let failed = granted(&store, &key("failed"), &ask()).await;
    let _ = store.give_back(&key("failed"), &failed.token, GiveBack::Keep).await.unwrap();

    let mut asks = Vec::new();
    for _ in 0..5 {
        asks.extend([
            (key("settled"), ask()),
            (key("own"), own.clone()),
            (key("busy"), ask()),
            (key("busy"), ask().fingerprint(Fingerprint::new("other"))),
            (key("failed"), ask()),
            (key("fresh"), ask()),
        ]);
    }
    let mut running = JoinSet::new();
    for (at, (key, ask)) in asks.into_iter().enumerate() {
        let store = store.clone();
        running.spawn(async move { (at % 6, store.claim(&key, &ask).await.unwrap()) });
    }
    let answers = running.join_all().await;
    let of = |kind: usize| answers.iter().filter(move |(k, _)| *k == kind).map(|(_, a)| a);
    assert!(of(0).all(|a| matches!(a, Claimed::Settled { value, .. } if value == "value")));
    assert!(
        of(1).all(|a| matches!(a, Claimed::Granted { ticket, attempt: 1 } if *ticket == owned))
    );
    assert!(of(2).all(|a| matches!(a, Claimed::Busy { .. })));
    assert!(of(3).all(|a| matches!(a, Claimed::Mismatch)));
    let grants = |kind| of(kind).filter(|a| matches!(a, Claimed::Granted { .. })).count();
    let waits = |kind| of(kind).filter(|a| matches!(a, Claimed::Busy { .. })).count();
    assert_eq!((grants(4), waits(4)), (1, 4));
    assert_eq!((grants(5), waits(5)), (1, 4));
}

#[tokio::test(flavor = "multi_thread")]
async fn steps_on_one_key_run_in_order() {
    let store = open(&SERVER.database("steps"));
    let ticket = granted(&store, &key("k"), &ask()).await;
    let mut steps = JoinSet::new();
    for n in 0..30 {
        let (store, ticket) = (store.clone(), ticket.clone());
        steps.spawn(async move {
            match n % 3 {
                0 => store.settle(&key("k"), &ticket.token, Bytes::from(format!("{n}"))).await,
                1 => store.extend(&key("k"), &ticket.token, LONG).await,
                _ => store.settle(&key("k"), &Token::random(), "stranger".into()).await,
            }
            .map(|step| (n, step))
            .unwrap()
        });
    }
    let answers = steps.join_all().await;
    let settled: Vec<_> =
        answers.iter().filter(|(n, s)| n % 3 == 0 && *s == Step::Done(ticket.fence)).collect();
    let [(winner, _)] = settled[..] else { panic!("{answers:?}") };
    assert!(answers.iter().all(|(n, step)| n % 3 != 2 || *step == Step::Lost));
    let Claimed::Settled { value, .. } = store.claim(&key("k"), &ask()).await.unwrap() else {
        panic!()
    };
    assert_eq!(value, winner.to_string());
}

#[tokio::test(flavor = "multi_thread")]
async fn settle_wakes_waiters_on_both_nodes() {
    let url = SERVER.database("waiters");
    let (here, there) = (open(&url), open(&url));
    for how in 0..2 {
        let key = key(&format!("k{how}"));
        let ticket = granted(&here, &key, &ask()).await;
        let mut watches = [here.watch(&key), there.watch(&key)];
        // A listener wakes all waiters once when it is connected; from then on it is notified.
        for watch in watches.iter_mut().filter(|_| how == 0) {
            timeout(PATIENT, watch.changed(LONG)).await.expect("it listens");
        }
        let step = match how {
            0 => here.settle(&key, &ticket.token, "done".into()).await,
            _ => here.give_back(&key, &ticket.token, GiveBack::Forget).await,
        };
        assert_eq!(step.unwrap(), Step::Done(ticket.fence));
        for watch in &mut watches {
            timeout(PATIENT, watch.changed(LONG)).await.expect("a hint");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn sweep_deletes_only_expired_rows() {
    let store = open(&SERVER.database("sweep"));
    let mut brief = ask();
    brief.lease = Duration::from_millis(1);
    brief.retention = Duration::ZERO;
    let mut claims = JoinSet::new();
    for n in 0..700 {
        let (store, brief) = (store.clone(), brief.with_fresh_token());
        claims.spawn(async move { granted(&store, &key(&format!("brief{n}")), &brief).await });
    }
    claims.join_all().await;
    let kept = granted(&store, &key("kept"), &ask()).await;
    let record = |name: &str| Key::record(&Tenant::default(), name).unwrap();
    let ttl = Some(Duration::from_millis(1));
    let _ = store.put(&record("brief"), "v".into(), &Expect::Any, ttl).await.unwrap();
    let _ = store.put(&record("kept"), "v".into(), &Expect::Any, None).await.unwrap();
    tokio::time::sleep(Duration::from_millis(20)).await;
    assert_eq!(store.sweep(10).await.unwrap(), Swept { count: 10, more: true });
    assert_eq!(store.sweep(10_000).await.unwrap(), Swept { count: 691, more: false });
    assert_eq!(store.sweep(10_000).await.unwrap(), Swept { count: 0, more: false });
    assert!(store.get(&record("kept")).await.unwrap().is_some());
    assert_eq!(
        store.extend(&key("kept"), &kept.token, LONG).await.unwrap(),
        Step::Done(kept.fence)
    );
    // The fence of a swept key goes on growing.
    assert!(granted(&store, &key("brief1"), &ask()).await.fence > kept.fence);
}

/// Behind a transaction pooler all waiters were once woken every second.
#[tokio::test(flavor = "multi_thread")]
async fn fault_31_pooled_node_wakes_only_waiters_of_changed_keys() {
    let config = PostgresConfig::new(SERVER.database("pooled_wakes")).transaction_pooler(true);
    let config = config.timeout(PATIENT);
    let [here, there] = [(); 2].map(|()| PostgresStore::open(config.clone()).unwrap());
    // All waiters are woken from time to time, also while this test runs: one good round is enough.
    for round in 0..10 {
        let changed_key = key(&format!("changed{round}"));
        let ticket = granted(&there, &changed_key, &ask()).await;
        let mut changed = here.watch(&changed_key);
        let others: Vec<_> = (0..50).map(|n| here.watch(&key(&format!("other{n}")))).collect();
        let step = there.settle(&changed_key, &ticket.token, "done".into()).await;
        assert_eq!(step.unwrap(), Step::Done(ticket.fence));
        timeout(PATIENT, changed.changed(LONG)).await.expect("a hint");
        let mut woken = 0;
        for mut other in others {
            woken += u32::from(timeout(Duration::ZERO, other.changed(LONG)).await.is_ok());
        }
        if woken == 0 {
            return;
        }
    }
    panic!("every hint woke waiters of other keys");
}
