use std::fmt;
use std::sync::Arc;

/// The longest name, scope or key, in bytes.
pub const MAX_NAME: usize = 255;
/// The longest tenant, in bytes.
pub const MAX_TENANT: usize = 64;

/// Why a text is not a valid key. The message names the part and the limit, never the text, because
/// keys may identify a person.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidKey {
    /// The part is empty.
    #[error("{part} is empty; it takes 1 to {limit} bytes")]
    Empty {
        /// The name of the part.
        part: &'static str,
        /// The maximum length in bytes.
        limit: usize,
    },
    /// The part is too long.
    #[error("{part} has {length} bytes; it takes 1 to {limit}")]
    TooLong {
        /// The name of the part.
        part: &'static str,
        /// The length in bytes.
        length: usize,
        /// The maximum length in bytes.
        limit: usize,
    },
    /// The part has a byte that is not printable ASCII.
    #[error("{part} has a byte that is not printable ASCII (0x21 to 0x7E) at position {at}")]
    NotPrintable {
        /// The name of the part.
        part: &'static str,
        /// The position of the first such byte.
        at: usize,
    },
    /// The part has a reserved character.
    #[error("{part} has a {character:?} at position {at}, which is reserved")]
    Reserved {
        /// The name of the part.
        part: &'static str,
        /// The reserved character.
        character: char,
        /// The position of the character.
        at: usize,
    },
}

impl InvalidKey {
    /// Always false: the key itself must change.
    pub const fn is_retryable(&self) -> bool {
        false
    }
}

pub(crate) fn check(
    part: &'static str,
    text: &str,
    lowest: u8,
    limit: usize,
) -> Result<(), InvalidKey> {
    if text.is_empty() {
        return Err(InvalidKey::Empty { part, limit });
    }
    if text.len() > limit {
        return Err(InvalidKey::TooLong { part, length: text.len(), limit });
    }
    match text.bytes().position(|b| b < lowest || b > 0x7e) {
        Some(at) => Err(InvalidKey::NotPrintable { part, at }),
        None => Ok(()),
    }
}

/// The tenant of a caller. It comes from authentication or configuration, never from a header that
/// the caller may choose.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Tenant(Arc<str>);

impl Tenant {
    /// A tenant of 1 to 64 bytes of printable ASCII without `/`, which separates tenant and scope.
    pub fn new(name: &str) -> Result<Self, InvalidKey> {
        check("tenant", name, 0x21, MAX_TENANT)?;
        if let Some(at) = name.find('/') {
            return Err(InvalidKey::Reserved { part: "tenant", character: '/', at });
        }
        Ok(Self(name.into()))
    }

    /// A separate key space inside this tenant, such as that of one caller. `scope` is a hash of at
    /// most 64 bytes of printable ASCII.
    pub fn scoped(&self, scope: &str) -> Result<Self, InvalidKey> {
        check("scope", scope, 0x21, MAX_TENANT)?;
        Ok(Self(format!("{}/{scope}", self.0).into()))
    }

    /// The tenant without its scope.
    #[must_use]
    pub fn without_scope(&self) -> Self {
        Self(self.0.split('/').next().unwrap_or_default().into())
    }

    /// A tenant read back from a store, scoped or not.
    pub fn stored(name: &str) -> Self {
        Self(name.into())
    }

    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Default for Tenant {
    /// The tenant `default`, used where none is configured.
    fn default() -> Self {
        Self("default".into())
    }
}

impl fmt::Debug for Tenant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Tenant({})", self.0)
    }
}

/// The name of an operation whose commands share a key space, such as `CreateOrder` or
/// `POST /orders`. A type of its own, so that operation and key cannot be swapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Operation<'a>(pub &'a str);

/// The feature that a key belongs to. Keys of different kinds are never equal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum KeyKind {
    /// A processing lock.
    Lock,
    /// An idempotent command; its scope is the operation.
    Command,
    /// A received message; its scope is the consumer.
    Inbox,
    /// A record.
    Record,
    /// A job with a log of events; its scope is the domain.
    Job,
}

impl KeyKind {
    /// The stable name that stores write.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Lock => "lock",
            Self::Command => "command",
            Self::Inbox => "inbox",
            Self::Record => "record",
            Self::Job => "job",
        }
    }
}

/// The key of a claim, record or job: tenant, kind, scope and name as separate parts. Where a store
/// needs one text, [`Key::canonical`] escapes the separators, so that no two keys share it.
///
/// ```
/// use hapax_core::{Key, Operation, Tenant};
/// let tenant = Tenant::default();
/// let a = Key::command(&tenant, Operation("pay:eu"), "1").unwrap();
/// let b = Key::command(&tenant, Operation("pay"), "eu:1").unwrap();
/// assert_ne!(a.canonical(), b.canonical());
/// assert!(Key::lock(&tenant, "").is_err());
/// assert!(Key::lock(&tenant, &"x".repeat(256)).is_err());
/// ```
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key {
    tenant: Tenant,
    kind: KeyKind,
    scope: Arc<str>,
    name: Arc<str>,
}

impl Key {
    /// The key of a lock.
    pub fn lock(tenant: &Tenant, name: &str) -> Result<Self, InvalidKey> {
        Self::scoped(tenant, KeyKind::Lock, "", name)
    }

    /// The key of a record.
    pub fn record(tenant: &Tenant, name: &str) -> Result<Self, InvalidKey> {
        Self::scoped(tenant, KeyKind::Record, "", name)
    }

    /// The key of a command. The operation may contain spaces (`POST /orders`).
    pub fn command(
        tenant: &Tenant,
        Operation(operation): Operation<'_>,
        name: &str,
    ) -> Result<Self, InvalidKey> {
        check("operation", operation, 0x20, MAX_NAME)?;
        Self::scoped(tenant, KeyKind::Command, operation, name)
    }

