//! Rewrites headers: removes those of one connection, and writes `Forwarded` and `X-Forwarded-*`.

use hapax_http::{CallerScope, IdempotencyConfig};
use hyper::HeaderMap;
use hyper::header::{
    CONNECTION, CONTENT_LENGTH, COOKIE, EXPECT, FORWARDED, HeaderName, HeaderValue, TE, UPGRADE,
};

use crate::daemon::Peer;

const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const X_FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
const X_FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");

/// Headers of one connection (RFC 9110, 7.6.1), besides those that `Connection` names. `Trailer` is
/// not one of them, because trailers are passed on.
const HOP_BY_HOP: [&str; 8] = [
    "connection",
    "http2-settings",
    "keep-alive",
    "proxy-authenticate",
    "proxy-authorization",
    "proxy-connection",
    "transfer-encoding",
    "upgrade",
];

/// Headers about the origin of a request, which the proxy writes itself.
const ORIGIN: [&str; 8] = [
    "forwarded",
    "x-forwarded-for",
    "x-forwarded-host",
    "x-forwarded-port",
    "x-forwarded-prefix",
    "x-forwarded-proto",
    "x-forwarded-server",
    "x-real-ip",
];

/// Headers that the layer identifies the caller, the request and the attempt by; the upstream must see
/// the same.
const END_TO_END: [&str; 10] = [
    "authorization",
    "content-type",
    "cookie",
    "hapax-attempt",
    "hapax-fence",
    "host",
    "idempotency-key",
    "x-http-method",
    "x-http-method-override",
    "x-method-override",
];

/// The headers that tell a route's upstream whose request it is.
#[derive(Clone, Debug, Default)]
pub(crate) struct IdentityHeaders(Vec<HeaderName>);

impl IdentityHeaders {
    pub(crate) fn of(policy: &IdempotencyConfig) -> Self {
        let scope = match policy.scope() {
            CallerScope::Header(name) => Some(name.clone()),
            _ => None,
        };
        Self(policy.credential_headers().iter().cloned().chain(scope).collect())
    }

    fn contains(&self, name: &HeaderName) -> bool {
        END_TO_END.contains(&name.as_str()) || self.0.contains(name)
    }

    fn names(&self) -> impl Iterator<Item = &str> {
        END_TO_END.into_iter().chain(self.0.iter().map(HeaderName::as_str))
    }
}

/// Removes the headers of one connection, except those of `kept` that `Connection` names.
pub(crate) fn strip_connection(headers: &mut HeaderMap, kept: &IdentityHeaders) {
    let named: Vec<HeaderName> = headers
        .get_all(CONNECTION)
        .iter()
        .filter_map(|line| line.to_str().ok())
        .flat_map(|line| line.split(','))
        .filter_map(|name| HeaderName::try_from(name.trim()).ok())
        .collect();
    for name in named {
        if !kept.contains(&name) {
            headers.remove(name);
        }
    }
    remove_each(headers, &HOP_BY_HOP);
}

/// Removes headers by one pass over those that are there: they are few, and a lookup of each name costs more.
fn remove_each(headers: &mut HeaderMap, names: &[&str]) {
    let is_named = |name: &&HeaderName| names.contains(&name.as_str());
    let found: Vec<HeaderName> = headers.keys().filter(is_named).cloned().collect();
    for name in found {
        headers.remove(name);
    }
}

/// Removes the headers of one connection. `TE: trailers`, which gRPC needs, stays in HTTP/2.
pub(crate) fn strip_request(headers: &mut HeaderMap, http2: bool, kept: &IdentityHeaders) {
    let trailers =
        headers.get_all(TE).iter().filter_map(|line| line.to_str().ok()).any(|line| {
            line.split(',').any(|coding| coding.trim().eq_ignore_ascii_case("trailers"))
        });
    strip_connection(headers, kept);
    headers.remove(TE);
    if trailers && http2 {
        headers.insert(TE, HeaderValue::from_static("trailers"));
    }
    // hyper has already answered it.
    headers.remove(EXPECT);
}

