//! `Claims`, the first primitive: the right to do one thing.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;

use crate::{Key, StoreError, Token, Watch};

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
/// 2. **Five answers.** A claim is answered with exactly one [`Claimed`], decided in one atomic step.
/// 3. **Fingerprints** are compared at every claim: of pending, settled and failed ones alike.
///    None equals only none.
/// 4. **Fences grow** with every grant of a key, across release, expiry, deletion and restart.
/// 5. **A ticket is good** until its claim is taken over, settled, given back or forgotten. A step
///    with any other token is [`Step::Lost`] and changes nothing. A late step whose claim nobody
///    took over is not lost.
/// 6. **Asked again.** A claim that presents the token of the pending one is granted again: same
///    fence, same attempt, the lease anew. A settle that repeats the first one is done again;
///    one with another value is lost.
/// 7. **Lease and retention are two numbers.** The lease is how long a pending claim is believed
///    alive; the retention is how long a settled, failed or unknown one is remembered. A pending
///    claim is forgotten when its lease and then its retention have passed; with a retention of
///    zero it is vacant as soon as its lease has run out.
/// 8. **The store's clock** measures both.
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
    /// Asks for the claim.
    async fn claim(&self, key: &Key, ask: &ClaimRequest) -> Result<Claimed, StoreError>;

    /// Makes the lease of a pending claim end `lease` from now.
    async fn extend(&self, key: &Key, token: &Token, lease: Duration) -> Result<Step, StoreError>;

    /// Settles a pending claim with `value`, which is kept for the retention given at the claim.
    async fn settle(&self, key: &Key, token: &Token, value: Bytes) -> Result<Step, StoreError>;

    /// Gives a pending claim back.
    async fn give_back(&self, key: &Key, token: &Token, how: GiveBack) -> Result<Step, StoreError>;

    /// What is known about a claim; `None` where it is vacant.
    async fn look(&self, key: &Key) -> Result<Option<ClaimView>, StoreError>;

    /// Registers for a hint that the claim was settled or given back. Register first, then claim,
    /// then wait: what happens in between is not missed.
    ///
    /// The hint may come for nothing, or (where a message between nodes was lost) not at all; who
    /// waits also looks by itself from time to time.
    fn watch(&self, _key: &Key) -> Watch {
        Watch::never()
    }
}

/// What is asked for with a claim.
#[derive(Clone, Debug)]
pub struct ClaimRequest {
    /// The secret that the ticket will carry.
    pub token: Token,
    /// How long the claim is believed alive without renewal. At least one millisecond.
    pub lease: Duration,
    /// How long a settled, failed or unknown claim is remembered.
    pub retention: Duration,
    /// A hash of what is asked for.
    pub fingerprint: Option<Fingerprint>,
    /// What to do about a pending claim whose lease ran out.
    pub on_unknown: OnUnknown,
}

impl ClaimRequest {
    /// A claim with a fresh token that refuses what is unknown and is forgotten with its lease.
    pub fn new(lease: Duration) -> Self {
        Self {
            token: Token::random(),
            lease,
            retention: Duration::ZERO,
            fingerprint: None,
            on_unknown: OnUnknown::Refuse,
        }
    }

    /// Keeps the outcome for this long.
    #[must_use]
    pub fn retention(mut self, retention: Duration) -> Self {
        self.retention = retention;
        self
    }

    /// Compares this fingerprint.
    #[must_use]
    pub fn fingerprint(mut self, fingerprint: Option<Fingerprint>) -> Self {
        self.fingerprint = fingerprint;
        self
    }

    /// Sets the policy for a claim whose owner may or may not have acted.
    #[must_use]
    pub fn on_unknown(mut self, policy: OnUnknown) -> Self {
        self.on_unknown = policy;
        self
    }

    /// The same question by somebody else: everything but the token.
    #[must_use]
    pub fn with_fresh_token(&self) -> Self {
        Self { token: Token::random(), ..self.clone() }
    }
}

/// What to do about a pending claim whose lease ran out: its owner may or may not have acted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum OnUnknown {
    /// Answer [`Claimed::Unknown`].
    Refuse,
    /// Grant it to the asker as the next attempt.
    TakeOver,
}