    /// The key of a message that a consumer received.
    pub fn inbox(tenant: &Tenant, consumer: &str, message_id: &str) -> Result<Self, InvalidKey> {
        check("consumer", consumer, 0x21, MAX_NAME)?;
        Self::scoped(tenant, KeyKind::Inbox, consumer, message_id)
    }

    /// The key of a job, whose events make a [`log`](crate::log).
    pub fn job(tenant: &Tenant, domain: &str, job_id: &str) -> Result<Self, InvalidKey> {
        check("domain", domain, 0x21, MAX_NAME)?;
        check("job_id", job_id, 0x21, MAX_NAME)?;
        Self::scoped(tenant, KeyKind::Job, domain, job_id)
    }

    fn scoped(tenant: &Tenant, kind: KeyKind, scope: &str, name: &str) -> Result<Self, InvalidKey> {
        check("key", name, 0x21, MAX_NAME)?;
        Ok(Self { tenant: tenant.clone(), kind, scope: scope.into(), name: name.into() })
    }

    /// A key read back from its stored parts; `None` where the kind is unknown.
    pub fn stored(tenant: &str, kind: &str, scope: &str, name: &str) -> Option<Self> {
        let kinds =
            [KeyKind::Lock, KeyKind::Command, KeyKind::Inbox, KeyKind::Record, KeyKind::Job];
        let kind = kinds.into_iter().find(|k| k.as_str() == kind)?;
        Some(Self { tenant: Tenant::stored(tenant), kind, scope: scope.into(), name: name.into() })
    }

    /// Reads a [`Key::canonical`] text; `None` where it is malformed.
    pub fn from_canonical(text: &str) -> Option<Self> {
        let parts: Vec<_> = text.split(':').map(unescaped).collect();
        let [tenant, kind, scope, name] = parts.as_slice() else { return None };
        Self::stored(tenant, kind, scope, name)
    }

    /// The tenant.
    pub fn tenant(&self) -> &Tenant {
        &self.tenant
    }

    /// The feature that the key belongs to.
    pub fn kind(&self) -> KeyKind {
        self.kind
    }

    /// The operation, consumer or domain; empty for other kinds.
    pub fn scope(&self) -> &str {
        &self.scope
    }

    /// The caller's own key.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether hapax keeps this job for operators, such as the audit log: its domain is empty, which [`Key::job`] refuses.
    pub fn is_operators_job(&self) -> bool {
        self.kind == KeyKind::Job && self.scope.is_empty()
    }

    /// The key as one text, reversibly: the parts joined by `:`, with `%`, `:`, `{` and `}`
    /// inside them percent-encoded.
    pub fn canonical(&self) -> String {
        let length = self.parts().map(|part| part.len() + 1).iter().sum();
        let mut text = String::with_capacity(length);
        self.write_canonical(|piece| text.push_str(piece));
        text
    }

    fn parts(&self) -> [&str; 4] {
        [self.tenant.as_str(), self.kind.as_str(), &self.scope, &self.name]
    }

    /// Writes the text of [`Key::canonical`] in pieces.
    fn write_canonical(&self, mut write: impl FnMut(&str)) {
        for (i, part) in self.parts().into_iter().enumerate() {
            if i > 0 {
                write(":");
            }
            for piece in part.split_inclusive(['%', ':', '{', '}']) {
                let escaped = match piece.as_bytes().last() {
                    Some(b'%') => "%25",
                    Some(b':') => "%3A",
                    Some(b'{') => "%7B",
                    Some(b'}') => "%7D",
                    _ => {
                        write(piece);
                        continue;
                    }
                };
                write(&piece[..piece.len() - 1]);
                write(escaped);
            }
        }
    }

    /// The partition of this key, below `partitions`. The result is stable.
    pub fn partition(&self, partitions: u16) -> u16 {
        let digest = self.digest();
        let folded = digest ^ (digest >> 32);
        u16::try_from(folded % u64::from(partitions.max(1))).unwrap_or(0)
    }

    /// A stable 64-bit digest (FNV-1a of [`Key::canonical`]) for wake-up channels and advisory
    /// locks, where a collision costs one needless read.
    pub fn digest(&self) -> u64 {
        let mut hash = 0xcbf2_9ce4_8422_2325;
        self.write_canonical(|piece| {
            for byte in piece.bytes() {
                hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
            }
        });
        hash
    }
}

fn unescaped(part: &str) -> String {
    part.replace("%3A", ":").replace("%7B", "{").replace("%7D", "}").replace("%25", "%")
}

/// Shows only the kind, because names may identify a person and debug output is logged.
impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Key({}, …)", self.kind.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn key_debug_output_hides_the_name() {
        let key = Key::lock(&Tenant::default(), "processing:user:U123").unwrap();
        assert!(!format!("{key:?}").contains("U123"));
    }

    #[test]
    fn key_canonical_text_is_read_back() {
        let tenant = Tenant::default().scoped("ab12").unwrap();
        for name in ["k", "%3A", "a:b", "{}", "%", "%253A", "%7B:}"] {
            let key = Key::command(&tenant, Operation("POST /a:b"), name).unwrap();
            assert_eq!(Key::from_canonical(&key.canonical()), Some(key));
        }
        assert_eq!(Key::from_canonical("a:b"), None);
    }

    #[test]
    fn key_operation_alone_may_contain_spaces() {
        let tenant = Tenant::default();
        assert!(Key::command(&tenant, Operation("POST /orders"), "k").is_ok());
        assert_eq!(Key::lock(&tenant, "a b"), Err(InvalidKey::NotPrintable { part: "key", at: 1 }));
        assert!(Key::lock(&tenant, "caf\u{e9}").is_err());
    }
}
