//! The address of an upstream.

use std::fmt;

use hyper::Uri;
use hyper::http::uri::{Authority, PathAndQuery, Scheme};

use crate::settings::values::SettingValue;

/// The configured upstream. Nothing in a request ever chooses another one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct UpstreamUrl {
    scheme: Scheme,
    pub(crate) authority: Authority,
    /// The prefix of every path; empty, or without a slash at its end.
    base: String,
}

impl UpstreamUrl {
    pub(crate) fn is_tls(&self) -> bool {
        self.scheme == Scheme::HTTPS
    }

    /// The upstream's URL for a request's target; `None` where the request names no path.
    pub(crate) fn resolve(&self, asked: &Uri) -> Option<Uri> {
        let path = asked.path_and_query().map_or("/", PathAndQuery::as_str);
        if !path.starts_with('/') {
            return None;
        }
        let path = match self.base.as_str() {
            "" => asked.path_and_query().cloned().unwrap_or(PathAndQuery::from_static("/")),
            base => format!("{base}{path}").parse().ok()?,
        };
        let address = Uri::builder().scheme(self.scheme.clone()).authority(self.authority.clone());
        address.path_and_query(path).build().ok()
    }
}

impl SettingValue for UpstreamUrl {
    fn parse(text: &str) -> Result<Self, String> {
        let expected =
            "a URL such as http://127.0.0.1:3000 or https://shop.example/base is expected";
        let uri: Uri = text.parse().map_err(|_| expected.to_owned())?;
        let parts = uri.into_parts();
        let (Some(scheme), Some(authority)) = (parts.scheme, parts.authority) else {
            return Err(expected.into());
        };
        if scheme != Scheme::HTTP && scheme != Scheme::HTTPS {
            return Err(expected.into());
        }
        if authority.as_str().contains('@') {
            return Err("an upstream's URL has no user or password".into());
        }
        let path = parts.path_and_query.unwrap_or(PathAndQuery::from_static("/"));
        if path.query().is_some() {
            return Err("an upstream's URL has no query".into());
        }
        let base = path.path().trim_end_matches('/').to_owned();
        Ok(Self { scheme, authority, base })
    }
}

impl fmt::Display for UpstreamUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}{}", self.scheme, self.authority, self.base)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sent_to(upstream: &str, asked: &str) -> String {
        let asked: Uri = asked.parse().unwrap();
        UpstreamUrl::parse(upstream).unwrap().resolve(&asked).unwrap().to_string()
    }

    #[test]
    fn upstream_url_ignores_host_of_absolute_form_target() {
        let sent = sent_to("http://127.0.0.1:3000", "http://evil.example/orders?a=1");
        assert_eq!(sent, "http://127.0.0.1:3000/orders?a=1");
    }

    #[test]
    fn upstream_url_keeps_paths_verbatim_behind_base() {
        assert_eq!(sent_to("http://up", "/a%2Fb/../c?x=%20"), "http://up/a%2Fb/../c?x=%20");
        assert_eq!(sent_to("http://up/base/", "/"), "http://up/base/");
        assert_eq!(sent_to("https://up:8443/base", "/a?b"), "https://up:8443/base/a?b");
        assert!(UpstreamUrl::parse("http://up").unwrap().resolve(&Uri::from_static("*")).is_none());
    }

    #[test]
    fn upstream_url_refuses_what_is_no_upstream() {
        for wrong in ["", "127.0.0.1:3000", "/x", "ftp://up", "http://u:p@up", "http://up/?a=1"] {
            assert!(UpstreamUrl::parse(wrong).is_err(), "{wrong}");
        }
    }
}
