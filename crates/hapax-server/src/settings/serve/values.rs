//! How the settings of events, their streams and the ingest are parsed.

use hapax::bus::ClosingEvent;
use hapax::log::MAX_NUMBER;
use hapax::{Key, Tenant};
use hyper::Uri;

use crate::settings::values::{SecretText, SettingValue, list_items};

/// The event that closes a job by convention, if any.
#[derive(Clone, Debug)]
pub(crate) struct ClosingEventSetting(pub(crate) Option<ClosingEvent>);

impl SettingValue for ClosingEventSetting {
    fn parse(text: &str) -> Result<Self, String> {
        if text.is_empty() {
            return Ok(Self(None));
        }
        let expected = "a stage and a seq are expected, such as done:51, or nothing";
        let (stage, seq) = text.rsplit_once(':').ok_or(expected)?;
        let seq = seq.parse().ok().filter(|seq| *seq <= MAX_NUMBER).ok_or(expected)?;
        if stage.is_empty() {
            return Err(expected.into());
        }
        Ok(Self(Some(ClosingEvent::new(stage, seq))))
    }
}

/// Whether the console is served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ConsoleSwitch {
    On,
    Off,
}

/// Whether the console may show keys, payloads and answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ConsoleReveal {
    Allowed,
    Never,
}

/// Web sites, as browsers name them in `Origin`.
#[derive(Clone, Debug)]
pub(crate) struct AllowedOrigins(Vec<String>);

impl AllowedOrigins {
    /// Whether this site is named, and not only allowed by `*`.
    pub(crate) fn names(&self, origin: &str) -> bool {
        self.0.iter().any(|named| named == origin)
    }

    pub(crate) fn allow(&self, origin: &str) -> bool {
        let same = |allowed: &String| {
            allowed == "*" || allowed == origin || is_same_local_site(allowed, origin)
        };
        self.0.iter().any(same)
    }
}

/// Whether both are pages of this machine over plain HTTP with the same port: a browser takes
/// `localhost`, `127.0.0.1` and `[::1]` for three sites, and whoever named one means the others too.
fn is_same_local_site(allowed: &str, origin: &str) -> bool {
    let port = |text: &str| {
        let authority = text.strip_prefix("http://")?;
        ["localhost", "127.0.0.1", "[::1]"].into_iter().find_map(|host| {
            let port = authority.strip_prefix(host)?;
            (port.is_empty() || port.starts_with(':')).then(|| port.to_owned())
        })
    };
    port(allowed).is_some() && port(allowed) == port(origin)
}

impl SettingValue for AllowedOrigins {
    fn parse(text: &str) -> Result<Self, String> {
        let origins: Vec<_> = list_items(text).map(str::to_owned).collect();
        match origins.iter().all(|origin| origin == "*" || is_origin(origin)) {
            true => Ok(Self(origins)),
            false => Err("origins such as https://app.example or http://localhost:3000 are \
                          expected, without a path; or *"
                .into()),
        }
    }
}

fn is_origin(text: &str) -> bool {
    let parsed: Option<Uri> = text.parse().ok();
    parsed.is_some_and(|uri| {
        matches!(uri.scheme_str(), Some("http" | "https"))
            && uri.authority().is_some_and(|authority| text.ends_with(authority.as_str()))
    })
}

/// A secret that signs links; never shown.
#[derive(Clone, Debug)]
pub(crate) struct SigningSecret(SecretText);

impl SigningSecret {
    pub(crate) fn bytes(&self) -> &[u8] {
        self.0.0.as_bytes()
    }
}

impl SettingValue for SigningSecret {
    fn parse(text: &str) -> Result<Self, String> {
        if text.len() < 32 {
            return Err("at least 32 bytes are expected, as of `openssl rand -hex 32`".into());
        }
        Ok(Self(SecretText(text.into())))
    }
}

/// The most streams of one domain.
const MAX_SHARDS: u16 = 1024;

/// The streams `{name}:events:0` up to `shards`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct IngestDomain {
    pub(crate) name: String,
    pub(crate) shards: u16,
}

