//! WebSockets and other upgrades: from the 101 on, bytes go both ways untouched.

use hyper::body::Incoming;
use hyper::header::{CONNECTION, HeaderMap, HeaderValue, UPGRADE};
use hyper::http::request::Parts;
use hyper::upgrade::OnUpgrade;
use hyper::{Method, Response};
use hyper_util::rt::TokioIo;

use super::forward;
use crate::daemon::ConnectionActivity;

/// A client's wish to speak another protocol.
pub(crate) struct Upgrade {
    protocol: HeaderValue,
    client: OnUpgrade,
    pace: Option<ConnectionActivity>,
}

impl Upgrade {
    /// What a request asks for, if the proxy goes along.
    pub(crate) fn asked(parts: &mut Parts) -> Option<Self> {
        if parts.method != Method::GET {
            return None;
        }
        let protocol = forward::upgrade(&parts.headers)?;
        let client = parts.extensions.remove::<OnUpgrade>()?;
        Some(Self { protocol, client, pace: parts.extensions.get::<ConnectionActivity>().cloned() })
    }

    /// Says it to the next connection.
    pub(crate) fn say(&self, headers: &mut HeaderMap) {
        headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
        headers.insert(UPGRADE, self.protocol.clone());
    }

    /// Connects the two ends, until one of them closes or the proxy ends.
    pub(crate) fn open(self, response: &mut Response<Incoming>) {
        let Self { client, pace, .. } = self;
        let upstream = hyper::upgrade::on(response);
        tokio::spawn(async move {
            // A quiet tunnel is no idle connection.
            let _open = pace.map(|pace| pace.begin_request());
            let Ok((client, upstream)) = tokio::try_join!(client, upstream) else { return };
            let (mut client, mut upstream) = (TokioIo::new(client), TokioIo::new(upstream));
            let _ = tokio::io::copy_bidirectional(&mut client, &mut upstream).await;
        });
    }
}
