//! Which streams are routed, and how.

use std::time::Duration;

use hapax::{Key, Tenant};

use crate::settings::Value;

/// The most streams of one domain.
const MOST_SHARDS: u16 = 1024;

/// The streams `{name}:events:0` up to `shards`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Domain {
    pub(crate) name: String,
    pub(crate) shards: u16,
}

/// Every domain that is routed; none by default.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Domains(pub(crate) Vec<Domain>);

impl Domains {
    /// The names of the streams.
    pub(super) fn streams(&self) -> impl Iterator<Item = (String, String)> {
        self.0.iter().flat_map(|domain| {
            let name = domain.name.clone();
            let stream = move |shard| (name.clone(), format!("{name}:events:{shard}"));
            (0..domain.shards).map(stream)
        })
    }
}

impl Value for Domains {
    fn parse(text: &str) -> Result<Self, String> {
        let expected = "DOMAIN:SHARDS is expected, such as scan:4";
        let mut domains: Vec<Domain> = Vec::new();
        for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
            let (name, shards) = part.rsplit_once(':').ok_or(expected)?;
            let shards = shards.parse().ok().filter(|n| (1..=MOST_SHARDS).contains(n));
            let shards = shards.ok_or(format!("{expected}, with 1 to {MOST_SHARDS} shards"))?;
            Key::job(&Tenant::default(), name, "job").map_err(|error| error.to_string())?;
            if domains.iter().any(|domain| domain.name == name) {
                return Err("a domain is there twice".into());
            }
            domains.push(Domain { name: name.into(), shards });
        }
        Ok(Self(domains))
    }
}

/// A name that a server of another program made: a group, or a channel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Name(pub(crate) String);

impl Value for Name {
    fn parse(text: &str) -> Result<Self, String> {
        if text.is_empty() || text.len() > 255 || text.chars().any(char::is_control) {
            return Err("a name of 1 to 255 bytes is expected".into());
        }
        Ok(Self(text.into()))
    }
}

/// How the router works.
pub(crate) struct IngestConfig {
    pub(crate) domains: Domains,
    pub(crate) group: String,
    /// Who we are to the group. The same after a restart, so that our own entries come first then.
    pub(crate) consumer: String,
    /// Where each routed event is published as well; `{domain}` and `{job_id}` stand for its own.
    pub(crate) channel: Option<String>,
    /// How many times an entry is delivered before it is a dead letter.
    pub(crate) max_deliveries: u64,
    /// How long a consumer may be silent before its entries are taken over.
    pub(crate) reclaim_after: Duration,
    /// How long `{domain}:state:{job_id}` is kept.
    pub(crate) state_retention: Duration,
    /// How long a tail may stand still before the process is not ready.
    pub(crate) max_stall: Duration,
    /// The longest that one call of Redis may take.
    pub(crate) store_timeout: Duration,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn domains_have_shards() {
        let domains = Domains::parse("scan:2, chat:1").unwrap();
        let streams: Vec<_> = domains.streams().map(|(_, stream)| stream).collect();
        assert_eq!(streams, ["scan:events:0", "scan:events:1", "chat:events:0"]);
        assert_eq!(Domains::parse("").unwrap(), Domains::default());
        for wrong in ["scan", "scan:0", "scan:x", "scan:1025", ":1", "a b:1", "scan:1,scan:2"] {
            assert!(Domains::parse(wrong).is_err(), "{wrong}");
        }
    }
}
