//! Headers on their way through: what belongs to one connection stays behind, and who was here
//! before is said anew.

use std::net::IpAddr;

use hyper::HeaderMap;
use hyper::header::{
    CONNECTION, CONTENT_LENGTH, EXPECT, FORWARDED, HeaderName, HeaderValue, TE, UPGRADE,
};
use hyper::http::uri::Authority;

use crate::daemon::Peer;

const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const X_FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
const X_FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");

/// What belongs to one connection (RFC 9110, 7.6.1), besides what `Connection` names. `Trailer`
/// goes with the trailers, which are passed on.
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

/// What the proxy alone says about where a request came from.
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

/// What reaches the upstream whatever a client lists in `Connection`: by these the layer has told whose
/// request it is and which attempt, and the upstream must not be told otherwise.
const END_TO_END: [&str; 7] = [
    "authorization",
    "content-type",
    "cookie",
    "hapax-attempt",
    "hapax-fence",
    "host",
    "idempotency-key",
];

/// What the layer alone says. It takes these away itself, save in their other spelling.
const LAYER: [&str; 2] = ["hapax-attempt", "hapax-fence"];

/// Takes away what belongs to one connection.
pub(crate) fn strip_connection(headers: &mut HeaderMap) {
    let named: Vec<HeaderName> = headers
        .get_all(CONNECTION)
        .iter()
        .filter_map(|line| line.to_str().ok())
        .flat_map(|line| line.split(','))
        .filter_map(|name| HeaderName::try_from(name.trim()).ok())
        .collect();
    for name in named {
        if !END_TO_END.contains(&name.as_str()) {
            headers.remove(name);
        }
    }
    for name in HOP_BY_HOP {
        headers.remove(name);
    }
}

/// Takes away what belongs to one connection of a request; `TE: trailers`, which gRPC needs, may
/// stay where the next connection speaks HTTP/2 too.
pub(crate) fn strip_request(headers: &mut HeaderMap, http2: bool) {
    let trailers =
        headers.get_all(TE).iter().filter_map(|line| line.to_str().ok()).any(|line| {
            line.split(',').any(|coding| coding.trim().eq_ignore_ascii_case("trailers"))
        });
    strip_connection(headers);
    headers.remove(TE);
    if trailers && http2 {
        headers.insert(TE, HeaderValue::from_static("trailers"));
    }
    // Answered here already: the body is read when it is wanted.
    headers.remove(EXPECT);
}

/// Says one length, or none: whatever was said before, it is that of the body that is sent.
pub(crate) fn set_length(headers: &mut HeaderMap, exact: Option<u64>) {
    let said = headers.remove(CONTENT_LENGTH).is_some();
    if let Some(length) = exact.filter(|length| *length > 0 || said) {
        headers.insert(CONTENT_LENGTH, length.into());
    }
}

/// Says where the request came from. What the client says about it counts only where it is trusted.
pub(crate) fn set_origin(
    headers: &mut HeaderMap,
    peer: Peer,
    host: Option<&Authority>,
    trusted: bool,
) {
    drop_other_spellings(headers);
    if !trusted {
        for name in ORIGIN {
            headers.remove(name);
        }
    }
    let proto = if peer.tls { "https" } else { "http" };
    append(headers, X_FORWARDED_FOR, &peer.ip.to_string());
    append(headers, FORWARDED, &forwarded(peer.ip, host, proto));
    // The first hop knows best which address was asked for.
    if !headers.contains_key(X_FORWARDED_PROTO) {
        headers.insert(X_FORWARDED_PROTO, HeaderValue::from_static(proto));
    }
    if let Some(host) = host
        && !headers.contains_key(X_FORWARDED_HOST)
        && let Ok(value) = HeaderValue::try_from(host.as_str())
    {
        headers.insert(X_FORWARDED_HOST, value);
    }
}

/// CGI-like services read `X_Forwarded_For` as if it were `X-Forwarded-For`.
fn drop_other_spellings(headers: &mut HeaderMap) {
    let other = |name: &&HeaderName| {
        name.as_str().contains('_') && {
            let name = name.as_str().replace('_', "-");
            ORIGIN.contains(&name.as_str())
                || LAYER.contains(&name.as_str())
                || name == "idempotency-key"
        }
    };
    let others: Vec<HeaderName> = headers.keys().filter(other).cloned().collect();
    for name in others {
        headers.remove(name);
    }
}

/// RFC 7239.
fn forwarded(ip: IpAddr, host: Option<&Authority>, proto: &str) -> String {
    let node = match ip {
        IpAddr::V4(ip) => ip.to_string(),
        IpAddr::V6(ip) => format!("\"[{ip}]\""),
    };
    match host {
        Some(host) => format!("for={node};host=\"{host}\";proto={proto}"),
        None => format!("for={node};proto={proto}"),
    }
}

