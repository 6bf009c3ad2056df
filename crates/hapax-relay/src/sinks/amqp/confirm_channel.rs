//! A channel with many unconfirmed messages.

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

/// The most unconfirmed messages on one channel.
const MAX_UNCONFIRMED: usize = 64;
/// How often a channel checks whether a caller has given up waiting.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// A message to be published.
#[derive(Clone)]
pub(super) struct Publication {
    pub(super) exchange: ShortString,
    pub(super) topic: ShortString,
    /// Includes the `message_id`.
    pub(super) properties: BasicProperties,
    pub(super) payload: Bytes,
}

/// The broker's answer about a message, or why no answer will come.
pub(super) type ConfirmResult = lapin::Result<Result<(), DeliveryError>>;
type ResultSender = oneshot::Sender<ConfirmResult>;

/// Publishes over a channel. A task owns the channel and receives every answer of the broker,
/// including answers about messages whose caller gave up.
#[derive(Clone)]
pub(super) struct ConfirmChannel(mpsc::Sender<(Publication, ResultSender)>);

impl ConfirmChannel {
    /// Publishes over a channel with publisher confirms.
    pub(super) fn new(channel: Channel) -> Self {
        let (send, publications) = mpsc::channel(MAX_UNCONFIRMED);
        tokio::spawn(run(channel, publications));
        Self(send)
    }

    pub(super) fn is_open(&self) -> bool {
        !self.0.is_closed()
    }

    /// Publishes and waits for the answer; `None` if the channel ended meanwhile.
    pub(super) async fn send(&self, publication: Publication) -> Option<ConfirmResult> {
        let (sender, result) = oneshot::channel();
        self.0.send((publication, sender)).await.ok()?;
        result.await.ok()
    }
}

async fn run(channel: Channel, mut publications: mpsc::Receiver<(Publication, ResultSender)>) {
    let mut unconfirmed = UnconfirmedSet::default();
    let mut check = interval(CHECK_INTERVAL);
    check.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut taken = Vec::with_capacity(MAX_UNCONFIRMED);
    while !unconfirmed.is_closing {
        // Publish nothing new while a result is uncertain: every result is certain once all
        // messages are confirmed.
        let room = if unconfirmed.uncertain.is_empty() {
            MAX_UNCONFIRMED - unconfirmed.pending.len()
        } else {
            0
        };
        tokio::select! {
            biased;
            count = publications.recv_many(&mut taken, room), if room > 0 => {
                unconfirmed.is_closing = count == 0;
                for (publication, sender) in taken.drain(..) {
                    unconfirmed.pending.push(PendingConfirm::new(&channel, publication, sender));
                }
            }
            () = unconfirmed.wait_for_confirms(), if !unconfirmed.pending.is_empty() => {}
            // A message without an answer must not block the channel: close it, so that others use
            // a new one.
            _ = check.tick(), if !unconfirmed.pending.is_empty() => {
                unconfirmed.is_closing |= unconfirmed.pending.iter().any(|confirm| confirm.sender.is_closed());
            }
        }
    }
    // Waiting callers get `None` and use another channel.
    drop(publications);
    while unconfirmed.pending.iter().any(|confirm| !confirm.sender.is_closed()) {
        tokio::select! {
            () = unconfirmed.wait_for_confirms() => {}
            _ = check.tick() => {}
        }
    }
}

/// A published message that is not confirmed yet.
struct PendingConfirm {
    id: ShortString,
    confirm: BoxFuture<'static, lapin::Result<Confirmation>>,
    sender: ResultSender,
}

impl PendingConfirm {
    /// The message is published at the first poll, always by the same task: with several threads,
    /// the driver would number messages in another order than it writes them.
    fn new(channel: &Channel, publication: Publication, sender: ResultSender) -> Self {
        let Publication { exchange, topic, properties, payload } = publication;
        let id = properties.message_id().clone().unwrap_or_default();
        let channel = channel.clone();
        let options = BasicPublishOptions { mandatory: true, ..Default::default() };
        let confirm = async move {
            channel.basic_publish(exchange, topic, options, &payload, properties).await?.await
        };
        Self { id, confirm: Box::pin(confirm), sender }
    }
}

