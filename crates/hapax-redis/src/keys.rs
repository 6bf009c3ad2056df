//! Which Redis key a hapax key has.

use hapax_core::queue::QueueName;
use hapax_core::{Key, Kind, Tenant};

/// Keys that are used as they are, because programs that know nothing of hapax use them too.
/// Only the tenant `default` has any. In a pattern `*` stands for any text.
///
/// ```
/// use hapax_redis::Verbatim;
/// let verbatim = Verbatim::default();
/// assert_eq!(verbatim.locks, ["processing:*"]);
/// assert_eq!(verbatim.records, ["user:*:last_transaction"]);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verbatim {
    /// Patterns of locks.
    pub locks: Vec<String>,
    /// Patterns of records, which are then stored as plain text.
    pub records: Vec<String>,
}

impl Default for Verbatim {
    fn default() -> Self {
        Self { locks: vec!["processing:*".into()], records: vec!["user:*:last_transaction".into()] }
    }
}

impl Verbatim {
    /// No key is used verbatim.
    pub fn none() -> Self {
        Self { locks: Vec::new(), records: Vec::new() }
    }

    fn covers(&self, key: &Key) -> bool {
        let patterns = match key.kind() {
            Kind::Lock => &self.locks,
            Kind::Record => &self.records,
            _ => return false,
        };
        *key.tenant() == Tenant::default() && patterns.iter().any(|p| matches(p, key.name()))
    }
}

/// How keys are named.
#[derive(Clone, Debug)]
pub(crate) struct Naming {
    pub(crate) prefix: String,
    pub(crate) verbatim: Verbatim,
}

/// The name of one key.
pub(crate) struct Named {
    pub(crate) name: String,
    pub(crate) verbatim: bool,
}

impl Naming {
    pub(crate) fn of(&self, key: &Key) -> Named {
        if self.verbatim.covers(key) {
            return Named { name: key.name().to_owned(), verbatim: true };
        }
        // `canonical` escapes braces, so the whole of it is the hash tag.
        Named { name: format!("{}:{{{}}}", self.prefix, key.canonical()), verbatim: false }
    }

    /// The keys of a partition of the log, and of a job in it: one slot, by the hash tag.
    pub(crate) fn partition(&self, partition: u16, what: &str) -> String {
        format!("{}:{{p{partition}}}:{what}", self.prefix)
    }

    /// Where the number of partitions is stored.
    pub(crate) fn partitions(&self) -> String {
        format!("{}:{{log}}:partitions", self.prefix)
    }

    /// The keys of a queue: one slot, by the hash tag. Names of claims and records have nothing behind
    /// their tag.
    pub(crate) fn queue(&self, queue: &QueueName, what: &str) -> String {
        let mut name = String::new();
        for c in queue.as_str().chars() {
            match c {
                '%' => name.push_str("%25"),
                '{' => name.push_str("%7B"),
                '}' => name.push_str("%7D"),
                c => name.push(c),
            }
        }
        format!("{}:{{q:{name}}}:{what}", self.prefix)
    }

    /// The channel over which nodes wake each other's waiters.
    pub(crate) fn channel(&self) -> String {
        format!("{}:wake", self.prefix)
    }
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
    use super::*;

    fn naming() -> Naming {
        Naming { prefix: "hapax".into(), verbatim: Verbatim::default() }
    }

    fn name(key: Key) -> String {
        naming().of(&key).name
    }

    #[test]
    fn seed_keys_of_the_default_tenant_are_verbatim() {
        let tenant = Tenant::default();
        assert_eq!(name(Key::lock(&tenant, "processing:user:U1").unwrap()), "processing:user:U1");
        let record = "user:U1:last_transaction";
        assert_eq!(name(Key::record(&tenant, record).unwrap()), record);
    }

    #[test]
    fn other_kinds_and_tenants_never_meet_them() {
        let (tenant, other) = (Tenant::default(), Tenant::new("shop").unwrap());
        let prefixed = [
            Key::record(&tenant, "processing:user:U1"),
            Key::lock(&tenant, "user:U1:last_transaction"),
            Key::lock(&other, "processing:user:U1"),
            Key::command(&tenant, "pay", "processing:user:U1"),
        ];
        for key in prefixed {
            assert!(name(key.unwrap()).starts_with("hapax:{"));
        }
    }

    #[test]
    fn the_hash_tag_is_the_whole_key() {
        let key = Key::lock(&Tenant::default(), "a}b{c").unwrap();
        assert_eq!(name(key), "hapax:{default:lock::a%7Db%7Bc}");
    }

    #[test]
    fn stars_match_any_text() {
        assert!(matches("user:*:last_transaction", "user:U:1:last_transaction"));
        assert!(matches("*", ""));
        assert!(matches("a*b*c", "a12b3bc"));
        assert!(!matches("a*b*c", "a12c"));
        assert!(!matches("processing:*", "xprocessing:1"));
        assert!(matches("exact", "exact") && !matches("exact", "exactly"));
    }
}