/// The answer to a claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Claimed {
    /// It is yours.
    Granted {
        /// The proof; every later step presents it.
        ticket: Ticket,
        /// 1 for the first, one more for each takeover and each retry of a failed claim.
        attempt: u32,
    },
    /// Somebody else has it.
    Busy {
        /// How long it is still believed alive.
        lease_left: Duration,
    },
    /// It was done before.
    Settled {
        /// What it was settled with.
        value: Bytes,
        /// How long that is still kept.
        expires_in: Duration,
    },
    /// It is about something else: the fingerprints differ.
    Mismatch,
    /// The lease of its owner ran out, and nobody knows whether the owner acted.
    Unknown {
        /// How long ago.
        since: Duration,
    },
}

/// Proof of a granted claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ticket {
    /// The secret.
    pub token: Token,
    /// The number that grows with every grant; pass it on to what you write to.
    pub fence: Fence,
}

/// A number that grows with every grant of the same key. A resource that remembers the highest one
/// it has seen can refuse a late owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Fence(pub u64);

impl fmt::Display for Fence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// What became of an extend, settle or give-back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a lost step changed nothing"]
pub enum Step {
    /// Done, as the owner with this fence.
    Done(Fence),
    /// The token is not the owner's (any more); nothing was changed.
    Lost,
}

/// How a claim is given back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GiveBack {
    /// As if it had never been claimed; only the fence goes on growing.
    Forget,
    /// As failed: fingerprint and attempt count stay for the retention, the next claim is
    /// granted as the next attempt.
    Keep,
}

/// A hash, or any other short text, of what is asked for; at most 255 bytes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Fingerprint(Arc<str>);

impl Fingerprint {
    /// The longest fingerprint, in bytes.
    pub const MAX: usize = 255;

    /// The caller's own fingerprint, or `None` where it is too long.
    pub fn new(text: &str) -> Option<Self> {
        (text.len() <= Self::MAX).then(|| Self(text.into()))
    }

    /// SHA-256 over the parts, each with its length, so that no two lists of parts share one.
    ///
    /// ```
    /// use hapax_core::Fingerprint;
    /// assert_ne!(Fingerprint::of(&[b"ab", b"c"]), Fingerprint::of(&[b"a", b"bc"]));
    /// ```
    pub fn of(parts: &[&[u8]]) -> Self {
        use fmt::Write;
        use sha2::{Digest, Sha256};
        let mut hash = Sha256::new();
        for part in parts {
            hash.update((part.len() as u64).to_be_bytes());
            hash.update(part);
        }
        let mut text = String::with_capacity(64);
        for byte in hash.finalize() {
            let _ = write!(text, "{byte:02x}");
        }
        Self(text.into())
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// What [`Claims::look`] shows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClaimView {
    /// Where it stands.
    pub state: ClaimState,
    /// The fence of the last grant; `None` where a foreign writer holds a lock.
    pub fence: Option<Fence>,
    /// How many times it was granted since it was last vacant.
    pub attempt: u32,
    /// How long ago the last grant was; `None` where a foreign writer holds a lock.
    pub granted_ago: Option<Duration>,
    /// What it is about.
    pub fingerprint: Option<Fingerprint>,
    /// The owner's secret, for an operator who settles or releases in the owner's place; no edge
    /// ever shows it. `None` where a foreign writer holds a lock.
    pub token: Option<Token>,
}

/// Where a claim stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClaimState {
    /// Its owner is believed alive.
    Pending {
        /// For how long.
        lease_left: Duration,
    },
    /// The lease ran out; the owner may or may not have acted.
    Unknown {
        /// How long ago.
        since: Duration,
        /// How long that is remembered.
        expires_in: Duration,
    },
    /// Done.
    Settled {
        /// With what.
        value: Bytes,
        /// How long that is kept.
        expires_in: Duration,
    },
    /// Given back as failed.
    Failed {
        /// How long fingerprint and attempt count are kept.
        expires_in: Duration,
    },
}
