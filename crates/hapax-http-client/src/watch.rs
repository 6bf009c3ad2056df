//! Whether a request was handed to a connection.

use std::io;

use hyper::Request;
use hyper_util::client::legacy::connect::{CaptureConnection, capture_connection};

use crate::HttpError;

/// Tells whether a request was handed to a connection, for a caller that stops waiting for the
/// response: before that, certainly nothing was sent.
#[derive(Debug)]
pub struct ConnectionWatch(CaptureConnection);

impl ConnectionWatch {
    /// Watches a request that is about to be sent.
    pub fn new<B>(request: &mut Request<B>) -> Self {
        Self(capture_connection(request))
    }

    /// Whether the request, or a part of it, may have been sent.
    ///
    /// The pool notes the connection before it gives the request to it, and never forgets it. So a
    /// request that a closed connection gave back unsent, and that waits for another one, counts as
    /// sent: that is rare, and errs on the safe side.
    pub fn may_have_sent(&self) -> bool {
        self.0.connection_metadata().is_some()
    }

    pub(crate) fn timeout_error(&self) -> HttpError {
        if self.may_have_sent() {
            HttpError::Unknown
        } else {
            HttpError::NotSent(io::ErrorKind::TimedOut)
        }
    }
}
