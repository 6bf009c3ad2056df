//! The Redis keys under which hapax keys are stored.

use hapax_core::queue::QueueName;
use hapax_core::{Key, KeyKind, Tenant, Token};

/// Names of locks and records that are stored under the very same Redis key, because programs that know nothing
/// of hapax use them too. They exist only for the tenant `default`; there are none by default. In a pattern `*`
/// stands for any text.
///
/// ```
/// use hapax_redis::VerbatimKeys;
/// let verbatim =
///     VerbatimKeys::default().locks(["processing:*"]).records(["user:*:last_transaction"]);
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VerbatimKeys {
    locks: Vec<String>,
    records: Vec<String>,
}

impl VerbatimKeys {
    /// Adds patterns of locks. Any value that a foreign program stores there counts as held.
    #[must_use]
    pub fn locks<T: Into<String>>(mut self, patterns: impl IntoIterator<Item = T>) -> Self {
        self.locks.extend(patterns.into_iter().map(Into::into));
        self
    }

    /// Adds patterns of records, which are then stored as plain text.
    #[must_use]
    pub fn records<T: Into<String>>(mut self, patterns: impl IntoIterator<Item = T>) -> Self {
        self.records.extend(patterns.into_iter().map(Into::into));
        self
    }

    fn contains(&self, key: &Key) -> bool {
        let patterns = match key.kind() {
            KeyKind::Lock => &self.locks,
            KeyKind::Record => &self.records,
            _ => return false,
        };
        *key.tenant() == Tenant::default() && patterns.iter().any(|p| matches(p, key.name()))
    }
}

/// Makes the names of Redis keys.
#[derive(Clone, Debug)]
pub(crate) struct KeyNames {
    pub(crate) prefix: String,
    pub(crate) verbatim: VerbatimKeys,
}

pub(crate) struct KeyName {
    pub(crate) name: String,
    pub(crate) verbatim: bool,
}

impl KeyNames {
    /// The name of a claim or a record.
    pub(crate) fn of(&self, key: &Key) -> KeyName {
        if self.verbatim.contains(key) {
            return KeyName { name: key.name().to_owned(), verbatim: true };
        }
        // `canonical` escapes braces, so the hash tag is the whole of it.
        KeyName { name: format!("{}:{{{}}}", self.prefix, key.canonical()), verbatim: false }
    }

    /// The name of the marker of a call on that key, in the same slot; `None` if no other key can be in its
    /// slot by a hash tag.
    pub(crate) fn marker(&self, key: &KeyName, id: &Token) -> Option<String> {
        let tag = hash_tag(&key.name);
        (!tag.contains('}')).then(|| format!("{}:{{{tag}}}:did:{}", self.prefix, id.as_str()))
    }

    /// A key of a partition of the log, or of a job in it. All of them are in one slot, by the hash tag.
    pub(crate) fn partition(&self, partition: u16, part: &str) -> String {
        format!("{}:{{p{partition}}}:{part}", self.prefix)
    }

    /// The key of the number of partitions.
    pub(crate) fn partitions(&self) -> String {
        format!("{}:{{log}}:partitions", self.prefix)
    }

    /// A key of a queue. All of them are in one slot, by the hash tag. They differ from the keys of claims and
    /// records, which end with their tag.
    pub(crate) fn queue(&self, queue: &QueueName, part: &str) -> String {
        let mut name = String::new();
        for c in queue.as_str().chars() {
            match c {
                '%' => name.push_str("%25"),
                '{' => name.push_str("%7B"),
                '}' => name.push_str("%7D"),
                c => name.push(c),
            }
        }
        format!("{}:{{q:{name}}}:{part}", self.prefix)
    }

    /// The key of the names of all queues.
    pub(crate) fn queue_names(&self) -> String {
        format!("{}:{{queues}}", self.prefix)
    }

    /// The channel over which processes wake each other's waiters.
    pub(crate) fn wake_channel(&self) -> String {
        format!("{}:wake", self.prefix)
    }
}

/// The part of a name that decides about its slot: the text in the first braces if there is any, else all.
fn hash_tag(name: &str) -> &str {
    let tagged = name.split_once('{').and_then(|(_, rest)| rest.split_once('}'));
    tagged.map(|(tag, _)| tag).filter(|tag| !tag.is_empty()).unwrap_or(name)
}

fn matches(pattern: &str, text: &str) -> bool {
    let Some((head, rest)) = pattern.split_once('*') else {
        return pattern == text;
    };
    let Some(text) = text.strip_prefix(head) else {
        return false;
    };
    text.char_indices().map(|(at, _)| at).chain([text.len()]).any(|at| matches(rest, &text[at..]))
}

#[cfg(test)]
mod tests {
    use hapax_core::Operation;

    use super::*;

    fn name(key: Key) -> String {
        let verbatim =
            VerbatimKeys::default().locks(["processing:*"]).records(["user:*:last_transaction"]);
        KeyNames { prefix: "hapax".into(), verbatim }.of(&key).name
    }

    #[test]
    fn key_that_matches_a_pattern_is_verbatim() {
        let tenant = Tenant::default();
        assert_eq!(name(Key::lock(&tenant, "processing:user:U1").unwrap()), "processing:user:U1");
        let record = "user:U1:last_transaction";
        assert_eq!(name(Key::record(&tenant, record).unwrap()), record);
    }

    #[test]
    fn key_of_other_kind_or_tenant_is_never_verbatim() {
        let (tenant, other) = (Tenant::default(), Tenant::new("shop").unwrap());
        let prefixed = [
            Key::record(&tenant, "processing:user:U1"),
            Key::lock(&tenant, "user:U1:last_transaction"),
            Key::lock(&other, "processing:user:U1"),
            Key::command(&tenant, Operation("pay"), "processing:user:U1"),
        ];
        for key in prefixed {
            assert!(name(key.unwrap()).starts_with("hapax:{"));
        }
    }

    #[test]
    fn hash_tag_is_the_whole_key() {
        let key = Key::lock(&Tenant::default(), "a}b{c").unwrap();
        assert_eq!(name(key), "hapax:{default:lock::a%7Db%7Bc}");
    }

    #[test]
    fn marker_is_in_the_slot_of_its_key() {
        let names = KeyNames { prefix: "hapax".into(), verbatim: VerbatimKeys::default() };
        let marker = |name: &str| {
            let key = KeyName { name: name.into(), verbatim: true };
            names.marker(&key, &Token::presented("7"))
        };
        for (name, tag) in [("a", "a"), ("a{b}c", "b"), ("a{b", "a{b"), ("{a}{b}", "a")] {
            assert_eq!(marker(name), Some(format!("hapax:{{{tag}}}:did:7")), "{name}");
        }
        assert_eq!(marker("a}b"), None);
        assert_eq!(marker("a{}b"), None);
    }

    #[test]
    fn pattern_star_matches_any_text() {
        assert!(matches("user:*:last_transaction", "user:U:1:last_transaction"));
        assert!(matches("*", ""));
        assert!(matches("a*b*c", "a12b3bc"));
        assert!(!matches("a*b*c", "a12c"));
        assert!(!matches("processing:*", "xprocessing:1"));
        assert!(matches("exact", "exact") && !matches("exact", "exactly"));
    }
}
