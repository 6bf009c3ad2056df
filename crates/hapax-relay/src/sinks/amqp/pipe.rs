//! A channel with many messages on their way.

use std::collections::HashSet;
use std::future::poll_fn;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use lapin::options::BasicPublishOptions;
use lapin::types::ShortString;
use lapin::{BasicProperties, Channel, Confirmation};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{MissedTickBehavior, interval};

use crate::DeliveryError;

/// How many messages are on their way over one channel.
const AT_ONCE: usize = 64;
/// How often a channel looks whether somebody gave up waiting.
const LOOK: Duration = Duration::from_secs(1);

/// A message as it is published.
#[derive(Clone)]
pub(super) struct Letter {
    pub(super) exchange: ShortString,
    pub(super) topic: ShortString,
    /// With the `message_id`.
    pub(super) properties: BasicProperties,
    pub(super) payload: Bytes,
}

/// What the broker said of a message; or why it says nothing any more.
pub(super) type Answer = lapin::Result<Result<(), DeliveryError>>;
type Tell = oneshot::Sender<Answer>;

/// Publishes over a channel that is its own. A task owns the channel and hears all that the broker
/// says on it: also about messages for which nobody waits any more.
#[derive(Clone)]
pub(super) struct Pipe(mpsc::Sender<(Letter, Tell)>);

impl Pipe {
    /// Over a channel that confirms.
    pub(super) fn new(channel: Channel) -> Self {
        let (send, letters) = mpsc::channel(AT_ONCE);
        tokio::spawn(run(channel, letters));
        Self(send)
    }

    pub(super) fn is_open(&self) -> bool {
        !self.0.is_closed()
    }

    /// Publishes and waits for the answer; there is none where the pipe ended meanwhile.
    pub(super) async fn send(&self, letter: Letter) -> Option<Answer> {
        let (tell, told) = oneshot::channel();
        self.0.send((letter, tell)).await.ok()?;
        told.await.ok()
    }
}

async fn run(channel: Channel, mut letters: mpsc::Receiver<(Letter, Tell)>) {
    let mut air = Air::default();
    let mut look = interval(LOOK);
    look.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut taken = Vec::with_capacity(AT_ONCE);
    while !air.over {
        // While something is unsure nothing new starts: it is known at the latest when all landed.
        let room = if air.unsure.is_empty() { AT_ONCE - air.flights.len() } else { 0 };
        tokio::select! {
            biased;
            count = letters.recv_many(&mut taken, room), if room > 0 => {
                air.over = count == 0;
                for (letter, tell) in taken.drain(..) {
                    air.flights.push(Flight::new(&channel, letter, tell));
                }
            }
            () = air.landing(), if !air.flights.is_empty() => {}
            // What gets no answer must not fill the channel: others get a new one.
            _ = look.tick(), if !air.flights.is_empty() => {
                air.over |= air.flights.iter().any(|flight| flight.tell.is_closed());
            }
        }
    }
    // Those who wait in front of it find another way.
    drop(letters);
    while air.flights.iter().any(|flight| !flight.tell.is_closed()) {
        tokio::select! {
            () = air.landing() => {}
            _ = look.tick() => {}
        }
    }
}

/// A message on its way.
struct Flight {
    id: ShortString,
    confirm: BoxFuture<'static, lapin::Result<Confirmation>>,
    tell: Tell,
}

impl Flight {
    /// It is published when it is first polled: by one task, for the driver would number messages of
    /// several threads in another order than it writes them.
    fn new(channel: &Channel, letter: Letter, tell: Tell) -> Self {
        let Letter { exchange, topic, properties, payload } = letter;
        let id = properties.message_id().clone().unwrap_or_default();
        let channel = channel.clone();
        let options = BasicPublishOptions { mandatory: true, ..Default::default() };
        let confirm = async move {
            channel.basic_publish(exchange, topic, options, &payload, properties).await?.await
        };
        Self { id, confirm: Box::pin(confirm), tell }
    }
}

/// A message that was confirmed.
struct Landed {
    id: ShortString,
    result: Result<(), DeliveryError>,
    tell: Tell,
    /// If it had been returned, we would know.
    sure: bool,
}

/// What is on its way over a channel.
///
/// A message that no queue takes is returned, and then confirmed. The driver keeps returned messages
/// in a line and hands the first one out with whichever confirm comes next, be it of another message.
/// So a confirm tells for sure that its message was not returned
///
/// - if it comes with nothing, for then the line was empty, and all that had been returned was handed
///   out with confirms that came before, and those are known;
/// - or once a later one comes with nothing;
/// - or once everything landed: the line is never longer than the messages that were returned and are
///   not confirmed yet.
#[derive(Default)]
struct Air {
    flights: Vec<Flight>,
    landed: Vec<Landed>,
    unsure: Vec<Landed>,
    returned: HashSet<ShortString>,
    /// Nothing new starts.
    over: bool,
}

impl Air {
    /// Waits until something lands, and judges what is known then.
    async fn landing(&mut self) {
        poll_fn(|cx| self.poll_landing(cx)).await;
        self.judge();
    }

    /// Looks until nothing more has landed: what came before any confirm that we saw is known then.
    fn poll_landing(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let mut landing = Poll::Pending;
        while self.look(cx) {
            landing = Poll::Ready(());
        }
        landing
    }

    /// One look at every flight; whether any landed.
    fn look(&mut self, cx: &mut Context<'_>) -> bool {
        let before = self.flights.len();
        let mut i = 0;
        while i < self.flights.len() {
            match self.flights[i].confirm.as_mut().poll(cx) {
                Poll::Pending => i += 1,
                Poll::Ready(confirmed) => {
                    let flight = self.flights.swap_remove(i);
                    self.land(flight, confirmed);
                }
            }
        }
        self.flights.len() < before
    }

    fn land(&mut self, flight: Flight, confirmed: lapin::Result<Confirmation>) {
        let Flight { id, tell, .. } = flight;
        let (result, returned) = match confirmed {
            Ok(Confirmation::Ack(returned)) => (Ok(()), returned),
            Ok(Confirmation::Nack(returned)) => {
                (Err(DeliveryError::refused("the broker did not take it")), returned)
            }
            Ok(Confirmation::NotRequested) => {
                (Err(DeliveryError::refused("the broker does not confirm")), None)
            }
            Err(error) => {
                self.over = true;
                let _ = tell.send(Err(error));
                return;
            }
        };
        let sure = returned.is_none();
        self.returned.extend(returned.and_then(|message| message.properties.message_id().clone()));
        self.landed.push(Landed { id, result, tell, sure });
    }

    fn judge(&mut self) {
        // With a channel that ended, the line of returned messages is gone.
        let all_known = self.flights.is_empty() && !self.over;
        let line_was_empty = self.landed.iter().any(|landed| landed.sure);
        let earlier = self.unsure.drain(..).map(|landed| Landed { sure: line_was_empty, ..landed });
        self.landed.extend(earlier);
        for landed in self.landed.drain(..) {
            // Who waited may have given up.
            if self.returned.remove(&landed.id) {
                let reason = "no queue takes it: the message is unroutable";
                let _ = landed.tell.send(Ok(Err(DeliveryError::refused(reason))));
            } else if landed.sure || all_known {
                let _ = landed.tell.send(Ok(landed.result));
            } else {
                self.unsure.push(landed);
            }
        }
    }
}
