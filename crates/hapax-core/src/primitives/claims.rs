//! `Claims`, the first primitive: the right to do one thing.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;

use crate::hex::hex;
use crate::{Key, StoreResult, Token, Watch};

/// The right to do one thing: vacant → pending → settled, or given back.
///
/// ```text
///            claim                    settle
///   vacant ─────────► pending ─────────────────► settled ──┐
///     ▲                │  │  ▲                             │ retention
///     │ give_back      │  │  │ claim (attempt + 1)         │
///     │ (forget)       │  │  │                             │
///     ├────────────────┘  └──┴── failed ◄─ give_back (keep)│
///     └────────────────────────────────────────────────────┘
/// ```
///
/// # Laws
///
/// 1. **One owner.** Of any number of concurrent claims of one key, one is granted.
/// 2. **Five answers.** A claim is answered with exactly one [`Claimed`], decided in one atomic
///    step.
/// 3. **Fingerprints** are compared at every claim of a key that is pending, settled or failed.
///    A missing fingerprint equals only a missing one.
/// 4. **Fences grow** with every grant of a key, across release, expiry, deletion and restart.
/// 5. **A ticket is valid** until its claim is taken over, settled, given back or forgotten. A step
///    with any other token is [`Step::Lost`] and changes nothing. A step after the end of the lease
///    still counts, unless the claim was taken over or forgotten.
/// 6. **Repeated calls.** A claim that presents the token of the pending claim is granted again,
///    with the same fence and attempt, and the lease starts again. A repeated settle with the same
///    value is [`Step::Done`]; with another value it is lost.
/// 7. **Lease and retention are separate.** The lease is how long the owner of a pending claim is
///    believed alive; the retention is how long a settled, failed or unknown claim is remembered. A
///    pending claim is forgotten when its lease and then its retention have passed; with a
///    retention of zero it is vacant as soon as its lease has ended.
/// 8. **The store's clock** measures lease and retention.
///
/// ```
/// use hapax_core::{memory::MemoryStore, ClaimRequest, Claimed, Claims, Key, Operation, Step, Tenant};
/// use std::time::Duration;
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let store = MemoryStore::default();
/// let key = Key::command(&Tenant::default(), Operation("pay"), "order-1")?;
/// let ask = ClaimRequest::new(Duration::from_secs(30)).retention(Duration::from_secs(86_400));
///
/// let Claimed::Granted { ticket, attempt: 1 } = store.claim(&key, &ask).await? else { panic!() };
/// // Another caller (another token) is told to wait …
/// assert!(matches!(store.claim(&key, &ask.with_fresh_token()).await?, Claimed::Busy { .. }));
/// // … until the claim is settled, and then gets the value.
/// assert_eq!(store.settle(&key, &ticket.token, "paid".into()).await?, Step::Done(ticket.fence));
/// let Claimed::Settled { value, .. } = store.claim(&key, &ask.with_fresh_token()).await? else { panic!() };
/// assert_eq!(value, "paid");
/// # Ok(()) }
/// ```
#[async_trait]
pub trait Claims: Send + Sync {
    /// Tries to claim the key.
    async fn claim(&self, key: &Key, ask: &ClaimRequest) -> StoreResult<Claimed>;

    /// Extends, settles or gives back a pending claim.
    async fn step(&self, key: &Key, token: &Token, step: ClaimStep) -> StoreResult<Step>;

    /// Reads the state of a claim; `None` if it is vacant.
    async fn look(&self, key: &Key) -> StoreResult<Option<ClaimView>>;

    /// Registers for a hint that the claim was settled or given back. Register first, then claim,
    /// then wait: hints between registration and wait are kept.
    ///
    /// A hint may be spurious, and may be missing if a message between nodes was lost. A waiter
    /// must therefore also poll.
    fn watch(&self, _key: &Key) -> Watch {
        Watch::never()
    }

    /// [`Claims::step`] with [`ClaimStep::Extend`].
    async fn extend(&self, key: &Key, token: &Token, lease: Duration) -> StoreResult<Step> {
        self.step(key, token, ClaimStep::Extend(lease)).await
    }

    /// [`Claims::step`] with [`ClaimStep::Settle`].
    async fn settle(&self, key: &Key, token: &Token, value: Bytes) -> StoreResult<Step> {
        self.step(key, token, ClaimStep::Settle(value)).await
    }

    /// [`Claims::step`] with [`ClaimStep::GiveBack`].
    async fn give_back(&self, key: &Key, token: &Token, how: GiveBack) -> StoreResult<Step> {
        self.step(key, token, ClaimStep::GiveBack(how)).await
    }
}

/// A step of the owner of a pending claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClaimStep {
    /// Moves the end of the lease to this long from now.
    Extend(Duration),
    /// Settles the claim with this value, which is kept for the retention of the [`ClaimRequest`].
    Settle(Bytes),
    /// Gives the claim back without a value.
    GiveBack(GiveBack),
}

/// The parameters of a claim.
#[derive(Clone, Debug)]
pub struct ClaimRequest {
    /// The secret of the [`Ticket`], if the claim is granted.
    pub token: Token,
    /// How long the owner is believed alive without renewal. At least one millisecond.
    pub lease: Duration,
    /// How long a settled, failed or unknown claim is remembered.
    pub retention: Duration,
    /// A hash of the request that the claim is for.
    pub fingerprint: Option<Fingerprint>,
    /// The policy for a pending claim whose lease has ended.
    pub on_unknown: OnUnknown,
}

impl ClaimRequest {
    /// A claim with a fresh token, [`OnUnknown::Refuse`], no fingerprint and a retention of zero.
    pub fn new(lease: Duration) -> Self {
        Self::labelled(lease, None)
    }