/// Replaces `Content-Length` by the length of the body that is sent, or removes it.
pub(crate) fn set_length(headers: &mut HeaderMap, exact: Option<u64>) {
    let had_length = headers.remove(CONTENT_LENGTH).is_some();
    if let Some(length) = exact.filter(|length| *length > 0 || had_length) {
        headers.insert(CONTENT_LENGTH, length.into());
    }
}

/// Joins the cookies of an HTTP/2 request, which may come in several headers, to the one header that
/// HTTP/1.1 allows (RFC 9113, 8.2.3).
pub(crate) fn join_cookies(headers: &mut HeaderMap) {
    let lines: Vec<&[u8]> = headers.get_all(COOKIE).iter().map(HeaderValue::as_bytes).collect();
    if lines.len() > 1
        && let Ok(joined) = HeaderValue::from_bytes(&lines.join(&b"; "[..]))
    {
        headers.insert(COOKIE, joined);
    }
}

/// Removes trailers that the upstream could take for headers which decide whose request it is, where
/// it came from or where it ends.
pub(crate) fn strip_trailers(trailers: &mut HeaderMap, identity: &IdentityHeaders) {
    const FRAMING: [&str; 3] = ["content-length", "te", "trailer"];
    let is_forged = |name: &&HeaderName| {
        let mut known = identity.names().chain(HOP_BY_HOP).chain(ORIGIN).chain(FRAMING);
        known.any(|known| is_same_in_cgi(known, name.as_str()))
    };
    let forged: Vec<HeaderName> = trailers.keys().filter(is_forged).cloned().collect();
    for name in forged {
        trailers.remove(name);
    }
}

/// Writes where the request came from. The client's own headers about it stay only if it is trusted. `host` is a checked
/// authority.
pub(crate) fn set_origin(
    headers: &mut HeaderMap,
    peer: Peer,
    host: Option<&HeaderValue>,
    trusted: bool,
) {
    if !trusted {
        remove_each(headers, &ORIGIN);
    }
    let (proto, ip) = (if peer.tls { "https" } else { "http" }, peer.ip.to_string());
    append_element(headers, FORWARDED, forwarded_element(&ip, host, proto));
    append_element(headers, X_FORWARDED_FOR, ip);
    // The first hop saw the address that the client used.
    if !headers.contains_key(X_FORWARDED_PROTO) {
        headers.insert(X_FORWARDED_PROTO, HeaderValue::from_static(proto));
    }
    if let Some(host) = host
        && !headers.contains_key(X_FORWARDED_HOST)
    {
        headers.insert(X_FORWARDED_HOST, host.clone());
    }
}

/// Removes `X_Forwarded_For`, `X_Api_Key` and the like, which CGI-like services read as
/// `X-Forwarded-For` and `X-Api-Key`.
pub(crate) fn remove_other_spellings(headers: &mut HeaderMap, identity: &IdentityHeaders) {
    let is_other_spelling = |name: &&HeaderName| {
        let mut known = identity.names().chain(ORIGIN);
        !identity.contains(name)
            && !ORIGIN.contains(&name.as_str())
            && known.any(|known| is_same_in_cgi(known, name.as_str()))
    };
    let others: Vec<HeaderName> = headers.keys().filter(is_other_spelling).cloned().collect();
    for name in others {
        headers.remove(name);
    }
}

/// Whether two header names become one variable in CGI, which has no dash.
fn is_same_in_cgi(one: &str, other: &str) -> bool {
    let dashed = |byte: u8| if byte == b'_' { b'-' } else { byte };
    one.len() == other.len() && one.bytes().map(dashed).eq(other.bytes().map(dashed))
}