/// A message that was confirmed.
struct ConfirmedMessage {
    id: ShortString,
    result: Result<(), DeliveryError>,
    sender: ResultSender,
    /// Whether the message was certainly not returned.
    is_certain: bool,
}

/// The unconfirmed messages of a channel.
///
/// The broker returns a message that no queue accepts, and then confirms it. The driver queues
/// returned messages and attaches the first one to the next confirm, even if that confirm is about
/// another message. So a confirmed message was certainly not returned
///
/// - if its confirm has no returned message attached: then the driver's queue was empty, and every
///   returned message came with an earlier confirm;
/// - or once a later confirm has none attached;
/// - or once every message is confirmed: the driver's queue is never longer than the number of
///   returned messages that are not confirmed yet.
#[derive(Default)]
struct UnconfirmedSet {
    pending: Vec<PendingConfirm>,
    confirmed: Vec<ConfirmedMessage>,
    uncertain: Vec<ConfirmedMessage>,
    returned: HashSet<ShortString>,
    /// Whether the channel has stopped publishing new messages.
    is_closing: bool,
}

impl UnconfirmedSet {
    /// Waits for confirms, then reports the results that have become certain.
    async fn wait_for_confirms(&mut self) {
        poll_fn(|cx| self.poll_confirms(cx)).await;
        self.report_certain();
    }

    /// Polls until no further confirm is ready, so that all confirms before the last one are known.
    fn poll_confirms(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let mut polled = Poll::Pending;
        while self.poll_once(cx) {
            polled = Poll::Ready(());
        }
        polled
    }

    /// Polls every pending confirm once; returns whether any was ready.
    fn poll_once(&mut self, cx: &mut Context<'_>) -> bool {
        let before = self.pending.len();
        let mut i = 0;
        while i < self.pending.len() {
            match self.pending[i].confirm.as_mut().poll(cx) {
                Poll::Pending => i += 1,
                Poll::Ready(confirmed) => {
                    let confirm = self.pending.swap_remove(i);
                    self.record_confirm(confirm, confirmed);
                }
            }
        }
        self.pending.len() < before
    }

    fn record_confirm(&mut self, confirm: PendingConfirm, confirmed: lapin::Result<Confirmation>) {
        let PendingConfirm { id, sender, .. } = confirm;
        let (result, returned) = match confirmed {
            Ok(Confirmation::Ack(returned)) => (Ok(()), returned),
            // A full queue (`reject-publish`), or a broker that cannot store it.
            Ok(Confirmation::Nack(returned)) => {
                (Err(DeliveryError::rejected("the broker did not take it")), returned)
            }
            Ok(Confirmation::NotRequested) => {
                (Err(DeliveryError::refused("the broker does not confirm")), None)
            }
            Err(error) => {
                self.is_closing = true;
                let _ = sender.send(Err(error));
                return;
            }
        };
        let is_certain = returned.is_none();
        self.returned.extend(returned.and_then(|message| message.properties.message_id().clone()));
        self.confirmed.push(ConfirmedMessage { id, result, sender, is_certain });
    }

    fn report_certain(&mut self) {
        // A closed channel has lost the driver's queue of returned messages.
        let all_known = self.pending.is_empty() && !self.is_closing;
        let queue_was_empty = self.confirmed.iter().any(|message| message.is_certain);
        let earlier = self
            .uncertain
            .drain(..)
            .map(|message| ConfirmedMessage { is_certain: queue_was_empty, ..message });
        self.confirmed.extend(earlier);
        for message in self.confirmed.drain(..) {
            // The caller may have given up, so a failed `send` is ignored.
            if self.returned.remove(&message.id) {
                let reason = "no queue takes it: the message is unroutable";
                let _ = message.sender.send(Ok(Err(DeliveryError::refused(reason))));
            } else if message.is_certain || all_known {
                let _ = message.sender.send(Ok(message.result));
            } else {
                self.uncertain.push(message);
            }
        }
    }
}
