use std::error::Error;
use std::io;

use hyper::StatusCode;
use hyper_util::client::legacy;

use crate::connect::AddressRefused;

/// Why a request got no response. Its sources tell the cause.
#[derive(Debug, thiserror::Error)]
#[error("{}", if .0.is_connect() { "no connection" } else { "the connection was cut" })]
pub struct RequestError(#[source] legacy::Error);

impl RequestError {
    pub(crate) fn new(error: legacy::Error) -> Self {
        Self(error)
    }

    /// Whether there was no connection, so that certainly nothing was sent.
    pub fn is_connect(&self) -> bool {
        self.0.is_connect()
    }

    /// The first I/O error among the causes.
    pub fn io_error(&self) -> Option<&io::Error> {
        let first: &(dyn Error + 'static) = &self.0;
        let mut causes = std::iter::successors(Some(first), |&error| error.source());
        causes.find_map(|error| error.downcast_ref())
    }
}

/// Why a call has no usable response. Shows neither the address nor any content.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HttpError {
    /// Nothing was sent: there was no connection.
    #[error("no connection: {0}")]
    NotSent(io::ErrorKind),
    /// Nothing was sent: [`allowed_addresses`](crate::HttpClientConfig::allowed_addresses) accepts no
    /// address of the name.
    #[error("no connection: the name leads to no allowed address")]
    AddressRefused,
    /// The request may have arrived: the connection was cut, or the timeout passed.
    #[error("no answer")]
    Unknown,
    /// The request arrived and this status was the answer, but the body was cut off, is too long, or
    /// is not JSON of the expected type.
    #[error("the answer {0} cannot be read")]
    Unreadable(StatusCode),
}

impl From<RequestError> for HttpError {
    fn from(error: RequestError) -> Self {
        if error.is_connect() {
            error.io_error().map_or(Self::NotSent(io::ErrorKind::Other), Into::into)
        } else {
            Self::Unknown
        }
    }
}

/// For errors of [`check_connection`](crate::HttpClient::check_connection).
impl From<&io::Error> for HttpError {
    fn from(error: &io::Error) -> Self {
        match error.get_ref() {
            Some(inner) if inner.is::<AddressRefused>() => Self::AddressRefused,
            _ => Self::NotSent(error.kind()),
        }
    }
}