/// An element of `Forwarded` (RFC 7239), in which an IPv6 address is quoted.
fn forwarded_element(ip: &str, host: Option<&HeaderValue>, proto: &str) -> String {
    let (open, close) = if ip.contains(':') { ("\"[", "]\"") } else { ("", "") };
    match host.and_then(|host| host.to_str().ok()) {
        Some(host) => format!("for={open}{ip}{close};host=\"{host}\";proto={proto}"),
        None => format!("for={open}{ip}{close};proto={proto}"),
    }
}

/// Adds an element to a list header.
fn append_element(headers: &mut HeaderMap, name: HeaderName, element: String) {
    let lines = headers.get_all(&name).iter().map(HeaderValue::as_bytes);
    let mut list: Vec<&[u8]> = lines.filter(|line| !line.is_empty()).collect();
    let value = if list.is_empty() {
        HeaderValue::try_from(element)
    } else {
        list.push(element.as_bytes());
        HeaderValue::from_bytes(&list.join(&b", "[..]))
    };
    if let Ok(value) = value {
        headers.insert(name, value);
    }
}

/// The protocol that a request may switch to. Not HTTP/2: its requests would bypass the layer.
pub(crate) fn requested_upgrade(headers: &HeaderMap) -> Option<HeaderValue> {
    let asks =
        headers.get_all(CONNECTION).iter().filter_map(|line| line.to_str().ok()).any(|line| {
            line.split(',').any(|option| option.trim().eq_ignore_ascii_case("upgrade"))
        });
    let mut protocols = headers.get_all(UPGRADE).iter();
    let (Some(protocol), None, true) = (protocols.next(), protocols.next(), asks) else {
        return None;
    };
    let name = protocol.to_str().ok()?;
    let http = |name: &str| {
        let name = name.trim().to_ascii_lowercase();
        name.starts_with("h2") || name.starts_with("http")
    };
    (!name.is_empty() && !name.split(',').any(http)).then(|| protocol.clone())
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::*;

    fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            headers.append(*name, value.parse().unwrap());
        }
        headers
    }

    fn text<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
        headers.get(name).map(|value| value.to_str().unwrap())
    }

    const PEER: Peer = Peer { ip: IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 7)), tls: false };

    #[test]
    fn strip_request_removes_connection_headers() {
        let mut headers = headers(&[
            ("connection", "keep-alive, X-Secret-Hop"),
            ("connection", "Idempotency-Key, Hapax-Attempt"),
            ("x-secret-hop", "1"),
            ("keep-alive", "timeout=5"),
            ("te", "trailers"),
            ("transfer-encoding", "chunked"),
            ("upgrade", "h2c"),
            ("expect", "100-continue"),
            ("idempotency-key", "k"),
            ("hapax-attempt", "1"),
            ("traceparent", "00-1-2-01"),
        ]);
        strip_request(&mut headers, false, &IdentityHeaders::default());
        let mut left: Vec<_> = headers.keys().map(HeaderName::as_str).collect();
        left.sort_unstable();
        assert_eq!(left, ["hapax-attempt", "idempotency-key", "traceparent"]);
    }

    #[test]
    fn strip_request_keeps_te_trailers_for_http2() {
        let mut headers = headers(&[("te", "trailers")]);
        strip_request(&mut headers, true, &IdentityHeaders::default());
        assert_eq!(text(&headers, "te"), Some("trailers"));
    }

    #[test]
    fn set_origin_ignores_headers_of_untrusted_clients() {
        let sent = [
            ("x-forwarded-for", "1.2.3.4"),
            ("x-forwarded-host", "evil.example"),
            ("x-forwarded-proto", "https"),
            ("forwarded", "for=1.2.3.4"),
            ("x-real-ip", "1.2.3.4"),
        ];
        let host = HeaderValue::from_static("shop.example:8788");
        let [mut untrusted, mut trusted] = [headers(&sent), headers(&sent)];
        set_origin(&mut untrusted, PEER, Some(&host), false);
        set_origin(&mut trusted, PEER, Some(&host), true);
        let element = "for=10.0.0.7;host=\"shop.example:8788\";proto=http";
        let extended = format!("for=1.2.3.4, {element}");
        for (name, replaced, extended) in [
            ("x-forwarded-for", Some("10.0.0.7"), Some("1.2.3.4, 10.0.0.7")),
            ("x-forwarded-host", Some("shop.example:8788"), Some("evil.example")),
            ("x-forwarded-proto", Some("http"), Some("https")),
            ("forwarded", Some(element), Some(extended.as_str())),
            ("x-real-ip", None, Some("1.2.3.4")),
        ] {
            assert_eq!((text(&untrusted, name), text(&trusted, name)), (replaced, extended));
        }
    }

    #[test]
    fn remove_other_spellings_keeps_the_configured_one() {
        let scope = CallerScope::Header("x_user".parse().unwrap());
        let identity = IdentityHeaders::of(&IdempotencyConfig::new().with_scope(scope));
        let mut headers = headers(&[
            ("x_forwarded_for", "1.2.3.4"),
            ("hapax_attempt", "1"),
            ("x_api_key", "a"),
            ("x-api-key", "a"),
            ("x_user", "a"),
            ("x-user", "b"),
            ("x-forwarded-for", "1.2.3.4"),
            ("x_other", "1"),
        ]);
        remove_other_spellings(&mut headers, &identity);
        let mut left: Vec<_> = headers.keys().map(HeaderName::as_str).collect();
        left.sort_unstable();
        assert_eq!(left, ["x-api-key", "x-forwarded-for", "x_other", "x_user"]);
    }

    #[test]
    fn strip_trailers_removes_what_decides_about_a_request() {
        let identity = IdentityHeaders::of(&IdempotencyConfig::new());
        let names = ["hapax-fence", "idempotency_key", "x-api-key", "host", "content-length"];
        let mut trailers = headers(&names.map(|name| (name, "1")));
        trailers.insert("checksum", 1.into());
        strip_trailers(&mut trailers, &identity);
        assert_eq!(trailers.keys().map(HeaderName::as_str).collect::<Vec<_>>(), ["checksum"]);
    }

    #[test]
    fn set_origin_begins_a_list_where_there_is_none() {
        let mut headers = headers(&[("x-forwarded-for", ""), ("forwarded", "")]);
        set_origin(&mut headers, PEER, None, true);
        assert_eq!(text(&headers, "x-forwarded-for"), Some("10.0.0.7"));
        assert_eq!(text(&headers, "forwarded"), Some("for=10.0.0.7;proto=http"));
    }

    #[test]
    fn set_origin_quotes_ipv6_addresses() {
        let peer = Peer { ip: "::1".parse().unwrap(), tls: true };
        let mut headers = HeaderMap::new();
        set_origin(&mut headers, peer, None, false);
        assert_eq!(text(&headers, "forwarded"), Some("for=\"[::1]\";proto=https"));
        assert_eq!(text(&headers, "x-forwarded-for"), Some("::1"));
    }

    #[test]
    fn requested_upgrade_allows_websockets_and_not_http2() {
        let asks = |protocol| {
            requested_upgrade(&headers(&[("connection", "Upgrade"), ("upgrade", protocol)]))
        };
        assert!(asks("websocket").is_some());
        assert!(asks("h2c").is_none());
        assert!(asks("H2C, websocket").is_none());
        assert!(asks("HTTP/2.0").is_none());
        assert!(requested_upgrade(&headers(&[("upgrade", "websocket")])).is_none());
    }

    #[test]
    fn set_length_writes_one_length_or_none() {
        let mut doubled = headers(&[("content-length", "5"), ("content-length", "5")]);
        set_length(&mut doubled, Some(5));
        assert_eq!(doubled.get_all("content-length").iter().count(), 1);
        let mut unknown = headers(&[("content-length", "5")]);
        set_length(&mut unknown, None);
        assert!(unknown.is_empty());
        let mut empty = HeaderMap::new();
        set_length(&mut empty, Some(0));
        assert!(empty.is_empty());
    }
}
