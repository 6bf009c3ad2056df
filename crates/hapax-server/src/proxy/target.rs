//! Where an upstream is.

use std::fmt;

use hyper::Uri;
use hyper::http::uri::{Authority, PathAndQuery, Scheme};

use crate::settings::Value;

/// The configured upstream. Nothing in a request ever chooses another one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Target {
    scheme: Scheme,
    pub(crate) authority: Authority,
    /// What is put in front of every path; empty, or without a slash at its end.
    base: String,
}

impl Target {
    pub(crate) fn is_tls(&self) -> bool {
        self.scheme == Scheme::HTTPS
    }

    /// The upstream's address of what was asked for; `None` where the request names no path.
    pub(crate) fn of(&self, asked: &Uri) -> Option<Uri> {
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

impl Value for Target {
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

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}{}", self.scheme, self.authority, self.base)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sent_to(upstream: &str, asked: &str) -> String {
        let asked: Uri = asked.parse().unwrap();
        Target::parse(upstream).unwrap().of(&asked).unwrap().to_string()
    }

    #[test]
    fn an_absolute_form_target_never_chooses_the_upstream() {
        let sent = sent_to("http://127.0.0.1:3000", "http://evil.example/orders?a=1");
        assert_eq!(sent, "http://127.0.0.1:3000/orders?a=1");
    }

    #[test]
    fn paths_go_on_as_they_came_behind_the_base() {
        assert_eq!(sent_to("http://up", "/a%2Fb/../c?x=%20"), "http://up/a%2Fb/../c?x=%20");
        assert_eq!(sent_to("http://up/base/", "/"), "http://up/base/");
        assert_eq!(sent_to("https://up:8443/base", "/a?b"), "https://up:8443/base/a?b");
        assert!(Target::parse("http://up").unwrap().of(&Uri::from_static("*")).is_none());
    }

    #[test]
    fn what_is_no_upstream_is_refused() {
        for wrong in ["", "127.0.0.1:3000", "/x", "ftp://up", "http://u:p@up", "http://up/?a=1"] {
            assert!(Target::parse(wrong).is_err(), "{wrong}");
        }
    }
}