/// Every domain that is routed; none by default.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct IngestDomains(pub(crate) Vec<IngestDomain>);

impl IngestDomains {
    /// Every stream, as its domain and its name.
    pub(crate) fn streams(&self) -> impl Iterator<Item = (String, String)> {
        self.0.iter().flat_map(|domain| {
            let name = domain.name.clone();
            let stream = move |shard| (name.clone(), format!("{name}:events:{shard}"));
            (0..domain.shards).map(stream)
        })
    }
}

impl SettingValue for IngestDomains {
    fn parse(text: &str) -> Result<Self, String> {
        let expected = "DOMAIN:SHARDS is expected, such as scan:4";
        let mut domains: Vec<IngestDomain> = Vec::new();
        for part in list_items(text) {
            let (name, shards) = part.rsplit_once(':').ok_or(expected)?;
            let shards = shards.parse().ok().filter(|n| (1..=MAX_SHARDS).contains(n));
            let shards = shards.ok_or(format!("{expected}, with 1 to {MAX_SHARDS} shards"))?;
            Key::job(&Tenant::default(), name, "job").map_err(|error| error.to_string())?;
            if domains.iter().any(|domain| domain.name == name) {
                return Err("a domain is there twice".into());
            }
            domains.push(IngestDomain { name: name.into(), shards });
        }
        Ok(Self(domains))
    }
}

/// The name of a consumer group or of a channel, chosen by another program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RedisName(pub(crate) String);

impl SettingValue for RedisName {
    fn parse(text: &str) -> Result<Self, String> {
        if text.is_empty() || text.len() > 255 || text.chars().any(char::is_control) {
            return Err("a name of 1 to 255 bytes is expected".into());
        }
        Ok(Self(text.into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn origins_are_sites_without_a_path() {
        for good in ["", "*", "https://app.example", "http://localhost:3000, https://b.example"] {
            assert!(AllowedOrigins::parse(good).is_ok(), "{good}");
        }
        for wrong in ["app.example", "https://app.example/", "https://a/b", "ftp://a", "null"] {
            assert!(AllowedOrigins::parse(wrong).is_err(), "{wrong}");
        }
        let origins = AllowedOrigins::parse("https://a.example").unwrap();
        assert!(origins.allow("https://a.example") && !origins.allow("https://b.example"));
        assert!(!origins.allow("http://localhost") && !origins.allow("http://a.example"));
    }

    #[test]
    fn fault_46_origins_of_this_machine_are_one_site() {
        let origins = AllowedOrigins::parse("http://127.0.0.1:8791, https://a.example").unwrap();
        for same in ["http://localhost:8791", "http://127.0.0.1:8791", "http://[::1]:8791"] {
            assert!(origins.allow(same), "{same}");
        }
        for other in [
            "http://localhost:8792",
            "http://localhost",
            "https://localhost:8791",
            "http://localhost.evil.example:8791",
            "http://127.0.0.1.evil.example:8791",
            "http://localhost:8791.evil.example",
        ] {
            assert!(!origins.allow(other), "{other}");
        }
    }

    #[test]
    fn closing_event_is_a_stage_and_a_seq() {
        assert_eq!(
            ClosingEventSetting::parse("done:51").unwrap().0,
            Some(ClosingEvent::new("done", 51))
        );
        assert_eq!(ClosingEventSetting::parse("").unwrap().0, None);
        for wrong in ["done", ":51", "done:", "done:-1", "done:99999999999999999"] {
            assert!(ClosingEventSetting::parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn ingest_domains_have_shards() {
        let domains = IngestDomains::parse("scan:2, chat:1").unwrap();
        let streams: Vec<_> = domains.streams().map(|(_, stream)| stream).collect();
        assert_eq!(streams, ["scan:events:0", "scan:events:1", "chat:events:0"]);
        assert_eq!(IngestDomains::parse("").unwrap(), IngestDomains::default());
        for wrong in ["scan", "scan:0", "scan:x", "scan:1025", ":1", "a b:1", "scan:1,scan:2"] {
            assert!(IngestDomains::parse(wrong).is_err(), "{wrong}");
        }
    }
}
