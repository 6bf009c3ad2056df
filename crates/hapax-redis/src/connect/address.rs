//! The parsed form of a store URL.

use std::fmt;
use std::time::Duration;

use hapax_core::{StoreError, StoreResult};
use percent_encoding::percent_decode_str;
use url::Url;

/// The servers that a URL names, and how to log in to them.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct RedisAddress {
    pub(crate) topology: Topology,
    pub(crate) nodes: Vec<(String, u16)>,
    pub(crate) login: Login,
    /// For the sentinels themselves; the data nodes' login is `login`.
    pub(crate) sentinel_login: Login,
    pub(crate) database: i64,
    pub(crate) tls: bool,
    /// Which replicas must confirm appends and enqueues.
    pub(crate) wait: Option<ReplicaWait>,
    /// The path of a file with the certificates to trust instead of the system's.
    pub(crate) ca_file: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Topology {
    Single,
    Sentinel { master: String },
    Cluster,
}

#[derive(Clone, Default, PartialEq, Eq)]
pub(crate) struct Login {
    pub(crate) user: Option<String>,
    pub(crate) password: Option<String>,
}

/// How many replicas must confirm a write before it is acknowledged, and how long that may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ReplicaWait {
    pub(crate) replicas: u16,
    pub(crate) timeout: Duration,
}

impl ReplicaWait {
    const DEFAULT_TIMEOUT: Duration = Duration::from_secs(1);

    /// `None` for no replicas.
    pub(crate) fn new(replicas: u16, timeout: Duration) -> Option<Self> {
        (replicas > 0).then_some(Self { replicas, timeout })
    }
}

/// Leaves the credentials out.
impl fmt::Debug for RedisAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisAddress")
            .field("topology", &self.topology)
            .field("nodes", &self.nodes)
            .field("database", &self.database)
            .field("tls", &self.tls)
            .finish_non_exhaustive()
    }
}

/// The error names the malformed part of the URL and never repeats its text: a stray `@` or `/` makes a piece
/// of the password look like another part.
fn malformed(what: &str) -> StoreError {
    StoreError::Incompatible { reason: format!("the Redis URL is malformed: {what}") }
}