    /// As [`ClaimRequest::new`], with a label of the owner for operators ([`Token::labelled`]).
    pub fn labelled(lease: Duration, label: Option<&str>) -> Self {
        Self {
            token: label.map_or_else(Token::random, Token::labelled),
            lease,
            retention: Duration::ZERO,
            fingerprint: None,
            on_unknown: OnUnknown::Refuse,
        }
    }

    crate::builder_methods! {
        /// Sets how long a settled, failed or unknown claim is remembered.
        retention: Duration;
        /// Sets the fingerprint to compare.
        fingerprint: Option<Fingerprint>;
        /// Sets the policy for a pending claim whose lease has ended.
        on_unknown: OnUnknown;
    }

    /// Labels the owner for operators, who see the label beside the claim ([`Token::labelled`]).
    #[must_use]
    pub fn label(mut self, label: &str) -> Self {
        self.token = Token::labelled(label);
        self
    }

    /// The same request from another caller: a copy with a new random token and the same label.
    #[must_use]
    pub fn with_fresh_token(&self) -> Self {
        Self { token: Token::labelled(self.token.label().unwrap_or_default()), ..self.clone() }
    }
}

/// The policy for a pending claim whose lease has ended: its owner may or may not have acted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum OnUnknown {
    /// Return [`Claimed::Unknown`].
    Refuse,
    /// Grant the claim to the caller as the next attempt.
    TakeOver,
}

/// The answer to a claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Claimed {
    /// The caller owns the claim.
    Granted {
        /// The proof of ownership; every later step presents its token.
        ticket: Ticket,
        /// 1 for the first grant, one more for each takeover and each retry of a failed claim.
        attempt: u32,
    },
    /// Another caller owns the claim.
    Busy {
        /// The rest of the owner's lease.
        lease_left: Duration,
    },
    /// The claim was settled before.
    Settled {
        /// The value that the claim was settled with.
        value: Bytes,
        /// How long the value is still kept.
        expires_in: Duration,
    },
    /// The key was claimed for another request: the fingerprints differ.
    Mismatch,
    /// The owner's lease has ended, and it is unknown whether the owner acted.
    Unknown {
        /// How long ago the lease ended.
        since: Duration,
    },
}

/// Proof of a granted claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ticket {
    /// The secret that every step presents.
    pub token: Token,
    /// The fence of this grant; pass it to the resource that you write to.
    pub fence: Fence,
}

/// A number that grows with every grant of the same key. A resource that remembers the highest
/// fence it has seen can refuse a late owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Fence(pub u64);

impl fmt::Display for Fence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The result of an extend, settle or give-back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a lost step changed nothing"]
pub enum Step {
    /// The step was done; the owner has this fence.
    Done(Fence),
    /// The token is not, or no longer, that of the owner; nothing was changed.
    Lost,
}

/// How a claim is given back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GiveBack {
    /// The claim becomes vacant, as if it had never been claimed. Later fences still grow.
    Forget,
    /// The claim is kept as failed: its fingerprint and attempt count stay for the retention, and
    /// the next claim is granted as the next attempt.
    Keep,
}

/// A hash, or another short text, that identifies the request; at most 255 bytes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Fingerprint(Arc<str>);

impl Fingerprint {
    /// The maximum length in bytes.
    pub const MAX: usize = 255;

    /// A fingerprint chosen by the caller; `None` if it is too long.
    pub fn new(text: &str) -> Option<Self> {
        (text.len() <= Self::MAX).then(|| Self(text.into()))
    }

    /// SHA-256 over the parts, each preceded by its length, so that moving a byte from one part to
    /// the next changes the fingerprint.
    ///
    /// ```
    /// use hapax_core::Fingerprint;
    /// assert_ne!(Fingerprint::of(&[b"ab", b"c"]), Fingerprint::of(&[b"a", b"bc"]));
    /// ```
    pub fn of(parts: &[&[u8]]) -> Self {
        use sha2::{Digest, Sha256};
        let mut hash = Sha256::new();
        for part in parts {
            hash.update((part.len() as u64).to_be_bytes());
            hash.update(part);
        }
        Self(hex(&hash.finalize()).into())
    }

    /// The fingerprint as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// The result of [`Claims::look`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClaimView {
    /// The state of the claim.
    pub state: ClaimState,
    /// The fence of the last grant; `None` if a foreign program holds the lock.
    pub fence: Option<Fence>,
    /// How many times the claim was granted since it was last vacant.
    pub attempt: u32,
    /// How long ago the last grant was; `None` if a foreign program holds the lock.
    pub granted_ago: Option<Duration>,
    /// How long a settled, failed or unknown claim is remembered. A claim that expires in less was settled, or
    /// failed, so long ago. `None` if a foreign program holds the lock.
    pub retention: Option<Duration>,
    /// The fingerprint of the request.
    pub fingerprint: Option<Fingerprint>,
    /// The owner's token, with which an operator can settle or release the claim. No edge ever
    /// shows it. `None` if a foreign program holds the lock.
    pub token: Option<Token>,
}

/// The state of a claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClaimState {
    /// Granted, and the lease has not ended.
    Pending {
        /// The rest of the lease.
        lease_left: Duration,
    },
    /// The lease has ended; the owner may or may not have acted.
    Unknown {
        /// How long ago the lease ended.
        since: Duration,
        /// How long the claim is still remembered.
        expires_in: Duration,
    },
    /// Settled with a value.
    Settled {
        /// The value.
        value: Bytes,
        /// How long the value is still kept.
        expires_in: Duration,
    },
    /// Given back as failed.
    Failed {
        /// How long fingerprint and attempt count are still kept.
        expires_in: Duration,
    },
}
