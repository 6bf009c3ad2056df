//! Laws about a clock that goes back: nothing that has ended comes back, and no lease ends early.

use std::time::Duration;

use hapax_core::claims::ClaimState;
use hapax_core::log::{LogRetention, PageRequest};
use hapax_core::{ClaimRequest, Claimed, Expect, Key, ManualClock, Put, Step};

use crate::context::LawContext;
use crate::log::event;
use crate::suite::laws;

laws![
    key record;
    lease_lasts_while_the_clock_goes_back_and_returns,
    lapsed_lease_stays_lapsed_when_the_clock_goes_back,
    expired_record_stays_gone_when_the_clock_goes_back,
    forgotten_job_stays_gone_when_the_clock_goes_back,
];

/// The clock of a machine, which somebody sets.
pub trait WallClock: Send + Sync {
    /// Sets the clock back by `time`. No time passes.
    fn set_back(&self, time: Duration);

    /// Sets the clock forward by `time`. No time passes.
    fn set_forward(&self, time: Duration);
}

/// For a store that knows no other time than this clock, setting it forward is the same as time that passes.
impl WallClock for ManualClock {
    fn set_back(&self, time: Duration) {
        self.set_back(time);
    }

    fn set_forward(&self, time: Duration) {
        self.advance(time);
    }
}

const MINUTE: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(3600);

async fn lease_lasts_while_the_clock_goes_back_and_returns(s: LawContext, _: Key) {
    let Some(clock) = s.subject.wall_clock() else { return };
    let (before, behind) = (s.command("before"), s.command("behind"));
    let ask = ClaimRequest::new(10 * MINUTE);
    let first = s.granted(&before, &ask).await;
    clock.set_back(HOUR);
    let second = s.granted(&behind, &ask.with_fresh_token()).await;
    let owners = [(&before, &first), (&behind, &second)];
    for (key, _) in owners {
        let rival = s.claim(key, &ask.with_fresh_token()).await;
        assert!(matches!(rival, Claimed::Busy { .. }), "clock set back: {rival:?}");
    }
    s.subject.advance(9 * MINUTE).await;
    clock.set_forward(HOUR);
    for (key, ticket) in owners {
        let rival = s.claim(key, &ask.with_fresh_token()).await;
        assert!(matches!(rival, Claimed::Busy { .. }), "clock put right: {rival:?}");
        let renewed = s.store.extend(key, &ticket.token, MINUTE).await;
        assert_eq!(renewed.expect("the store answers"), Step::Done(ticket.fence));
    }
    s.outlive(MINUTE).await;
    for (key, _) in owners {
        s.granted(key, &ask.with_fresh_token()).await;
    }
}

async fn lapsed_lease_stays_lapsed_when_the_clock_goes_back(s: LawContext, _: Key) {
    let Some(clock) = s.subject.wall_clock() else { return };
    let key = s.command("k");
    let ask = ClaimRequest::new(MINUTE).retention(24 * HOUR);
    s.granted(&key, &ask).await;
    s.outlive(MINUTE).await;
    let rival = ask.with_fresh_token();
    assert!(matches!(s.claim(&key, &rival).await, Claimed::Unknown { .. }));
    clock.set_back(HOUR);
    let seen = s.store.look(&key).await.expect("the store answers").expect("it is remembered");
    assert!(matches!(seen.state, ClaimState::Unknown { .. }), "{seen:?}");
    assert!(matches!(s.claim(&key, &rival).await, Claimed::Unknown { .. }));
}

async fn expired_record_stays_gone_when_the_clock_goes_back(s: LawContext, key: Key) {
    let Some(clock) = s.subject.wall_clock() else { return };
    let put = async |expect| {
        s.store.put(&key, "1".into(), &expect, Some(MINUTE)).await.expect("the store answers")
    };
    assert!(matches!(put(Expect::Absent).await, Put::Stored { .. }));
    s.outlive(MINUTE).await;
    assert_eq!(s.store.get(&key).await.expect("the store answers"), None);
    clock.set_back(HOUR);
    assert_eq!(s.store.get(&key).await.expect("the store answers"), None);
    assert!(matches!(put(Expect::Absent).await, Put::Stored { created: true, .. }));
}

async fn forgotten_job_stays_gone_when_the_clock_goes_back(s: LawContext, _: Key) {
    let Some(clock) = s.subject.wall_clock() else { return };
    let job = s.job("j");
    let brief = LogRetention { retention: MINUTE, ..LogRetention::default() };
    let _ = s.store.append(&[event(&job, "s", 1)], &brief).await.expect("the store answers");
    s.outlive(MINUTE).await;
    let attach =
        async || s.store.attach(&job, &PageRequest::new(0, 10)).await.expect("the store answers");
    assert_eq!(attach().await, None);
    clock.set_back(HOUR);
    assert_eq!(attach().await, None);
}
