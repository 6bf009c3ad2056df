//! WebSockets and other upgrades: after the 101, bytes are copied both ways unchanged.

use hyper::body::Incoming;
use hyper::header::{CONNECTION, HeaderMap, HeaderValue, UPGRADE};
use hyper::http::request::Parts;
use hyper::upgrade::OnUpgrade;
use hyper::{Method, Response};
use hyper_util::rt::TokioIo;

use super::forward;
use crate::daemon::ConnectionActivity;

pub(crate) struct Upgrade {
    protocol: HeaderValue,
    client: OnUpgrade,
    activity: Option<ConnectionActivity>,
}

impl Upgrade {
    /// The upgrade that a request asks for, where the proxy supports it.
    pub(crate) fn requested(parts: &mut Parts) -> Option<Self> {
        if parts.method != Method::GET {
            return None;
        }
        let protocol = forward::requested_upgrade(&parts.headers)?;
        let client = parts.extensions.remove::<OnUpgrade>()?;
        Some(Self {
            protocol,
            client,
            activity: parts.extensions.get::<ConnectionActivity>().cloned(),
        })
    }

    pub(crate) fn add_headers(&self, headers: &mut HeaderMap) {
        headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
        headers.insert(UPGRADE, self.protocol.clone());
    }

    /// Copies bytes both ways until one side closes or the proxy ends.
    pub(crate) fn connect(self, response: &mut Response<Incoming>) {
        let Self { client, activity, .. } = self;
        let upstream = hyper::upgrade::on(response);
        tokio::spawn(async move {
            // An idle tunnel must not be closed as an idle connection.
            let _in_flight = activity.map(|activity| activity.begin_request());
            let Ok((client, upstream)) = tokio::try_join!(client, upstream) else { return };
            let (mut client, mut upstream) = (TokioIo::new(client), TokioIo::new(upstream));
            let _ = tokio::io::copy_bidirectional(&mut client, &mut upstream).await;
        });
    }
}