impl RedisAddress {
    pub(crate) fn parse(text: &str) -> StoreResult<Self> {
        let (scheme, rest) = text.split_once("://").ok_or_else(|| malformed("no scheme"))?;
        if rest.contains('#') {
            return Err(malformed("a fragment (percent-encode # in a password as %23)"));
        }
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        let (login, nodes) = authority.rsplit_once('@').unwrap_or(("", authority));
        let (family, mut tls) = parse_scheme(scheme)?;
        let (topology, database) = family.parse_path(path)?;
        let port = if family == Family::Sentinel { 26379 } else { 6379 };
        let mut sentinel_login = Login::default();
        let mut ca_file = None;
        let (mut replicas, mut timeout) = (0, ReplicaWait::DEFAULT_TIMEOUT);
        for (name, value) in parse_query(query)? {
            match name.as_str() {
                "tls" => tls |= parse_bool(&value)?,
                "ca" => ca_file = Some(value),
                "wait_replicas" => replicas = parse_u16(&value)?,
                "wait_ms" => timeout = Duration::from_millis(parse_u16(&value)?.into()),
                "sentinel_username" if family == Family::Sentinel => {
                    sentinel_login.user = Some(value);
                }
                "sentinel_password" if family == Family::Sentinel => {
                    sentinel_login.password = Some(value);
                }
                _ => return Err(malformed("a query parameter that is not known here")),
            }
        }
        if ca_file.is_some() && !tls {
            return Err(malformed("`ca` without TLS (use rediss:// or tls=true)"));
        }
        Ok(Self {
            topology,
            nodes: parse_nodes(nodes, port, family == Family::Single)?,
            login: parse_login(login)?,
            sentinel_login,
            database,
            tls,
            wait: ReplicaWait::new(replicas, timeout),
            ca_file,
        })
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Family {
    Single,
    Sentinel,
    Cluster,
}

fn parse_scheme(scheme: &str) -> StoreResult<(Family, bool)> {
    Ok(match scheme {
        "redis" => (Family::Single, false),
        "rediss" => (Family::Single, true),
        "redis+sentinel" => (Family::Sentinel, false),
        "rediss+sentinel" => (Family::Sentinel, true),
        "redis+cluster" => (Family::Cluster, false),
        "rediss+cluster" => (Family::Cluster, true),
        _ => {
            return Err(malformed(
                "the scheme is not redis, rediss, or one with +sentinel or +cluster",
            ));
        }
    })
}

impl Family {
    /// The path after the servers: a database, a master's name, or nothing.
    fn parse_path(self, path: &str) -> StoreResult<(Topology, i64)> {
        match self {
            Self::Single => Ok((Topology::Single, parse_database(path)?)),
            Self::Cluster if path.is_empty() || path == "0" => Ok((Topology::Cluster, 0)),
            Self::Cluster => Err(malformed("a Cluster has no databases")),
            Self::Sentinel => {
                let (master, rest) = path.split_once('/').unwrap_or((path, ""));
                if master.is_empty() {
                    return Err(malformed("no master name after the sentinels"));
                }
                Ok((Topology::Sentinel { master: percent_decoded(master)? }, parse_database(rest)?))
            }
        }
    }
}

fn parse_database(path: &str) -> StoreResult<i64> {
    match path {
        "" => Ok(0),
        digits if digits.bytes().all(|b| b.is_ascii_digit()) => {
            digits.parse().map_err(|_| malformed("the database number is too large"))
        }
        _ => Err(malformed("the database is not a number")),
    }
}

fn parse_nodes(list: &str, port: u16, single: bool) -> StoreResult<Vec<(String, u16)>> {
    let nodes: Vec<_> =
        list.split(',').map(|node| parse_node(node, port)).collect::<Result<_, _>>()?;
    if single && nodes.len() > 1 {
        return Err(malformed("several servers (use redis+sentinel:// or redis+cluster://)"));
    }
    Ok(nodes)
}

/// Parses one server of the list; the `url` crate takes only one host.
fn parse_node(node: &str, port: u16) -> StoreResult<(String, u16)> {
    let url = Url::parse(&format!("redis://{node}")).map_err(|_| malformed("a host or a port"))?;
    let host = url.host_str().filter(|host| !host.is_empty());
    let host = host.ok_or_else(|| malformed("a server without a host"))?;
    let host = host.strip_prefix('[').and_then(|h| h.strip_suffix(']')).unwrap_or(host);
    match url.port().unwrap_or(port) {
        0 => Err(malformed("port 0")),
        port => Ok((host.to_owned(), port)),
    }
}

fn parse_login(text: &str) -> StoreResult<Login> {
    if text.is_empty() {
        return Ok(Login::default());
    }
    let (user, password) = text.split_once(':').unwrap_or((text, ""));
    let some = |part: &str| percent_decoded(part).map(|text| Some(text).filter(|t| !t.is_empty()));
    let login = Login { user: some(user)?, password: some(password)? };
    if login.password.is_none() {
        return Err(malformed("a user without a password"));
    }
    Ok(login)
}

fn parse_query(query: &str) -> StoreResult<Vec<(String, String)>> {
    let mut parameters: Vec<(String, String)> = Vec::new();
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let (name, value) =
            pair.split_once('=').ok_or_else(|| malformed("a query parameter without a value"))?;
        let (name, value) = (percent_decoded(name)?, percent_decoded(value)?);
        if parameters.iter().any(|(known, _)| *known == name) {
            return Err(malformed("a query parameter twice"));
        }
        parameters.push((name, value));
    }
    Ok(parameters)
}

fn parse_bool(value: &str) -> StoreResult<bool> {
    match value {
        "true" => Ok(true),
        "false" => Ok(false),
        _ => Err(malformed("`tls` is neither true nor false")),
    }
}

fn parse_u16(value: &str) -> StoreResult<u16> {
    let digits = value.bytes().all(|b| b.is_ascii_digit());
    let number = value.parse().ok().filter(|_| digits);
    number.ok_or_else(|| malformed("`wait_replicas` or `wait_ms` is no whole number"))
}

fn percent_decoded(text: &str) -> StoreResult<String> {
    let text = percent_decode_str(text).decode_utf8();
    text.map(Into::into).map_err(|_| malformed("percent-encoded bytes that are not UTF-8"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> RedisAddress {
        RedisAddress::parse(text).unwrap()
    }

    #[test]
    fn single_server_url_with_all_parts_is_parsed() {
        let address = parsed("rediss://ann:p%40ss@cache.example:6380/3?ca=/etc/ca.pem");
        assert_eq!(address.topology, Topology::Single);
        assert_eq!(address.nodes, [("cache.example".to_owned(), 6380)]);
        assert_eq!(address.login.user.as_deref(), Some("ann"));
        assert_eq!(address.login.password.as_deref(), Some("p@ss"));
        assert_eq!((address.database, address.tls), (3, true));
        assert_eq!(address.ca_file.as_deref(), Some("/etc/ca.pem"));
    }

    #[test]
    fn default_ports_and_ipv6_hosts_are_parsed() {
        assert_eq!(parsed("redis://[::1]").nodes, [("::1".to_owned(), 6379)]);
        assert_eq!(parsed("redis+sentinel://a/m").nodes, [("a".to_owned(), 26379)]);
    }

    #[test]
    fn sentinel_url_has_a_master_and_its_own_login() {
        let address = parsed("redis+sentinel://:pw@a:1,b:2/main/4?sentinel_password=s&tls=true");
        assert_eq!(address.topology, Topology::Sentinel { master: "main".into() });
        assert_eq!(address.nodes, [("a".to_owned(), 1), ("b".to_owned(), 2)]);
        assert_eq!(address.login.password.as_deref(), Some("pw"));
        assert_eq!(address.sentinel_login.password.as_deref(), Some("s"));
        assert_eq!((address.database, address.tls), (4, true));
    }

    #[test]
    fn wait_replicas_and_wait_ms_are_parsed() {
        assert_eq!(parsed("redis://h").wait, None);
        assert_eq!(parsed("redis://h?wait_replicas=0").wait, None);
        let wait = parsed("redis+cluster://h?wait_replicas=2&wait_ms=50").wait.unwrap();
        assert_eq!((wait.replicas, wait.timeout), (2, Duration::from_millis(50)));
    }

    #[test]
    fn cluster_url_has_several_nodes() {
        let address = parsed("redis+cluster://a:7000,b:7001");
        assert_eq!(address.topology, Topology::Cluster);
        assert_eq!(address.nodes.len(), 2);
    }

    #[test]
    fn malformed_urls_are_refused_without_repeating_them() {
        for url in [
            "",
            "secret",
            "http://secret",
            "redis://",
            "redis://:secret@",
            "redis://h:secret",
            "redis://h:0",
            "redis://h:70000",
            "redis://h/secret",
            "redis://h/-1",
            "redis://secret@h",
            "redis://a,b",
            "redis://:sec/ret@h",
            "redis://:sec#ret@h",
            "redis://:%ff@h",
            "redis://h?secret=1",
            "redis://h?ca=/x",
            "redis://h?tls=secret",
            "redis://h?tls=true&tls=true",
            "redis://h?wait_replicas=secret",
            "redis://h?wait_ms=-1",
            "redis+cluster://a/1",
            "redis+cluster://a,,b",
            "redis+sentinel://a",
            "redis+sentinel://a/m/secret",
        ] {
            match RedisAddress::parse(url) {
                Err(StoreError::Incompatible { reason }) => {
                    assert!(!reason.contains("secret"), "{url}")
                }
                other => panic!("{url}: {other:?}"),
            }
        }
    }

    #[test]
    fn debug_output_hides_the_password() {
        assert!(!format!("{:?}", parsed("redis://:hunter2@h")).contains("hunter2"));
    }
}
