use super::*;
use crate::ManualClock;
use crate::memory::MemoryStore;

struct Scene {
    clock: Arc<ManualClock>,
    inbox: Inbox,
}

fn scene() -> Scene {
    let clock = Arc::new(ManualClock::default());
    let inbox = Inbox::new(Arc::new(MemoryStore::new(clock.clone())));
    Scene { clock, inbox }
}

async fn begin(inbox: &Inbox, consumer: &str, message: &str) -> Received {
    inbox.begin(consumer, message, &InboxConfig::default()).await.unwrap()
}

async fn taken(inbox: &Inbox, consumer: &str, message: &str) -> (Ticket, u32) {
    match begin(inbox, consumer, message).await {
        Received::First { ticket, attempt } => (ticket, attempt),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn inbox_second_delivery_is_a_duplicate() {
    let Scene { inbox, .. } = scene();
    let (ticket, attempt) = taken(&inbox, "billing", "m").await;
    assert_eq!(attempt, 1);
    assert!(matches!(begin(&inbox, "billing", "m").await, Received::InProgress { .. }));
    inbox.settle("billing", "m", &ticket.token).await.unwrap();
    inbox.settle("billing", "m", &ticket.token).await.expect("settled again");
    assert_eq!(begin(&inbox, "billing", "m").await, Received::Duplicate);
}

/// In the usual design the message id alone is the primary key of the inbox, so the second consumer
/// of an event takes it for a duplicate and never handles it.
#[tokio::test]
async fn hole_25_every_consumer_of_every_tenant_has_an_inbox_of_its_own() {
    let Scene { inbox, .. } = scene();
    let (ticket, _) = taken(&inbox, "billing", "m").await;
    inbox.settle("billing", "m", &ticket.token).await.unwrap();
    taken(&inbox, "mailing", "m").await;
    let other = inbox.clone().tenant(Tenant::new("other").unwrap());
    taken(&other, "billing", "m").await;
    assert_eq!(begin(&inbox, "billing", "m").await, Received::Duplicate);
}

#[tokio::test]
async fn inbox_takes_over_a_lapsed_owner_who_is_then_lost() {
    let Scene { inbox, clock } = scene();
    let (first, _) = taken(&inbox, "billing", "m").await;
    clock.advance(InboxConfig::default().lease);
    let (second, attempt) = taken(&inbox, "billing", "m").await;
    assert_eq!(attempt, 2);
    assert!(second.fence > first.fence);
    let late = inbox.settle("billing", "m", &first.token).await;
    assert!(matches!(late, Err(InboxError::Lost)));
    inbox.settle("billing", "m", &second.token).await.unwrap();
}

#[tokio::test]
async fn inbox_counts_attempts_after_a_give_back() {
    let Scene { inbox, .. } = scene();
    let (first, _) = taken(&inbox, "billing", "m").await;
    inbox.give_back("billing", "m", &first.token).await.unwrap();
    let (_, attempt) = taken(&inbox, "billing", "m").await;
    assert_eq!(attempt, 2);
}

#[tokio::test]
async fn inbox_recognises_a_message_for_thirty_days() {
    let Scene { inbox, clock } = scene();
    let (ticket, _) = taken(&inbox, "billing", "m").await;
    inbox.settle("billing", "m", &ticket.token).await.unwrap();
    clock.advance(RETENTION - Duration::from_millis(1));
    assert_eq!(begin(&inbox, "billing", "m").await, Received::Duplicate);
    clock.advance(Duration::from_millis(1));
    taken(&inbox, "billing", "m").await;
}

#[tokio::test]
async fn inbox_runs_a_failed_effect_again() {
    let Scene { inbox, .. } = scene();
    let failed = inbox.once("billing", "m", |_| async { Err::<(), _>("no bank") }).await;
    assert!(matches!(failed, Err(OnceError::Failed("no bank"))));
    let handled = inbox.once("billing", "m", |run| async move { Ok::<_, ()>(run.attempt) }).await;
    assert_eq!(handled.unwrap(), Once::first(Some(2)));
    let again = inbox.once("billing", "m", |_| async { Ok::<_, ()>(0) }).await;
    assert_eq!(again.unwrap(), Once::replayed(None));
}
