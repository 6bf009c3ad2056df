//! Claims inside a transaction that the caller owns.

use std::time::Duration;

use crate::common::{PATIENT, Place, ask, command, record, ticket};
use hapax_core::{
    Claimed, Claims, Clock, Expect, GiveBack, Put, Records, Step, StoreError, SystemClock,
};
use hapax_sqlite::rusqlite::{Connection, TransactionBehavior};
use hapax_sqlite::tx::{self, Once, OnceError};

const CLOCK: &dyn Clock = &SystemClock;

/// A user's database, with hapax's tables beside the user's own.
fn shop(place: &Place) -> Connection {
    let shop = place.stranger();
    shop.pragma_update(None, "journal_mode", "WAL").unwrap();
    hapax_sqlite::migrate(&shop).unwrap();
    shop.execute_batch("CREATE TABLE IF NOT EXISTS orders (item TEXT)").unwrap();
    shop
}

fn orders(shop: &Connection) -> i64 {
    shop.query_row("SELECT count(*) FROM orders", [], |row| row.get(0)).unwrap()
}

fn order(shop: &Connection) -> rusqlite::Result<bytes::Bytes> {
    shop.execute("INSERT INTO orders VALUES ('bento')", [])?;
    Ok("ordered".into())
}

#[test]
fn a_duplicate_never_waits_for_an_open_transaction() {
    let place = Place::new();
    let (mut one, mut two) = (shop(&place), shop(&place));
    two.busy_timeout(Duration::from_secs(3600)).unwrap();
    let first = one.transaction().unwrap();
    ticket(tx::claim(&first, CLOCK, &command("a"), &ask()));

    let second = two.transaction().unwrap();
    let told = tx::claim(&second, CLOCK, &command("a"), &ask()).unwrap();
    assert!(matches!(told, Claimed::Busy { .. }));
    drop(second);
    let kept: u64 = two.pragma_query_value(None, "busy_timeout", |row| row.get(0)).unwrap();
    assert_eq!(kept, 3_600_000);

    first.rollback().unwrap();
    let second = two.transaction().unwrap();
    ticket(tx::claim(&second, CLOCK, &command("a"), &ask()));
}

#[test]
fn a_claim_is_not_decided_on_an_old_snapshot() {
    let place = Place::new();
    let (mut one, mut two) = (shop(&place), shop(&place));
    let old = one.transaction().unwrap();
    assert_eq!(orders(&old), 0);
    let new = two.transaction().unwrap();
    let done = tx::once(&new, CLOCK, &command("a"), &ask(), order).unwrap();
    assert_eq!(done, Once::Ran("ordered".into()));
    new.commit().unwrap();

    let told = tx::once(&old, CLOCK, &command("a"), &ask(), order).unwrap();
    assert!(matches!(told, Once::Busy { .. }), "{told:?}");
    drop(old);
    let fresh = one.transaction().unwrap();
    let told = tx::once(&fresh, CLOCK, &command("a"), &ask(), order).unwrap();
    assert!(matches!(told, Once::Replayed { value, .. } if value == "ordered"));
    assert_eq!(orders(&fresh), 1);
}

#[test]
fn a_failed_effect_leaves_no_trace_and_the_transaction_open() {
    let place = Place::new();
    let mut shop = shop(&place);
    let tx = shop.transaction().unwrap();
    order(&tx).unwrap();
    let failed = tx::once(&tx, CLOCK, &command("a"), &ask(), |shop| {
        order(shop).unwrap();
        Err::<bytes::Bytes, _>("no bento left")
    });
    assert!(matches!(failed, Err(OnceError::Effect("no bento left"))));
    assert!(tx::look(&tx, CLOCK, &command("a")).unwrap().is_none());
    assert_eq!(orders(&tx), 1);
    let again = tx::once(&tx, CLOCK, &command("a"), &ask(), order).unwrap();
    assert!(matches!(again, Once::Ran(_)));
    tx.commit().unwrap();
    assert_eq!(orders(&shop), 2);
}

#[test]
fn a_rolled_back_claim_never_was() {
    let place = Place::new();
    let mut shop = shop(&place);
    for _ in 0..2 {
        let tx = shop.transaction().unwrap();
        let ran = tx::once(&tx, CLOCK, &command("a"), &ask(), order).unwrap();
        assert!(matches!(ran, Once::Ran(_)));
        tx.rollback().unwrap();
    }
    assert_eq!(orders(&shop), 0);
}

#[test]
fn without_a_transaction_nothing_is_done() {
    let place = Place::new();
    let shop = shop(&place);
    let answer = tx::claim(&shop, CLOCK, &command("a"), &ask());
    assert!(matches!(answer, Err(StoreError::Internal { .. })), "{answer:?}");
    let answer = tx::once(&shop, CLOCK, &command("a"), &ask(), order);
    assert!(matches!(answer, Err(OnceError::Store(StoreError::Internal { .. }))), "{answer:?}");
    assert_eq!(orders(&shop), 0);
}

#[test]
fn every_step_works_inside() {
    let place = Place::new();
    let mut shop = shop(&place);
    let tx = shop.transaction_with_behavior(TransactionBehavior::Immediate).unwrap();
    let (a, b, r) = (command("a"), command("b"), record("r"));
    let held = ticket(tx::claim(&tx, CLOCK, &a, &ask()));
    let done = Step::Done(held.fence);
    assert_eq!(tx::extend(&tx, CLOCK, &a, &held.token, crate::common::HOUR).unwrap(), done);
    assert_eq!(tx::settle(&tx, CLOCK, &a, &held.token, &"x".into()).unwrap(), done);
    let held = ticket(tx::claim(&tx, CLOCK, &b, &ask()));
    let back = tx::give_back(&tx, CLOCK, &b, &held.token, GiveBack::Forget).unwrap();
    assert_eq!(back, Step::Done(held.fence));
    let put = tx::put(&tx, CLOCK, &r, &"1".into(), &Expect::Absent, None).unwrap();
    assert!(matches!(put, Put::Stored { created: true, .. }));
    assert_eq!(tx::get(&tx, CLOCK, &r).unwrap().unwrap().value, "1");
    let _ = tx::delete(&tx, CLOCK, &r, &Expect::Any).unwrap();
    assert!(tx::get(&tx, CLOCK, &r).unwrap().is_none());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_waiter_of_the_store_hears_of_a_transactions_commit() {
    let place = Place::new();
    let store = place.store();
    let (key, mut shop) = (command("a"), shop(&place));
    let held = ticket(store.claim(&key, &ask()).await);
    let mut watch = store.watch(&key);

    let tx = shop.transaction().unwrap();
    let _ = tx::settle(&tx, CLOCK, &key, &held.token, &"inside".into()).unwrap();
    let _ = tx::put(&tx, CLOCK, &record("r"), &"1".into(), &Expect::Any, None).unwrap();
    tx.commit().unwrap();

    let heard = tokio::time::timeout(PATIENT, async {
        while !matches!(store.claim(&key, &ask()).await, Ok(Claimed::Settled { .. })) {
            watch.changed(Duration::MAX).await;
        }
    });
    heard.await.expect("a hint");
    assert_eq!(store.get(&record("r")).await.unwrap().unwrap().value, "1");
}
