//! Access without tokens, for this machine only. A web page in a local browser must not reach the
//! API either: foreign host names that resolve to loopback (DNS rebinding) and cross-site requests
//! are refused. So are requests that a proxy has forwarded: it may bring the whole world to a
//! loopback address, and may have replaced `Host` by a loopback name.

use axum::http::uri::Authority;
use axum::http::{Uri, Version};
use hyper::header::{HOST, HeaderMap, ORIGIN};

use super::headers::single_header;
use crate::problem::{Problem, ProblemKind};

/// Refuses requests for a foreign host or from another site.
pub(crate) fn check(uri: &Uri, version: Version, headers: &HeaderMap) -> Result<(), Problem> {
    let host = match single_header(headers, &HOST)? {
        Some(value) => {
            let host = value.to_str().ok().and_then(|text| text.parse::<Authority>().ok());
            Some(host.ok_or_else(other_host)?)
        }
        None => None,
    };
    // HTTP/2, and HTTP/1 in absolute form, name the host in the request line.
    let named: Vec<&Authority> = host.iter().chain(uri.authority()).collect();
    if named.is_empty() && version == Version::HTTP_11 {
        return Err(Problem::invalid("header `Host` is missing"));
    }
    if named.iter().any(|host| !is_loopback(host)) {
        return Err(other_host());
    }
    match single_header(headers, &ORIGIN)? {
        Some(origin) if !origin.to_str().is_ok_and(|origin| same_site(origin, &named)) => {
            let text = "`Origin` is another site, and no tokens are configured";
            Err(Problem::new(ProblemKind::Forbidden, text))
        }
        _ => Ok(()),
    }
}

/// Refuses requests that say that they were forwarded. A proxy that adds no header about it is not
/// recognised.
pub(crate) fn refuse_forwarded(headers: &HeaderMap) -> Result<(), Problem> {
    let Some(name) = headers.keys().find(|name| is_of_a_proxy(name.as_str())) else {
        return Ok(());
    };
    let text = format!(
        "it came through a proxy (`{name}`), and without tokens this server is for this machine \
         alone: configure tokens (`hapax token new`), or send it directly"
    );
    Err(Problem::new(ProblemKind::ForwardedRequest, text))
}

fn is_of_a_proxy(name: &str) -> bool {
    ["forwarded", "via", "x-real-ip", "cf-connecting-ip", "true-client-ip"].contains(&name)
        || name.starts_with("x-forwarded")
}

fn other_host() -> Problem {
    let text = "`Host` is not a loopback name, and no tokens are configured";
    Problem::new(ProblemKind::Forbidden, text)
}

fn is_loopback(authority: &Authority) -> bool {
    if authority.as_str().contains('@') {
        return false;
    }
    let host = authority.host().trim_start_matches('[').trim_end_matches(']');
    host.eq_ignore_ascii_case("localhost")
        || host.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback())
}

/// Whether the origin is this server: any loopback name with the port of the request.
fn same_site(origin: &str, named: &[&Authority]) -> bool {
    let authority = origin.strip_prefix("http://").and_then(|rest| rest.parse::<Authority>().ok());
    authority.is_some_and(|origin| {
        is_loopback(&origin) && named.iter().all(|host| host.port_u16() == origin.port_u16())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verdict(host: &str, origin: Option<&str>) -> u16 {
        let mut headers = HeaderMap::new();
        headers.insert(HOST, host.parse().unwrap());
        if let Some(origin) = origin {
            headers.insert(ORIGIN, origin.parse().unwrap());
        }
        let answer = check(&Uri::from_static("/"), Version::HTTP_11, &headers);
        answer.map_or_else(|problem| problem.kind().status().as_u16(), |()| 200)
    }

    #[test]
    fn only_loopback_hosts_are_accepted() {
        for host in ["localhost", "LocalHost:8787", "127.0.0.1:8787", "127.1.2.3", "[::1]:8787"] {
            assert_eq!(verdict(host, None), 200, "{host}");
        }
        let foreign = "evil.example localhost.evil.example 127.0.0.1.nip.io 0.0.0.0 [::] \
                       10.0.0.1:8787 localhost@evil.example user@localhost";
        for host in foreign.split(' ').chain(["", "a b"]) {
            assert_eq!(verdict(host, None), 403, "{host}");
        }
    }

    #[test]
    fn only_own_origins_are_accepted() {
        assert_eq!(verdict("localhost:8787", Some("http://localhost:8787")), 200);
        assert_eq!(verdict("127.0.0.1:8787", Some("http://localhost:8787")), 200);
        let foreign = "null http://evil.example http://localhost:3000 https://localhost:8787 \
                       http://localhost.evil.example:8787 file:// http://localhost";
        for origin in foreign.split(' ').chain([""]) {
            assert_eq!(verdict("localhost:8787", Some(origin)), 403, "{origin}");
        }
    }
}
