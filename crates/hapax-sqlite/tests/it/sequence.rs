//! Fences and record versions, of which the writer reserves many at once.

use crate::common::*;
use hapax_core::{Claimed, Claims, Expect, GiveBack, Put, Records, StoreError};
use hapax_sqlite::{HapaxTransaction, SqliteStore};

/// Two stores and a user's own transactions on one file, each with a connection of its own.
#[tokio::test]
async fn fences_of_a_key_grow_whoever_grants_it() {
    let (place, one) = Place::with_store();
    let two = place.store();
    let mut shop = shop(&place);
    let (key, mut fences) = (command("a"), Vec::new());
    for _ in 0..3 {
        for store in [&one, &one, &two] {
            let held = ticket(store.claim(&key, &ask()).await);
            fences.push(held.fence);
            let _ = store.give_back(&key, &held.token, GiveBack::Forget).await.unwrap();
        }
        let tx = shop.transaction().unwrap();
        let granted = tx.hapax().claim(&key, &ask()).unwrap();
        let Claimed::Granted { ticket, .. } = granted else { panic!("{granted:?}") };
        fences.push(ticket.fence);
        let _ = tx.hapax().give_back(&key, &ticket.token, GiveBack::Forget).unwrap();
        tx.commit().unwrap();
    }
    assert!(fences.is_sorted_by(|a, b| a < b), "{fences:?}");
}

async fn put(store: &SqliteStore, bytes: usize) -> Result<u64, StoreError> {
    match store.put(&record("r"), vec![7; bytes].into(), &Expect::Any, None).await? {
        Put::Stored { version, .. } => Ok(version.as_str().parse().unwrap()),
        Put::Conflict => panic!("nothing was expected"),
    }
}

/// The first call of the store reserves numbers, and is rolled back.
#[tokio::test]
async fn version_is_not_given_out_again_after_a_rollback() {
    let place = Place::new();
    let store = SqliteStore::open(place.config().max_bytes(1 << 20)).unwrap();
    let full = put(&store, 1 << 20).await;
    assert!(matches!(full, Err(StoreError::Full { .. })), "{full:?}");
    let first = put(&store, 1).await.unwrap();
    drop(store);
    place.closed().await;
    let second = put(&place.store(), 1).await.unwrap();
    assert!(second > first, "{second} after {first}");
}
