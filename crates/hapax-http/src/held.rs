use std::sync::Arc;
use std::time::Duration;

use hapax_core::claims::ClaimState;
use hapax_core::command::{self, CommandError, RunningCommand};
use hapax_core::{StoreError, with_timeout};
use http::{Method, Response};
use tokio::time::Instant;

use crate::answers::{in_progress, outcome_unknown};
use crate::drain::Inside;
use crate::layer::Shared;
use crate::{Event, Keyed, Whole, replay};

/// A store that fails at the end of a run is asked again for this long. It may be back long after
/// the lease has run out: a late settle that nobody forestalled is a good one.
const INSIST: Duration = Duration::from_secs(600);

/// A granted claim while its request runs. It always comes to an end: settled, given back, or, also
/// where the service panicked, said to be unknown.
pub(crate) struct Held {
    running: Option<RunningCommand>,
    keyed: Keyed,
    method: Method,
    shared: Arc<Shared>,
    inside: Option<Inside>,
}

/// How a run ends.
enum End {
    Settle(command::StoredResponse, Event),
    GiveBack,
}

impl End {
    async fn reach(&self, running: &RunningCommand, limit: Duration) -> Result<(), CommandError> {
        match self {
            Self::Settle(response, _) => bounded(limit, running.complete(response)).await,
            Self::GiveBack => bounded(limit, running.fail()).await,
        }
    }

    fn event(&self) -> Event {
        match self {
            Self::Settle(_, event) => *event,
            Self::GiveBack => Event::GivenBack,
        }
    }
}

/// Holds a call to the store to its limit, whatever the store does.
pub(crate) async fn bounded<T>(
    limit: Duration,
    call: impl Future<Output = Result<T, CommandError>>,
) -> Result<T, CommandError> {
    let late = |_| Err(CommandError::Store(StoreError::Timeout { timeout: limit }));
    tokio::time::timeout(limit, call).await.unwrap_or_else(late)
}

impl Held {
    pub(crate) fn new(
        running: RunningCommand,
        keyed: Keyed,
        method: Method,
        shared: Arc<Shared>,
        inside: Inside,
    ) -> Self {
        Self { running: Some(running), keyed, method, shared, inside: Some(inside) }
    }

    pub(crate) fn shared(&self) -> &Shared {
        &self.shared
    }

    /// Stores the answer. Where the store fails it is stored later: the effect happened, and its
    /// caller gets the answer either way. Where another attempt had taken over, there is another
    /// answer to give.
    pub(crate) async fn settle(
        self,
        stored: command::StoredResponse,
    ) -> Result<(), Response<Whole>> {
        self.end(End::Settle(stored, Event::Kept)).await
    }

    /// Stores that it happened, without the answer.
    pub(crate) async fn settle_without_answer(
        self,
        tombstone: command::StoredResponse,
    ) -> Result<(), Response<Whole>> {
        self.end(End::Settle(tombstone, Event::NotKept)).await
    }

    /// Frees the key for a retry.
    pub(crate) async fn give_back(self) {
        let _ = self.end(End::GiveBack).await;
    }

    async fn end(mut self, end: End) -> Result<(), Response<Whole>> {
        let running = self.running.take().expect("it ends once");
        match end.reach(&running, self.shared.settings.store_limit).await {
            Ok(()) => {
                self.tell(end.event());
                Ok(())
            }
            Err(CommandError::Store(error)) => {
                self.tell(Event::StoreError);
                tracing::warn!(%error, "the outcome could not be stored yet; trying on");
                tokio::spawn(self.insist(running, end));
                Ok(())
            }
            Err(_) => {
                self.tell(Event::Lost);
                Err(self.winner().await)
            }
        }
    }

    /// Goes on behind the client's back; meanwhile the lease is renewed as well as it can be.
    async fn insist(self, running: RunningCommand, end: End) {
        let since = Instant::now();
        let mut pause = Duration::from_millis(100);
        while since.elapsed() < INSIST {
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(Duration::from_secs(5));
            match end.reach(&running, self.shared.settings.store_limit).await {
                Err(CommandError::Store(_)) => {}
                Ok(()) => return self.tell(end.event()),
                Err(_) => return self.tell(Event::Lost),
            }
        }
        tracing::error!("the outcome of a request could not be stored; it is unknown now");
    }

    /// The answer of the attempt that had taken over.
    async fn winner(&self) -> Response<Whole> {
        let settings = &self.shared.settings;
        let view =
            with_timeout(settings.store_limit, self.shared.store.look(&self.keyed.key)).await;
        let ours = Some(&self.keyed.fingerprint);
        match view.ok().flatten().filter(|view| view.fingerprint.as_ref() == ours).map(|v| v.state)
        {
            Some(ClaimState::Settled { value, expires_in }) => {
                match command::StoredResponse::decode(value) {
                    Ok(stored) => replay(&stored, expires_in),
                    Err(_) => in_progress(settings.lease).response(),
                }
            }
            Some(ClaimState::Pending { lease_left }) => in_progress(lease_left).response(),
            Some(ClaimState::Unknown { since, .. }) => outcome_unknown(since).response(),
            _ => in_progress(settings.lease).response(),
        }
    }

    /// Says that nobody knows whether there was an effect.
    pub(crate) async fn abandon(mut self) {
        if let Some(running) = self.running.take() {
            self.tell(Event::Unknown);
            // Where this fails too, the lease says the same when it has run out.
            let _ = with_timeout(self.shared.settings.store_limit, running.abandon()).await;
        }
    }

    fn tell(&self, event: Event) {
        self.shared.settings.tell(event, &self.method);
    }
}

impl Drop for Held {
    /// Only a panic, or the end of the whole runtime, leaves it running here.
    fn drop(&mut self) {
        let Some(running) = self.running.take() else { return };
        self.tell(Event::Unknown);
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            let (limit, inside) = (self.shared.settings.store_limit, self.inside.take());
            runtime.spawn(async move {
                let _ = with_timeout(limit, running.abandon()).await;
                drop(inside);
            });
        }
    }
}