/// Puts one more element at the end of a list.
fn append(headers: &mut HeaderMap, name: HeaderName, element: &str) {
    let before: Vec<&[u8]> = headers.get_all(&name).iter().map(HeaderValue::as_bytes).collect();
    let mut list = before.join(&b", "[..]);
    if !list.is_empty() {
        list.extend_from_slice(b", ");
    }
    list.extend_from_slice(element.as_bytes());
    if let Ok(value) = HeaderValue::from_bytes(&list) {
        headers.insert(name, value);
    }
}

/// The protocol that a request asks to change to, where the proxy goes along. Not HTTP/2: whoever
/// spoke that to the upstream directly would pass by everything that the proxy is for.
pub(crate) fn upgrade(headers: &HeaderMap) -> Option<HeaderValue> {
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
    fn what_belongs_to_one_connection_stays_behind() {
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
        strip_request(&mut headers, false);
        let mut left: Vec<_> = headers.keys().map(HeaderName::as_str).collect();
        left.sort_unstable();
        assert_eq!(left, ["hapax-attempt", "idempotency-key", "traceparent"]);
    }

    #[test]
    fn grpc_keeps_its_te() {
        let mut headers = headers(&[("te", "trailers")]);
        strip_request(&mut headers, true);
        assert_eq!(text(&headers, "te"), Some("trailers"));
    }

    #[test]
    fn a_stranger_cannot_say_where_a_request_came_from() {
        let said = [
            ("x-forwarded-for", "1.2.3.4"),
            ("x-forwarded-host", "evil.example"),
            ("x-forwarded-proto", "https"),
            ("forwarded", "for=1.2.3.4"),
            ("x_forwarded_for", "1.2.3.4"),
            ("x-real-ip", "1.2.3.4"),
        ];
        let host: Authority = "shop.example:8788".parse().unwrap();
        let mut untrusted = headers(&said);
        set_origin(&mut untrusted, PEER, Some(&host), false);
        assert_eq!(text(&untrusted, "x-forwarded-for"), Some("10.0.0.7"));
        assert_eq!(text(&untrusted, "x-forwarded-host"), Some("shop.example:8788"));
        assert_eq!(text(&untrusted, "x-forwarded-proto"), Some("http"));
        let element = "for=10.0.0.7;host=\"shop.example:8788\";proto=http";
        assert_eq!(text(&untrusted, "forwarded"), Some(element));
        assert_eq!(text(&untrusted, "x_forwarded_for"), None);
        assert_eq!(text(&untrusted, "x-real-ip"), None);

        let mut trusted = headers(&said);
        set_origin(&mut trusted, PEER, Some(&host), true);
        assert_eq!(text(&trusted, "x-forwarded-for"), Some("1.2.3.4, 10.0.0.7"));
        assert_eq!(text(&trusted, "x-forwarded-host"), Some("evil.example"));
        assert_eq!(text(&trusted, "x-forwarded-proto"), Some("https"));
        assert_eq!(text(&trusted, "forwarded"), Some(format!("for=1.2.3.4, {element}").as_str()));
    }

    #[test]
    fn an_ipv6_address_is_quoted() {
        let peer = Peer { ip: "::1".parse().unwrap(), tls: true };
        let mut headers = HeaderMap::new();
        set_origin(&mut headers, peer, None, false);
        assert_eq!(text(&headers, "forwarded"), Some("for=\"[::1]\";proto=https"));
        assert_eq!(text(&headers, "x-forwarded-for"), Some("::1"));
    }

    #[test]
    fn websockets_are_let_through_and_http2_is_not() {
        let asks =
            |protocol| upgrade(&headers(&[("connection", "Upgrade"), ("upgrade", protocol)]));
        assert!(asks("websocket").is_some());
        assert!(asks("h2c").is_none());
        assert!(asks("H2C, websocket").is_none());
        assert!(asks("HTTP/2.0").is_none());
        assert!(upgrade(&headers(&[("upgrade", "websocket")])).is_none());
    }

    #[test]
    fn one_length_is_said_or_none() {
        let mut doubled = headers(&[("content-length", "5"), ("content-length", "5")]);
        set_length(&mut doubled, Some(5));
        assert_eq!(doubled.get_all("content-length").iter().count(), 1);
        let mut unknown = headers(&[("content-length", "5")]);
        set_length(&mut unknown, None);
        assert!(unknown.is_empty());
        let mut silent = HeaderMap::new();
        set_length(&mut silent, Some(0));
        assert!(silent.is_empty());
    }
}
