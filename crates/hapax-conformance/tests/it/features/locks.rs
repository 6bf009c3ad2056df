use std::sync::Arc;
use std::time::Duration;

use hapax_conformance::{Fault, FaultyStore};
use hapax_core::lock::{LockConfig, LockError, Locks, OnStoreError};
use tokio::time::{Instant, sleep};

use crate::features::{faulty, secs};

fn locks() -> (FaultyStore, Locks) {
    let store = faulty();
    (store.clone(), Locks::new(Arc::new(store)))
}

#[tokio::test(start_paused = true)]
async fn lock_guard_is_renewed_beyond_its_ttl() {
    let (_, locks) = locks();
    let guard = locks.acquire("k", &LockConfig::default()).await.unwrap();
    sleep(secs(60)).await;
    assert!(locks.try_acquire("k", &LockConfig::default()).await.unwrap().is_none());
    guard.release().await.unwrap();
    assert!(locks.try_acquire("k", &LockConfig::default()).await.unwrap().is_some());
}

#[tokio::test(start_paused = true)]
async fn lock_renewal_ends_at_the_maximum_hold() {
    let (_, locks) = locks();
    let hold = LockConfig::default().renew_for(Some(secs(20)));
    let start = Instant::now();
    let guard = locks.acquire("k", &hold).await.unwrap();
    guard.lost().await;
    let held = start.elapsed();
    assert!(held >= secs(20) && held <= secs(25), "{held:?}");
    let next = locks.acquire("k", &hold).await.unwrap();
    assert!(next.fence() > guard.fence());
    assert!(matches!(guard.release().await, Err(LockError::Lost)));
    assert!(locks.look("k").await.unwrap().held, "the late release took the successor's lock");
}

#[tokio::test(start_paused = true)]
async fn fault_14_longest_duration_of_a_lock_is_no_panic() {
    let (_, locks) = locks();
    let renewed = LockConfig::default().renew_for(Some(Duration::MAX)).wait(Duration::MAX);
    let endless = LockConfig::default().ttl(Duration::MAX).wait(Duration::MAX);
    for config in [renewed.clone(), endless.clone(), endless.renew_for(None)] {
        let guard = locks.acquire("k", &config).await.unwrap();
        let waiting = tokio::spawn({
            let (locks, config) = (locks.clone(), renewed.clone());
            async move { locks.acquire("k", &config).await.unwrap() }
        });
        sleep(secs(60)).await;
        assert!(tokio::time::timeout(secs(1), guard.lost()).await.is_err(), "still held");
        guard.release().await.unwrap();
        waiting.await.unwrap().release().await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn lock_guard_without_renewal_is_lost_before_its_ttl_ends() {
    let (store, locks) = locks();
    for fault in [Fault::LostQuestion, Fault::Stall(secs(3600))] {
        store.always(None);
        let guard =
            locks.acquire(&format!("{fault:?}").replace(' ', ""), &LockConfig::default()).await;
        let guard = guard.unwrap();
        let start = Instant::now();
        store.always(Some(fault));
        guard.lost().await;
        assert!(start.elapsed() <= secs(5));
        store.always(None);
    }
}

#[tokio::test(start_paused = true)]
async fn lock_guard_with_renewal_off_is_lost_after_its_ttl() {
    let (_, locks) = locks();
    let hold = LockConfig::default().renew_for(None);
    let guard = locks.acquire("k", &hold).await.unwrap();
    guard.lost().await;
    assert!(locks.try_acquire("k", &hold).await.unwrap().is_some());
}

#[tokio::test(start_paused = true)]
async fn lock_waiter_is_woken_by_the_release() {
    let (_, locks) = locks();
    let guard = locks.acquire("k", &LockConfig::default()).await.unwrap();
    let start = Instant::now();
    let waiting = tokio::spawn({
        let locks = locks.clone();
        async move { locks.acquire("k", &LockConfig::default().wait(secs(60))).await }
    });
    sleep(Duration::from_millis(3_110)).await;
    guard.release().await.unwrap();
    let next = waiting.await.unwrap().unwrap();
    assert_eq!(start.elapsed(), Duration::from_millis(3_110));
    next.release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn lock_wait_ends_at_its_deadline() {
    let (_, locks) = locks();
    let _guard = locks.acquire("k", &LockConfig::default()).await.unwrap();
    let start = Instant::now();
    let hold = LockConfig::default().wait(secs(7));
    assert!(matches!(locks.acquire("k", &hold).await, Err(LockError::Held { .. })));
    assert_eq!(start.elapsed(), secs(7));
}

#[tokio::test(start_paused = true)]
async fn lock_throttle_window_lasts_for_its_ttl() {
    let (_, locks) = locks();
    let hold = LockConfig::default().ttl(secs(1)).throttle(true);
    locks.acquire("k", &hold).await.unwrap().release().await.unwrap();
    assert!(locks.try_acquire("k", &hold).await.unwrap().is_none());
    sleep(secs(1)).await;
    let guard = locks.try_acquire("k", &hold).await.unwrap().expect("the window is over");
    // A long-running holder does not extend the window.
    sleep(secs(1)).await;
    assert!(locks.try_acquire("k", &hold).await.unwrap().is_some());
    drop(guard);
}

#[tokio::test(start_paused = true)]
async fn lock_policy_decides_when_the_store_fails() {
    let (store, locks) = locks();
    store.always(Some(Fault::LostQuestion));
    let closed = LockConfig::default();
    assert!(matches!(locks.acquire("k", &closed).await, Err(LockError::Store(_))));
    let open = closed.on_store_error(OnStoreError::Open);
    let guard = locks.acquire("k", &open).await.unwrap();
    assert!(!guard.is_protected() && guard.fence().is_none());
    guard.release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn lock_grant_with_a_lost_reply_is_recognised() {
    let (store, locks) = locks();
    store.plan([Fault::LostAnswer]);
    let guard = locks.acquire("k", &LockConfig::default()).await.unwrap();
    assert!(locks.try_acquire("k", &LockConfig::default()).await.unwrap().is_none());
    guard.release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn lock_grant_to_a_cancelled_caller_is_undone() {
    let (store, locks) = locks();
    let hold = LockConfig::default().ttl(secs(3600));
    // Both replies are lost, and so is the first attempt to undo the grant.
    store.plan([Fault::LostAnswer, Fault::LostAnswer, Fault::LostQuestion]);
    assert!(matches!(locks.acquire("k", &hold).await, Err(LockError::Store(_))));
    sleep(secs(10)).await;
    assert!(locks.try_acquire("k", &hold).await.unwrap().is_some());
}

#[tokio::test(start_paused = true)]
async fn lock_guard_is_released_on_drop() {
    let (_, locks) = locks();
    drop(locks.acquire("k", &LockConfig::default()).await.unwrap());
    sleep(Duration::from_millis(1)).await;
    assert!(locks.try_acquire("k", &LockConfig::default()).await.unwrap().is_some());
}

#[tokio::test(start_paused = true)]
async fn lock_step_executed_twice_does_no_harm() {
    let (store, locks) = locks();
    store.always(Some(Fault::Twice));
    let ticket = locks.take("k", secs(5), Duration::ZERO).await.unwrap();
    assert_eq!(locks.renew("k", &ticket.token, secs(5)).await.unwrap(), ticket.fence);
    // The second release finds no lock.
    assert!(matches!(locks.release("k", &ticket.token).await, Err(LockError::Lost)));
    assert!(!locks.look("k").await.unwrap().held);
}
