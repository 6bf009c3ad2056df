//! The HTTP client that the proxy, the webhook sink, the LINE client and the command line share.
//!
//! A request is sent at most once, and an error says whether the request may have arrived: the pool
//! repeats only a request that it could not hand to a connection at all. A request that a connection
//! accepted and then lost is an error. To make that rare, idle connections are closed before servers
//! close theirs. Redirects and proxies from the environment are not followed.
//!
//! ```no_run
//! # async fn example() -> Result<(), hapax_http_client::HttpError> {
//! use std::time::Duration;
//! use hapax_http_client::{HttpClient, get};
//!
//! let client = HttpClient::new();
//! let uri = "https://api.open-meteo.com/v1/forecast?latitude=25&longitude=121".parse().unwrap();
//! let response = client.call(get(uri), Duration::from_secs(3)).await?;
//! if response.status.is_success() {
//!     let weather: serde_json::Value = response.json()?;
//! }
//! # Ok(())
//! # }
//! ```

mod config;
mod connect;
mod error;
mod trust;
mod watch;

use std::fmt;
use std::io;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::{Body, Incoming};
use hyper::header::{ACCEPT, CONTENT_TYPE, HeaderMap, HeaderValue};
use hyper::{Method, Request, Response, StatusCode, Uri};
use hyper_util::client::legacy::Client;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::time::Instant;

pub use config::HttpClientConfig;
use connect::{Connector, Resolver};
pub use error::{HttpError, RequestError};
pub use trust::{TrustStore, TrustStoreError};
pub use watch::ConnectionWatch;

/// The boxed error of a request body.
type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// A pooled HTTP client for requests with a body of type `B`. Clones share their connections.
pub struct HttpClient<B = Full<Bytes>> {
    client: Client<Connector, B>,
    resolver: Resolver,
    connect_timeout: Duration,
    max_response: usize,
}

/// A response whose body was read completely.
#[derive(Clone)]
pub struct FullResponse {
    /// The status.
    pub status: StatusCode,
    /// The headers.
    pub headers: HeaderMap,
    /// The body, no longer than [`HttpClientConfig::max_response`].
    pub body: Bytes,
}

impl HttpClient {
    /// A client with the default configuration.
    #[allow(clippy::new_without_default)] // It reads the system's root certificates.
    pub fn new() -> Self {
        HttpClientConfig::default().build()
    }

    /// Sends a request and reads its response; `timeout` covers both.
    ///
    /// # Errors
    /// Only [`HttpError::NotSent`] and [`HttpError::AddressRefused`] mean that nothing arrived. A
    /// `timeout` that passes while the connection is still being made is the former.
    pub async fn call(
        &self,
        mut request: Request<Full<Bytes>>,
        timeout: Duration,
    ) -> Result<FullResponse, HttpError> {
        let deadline = Instant::now() + timeout.min(LONGEST_TIMEOUT);
        let connection = ConnectionWatch::new(&mut request);
        let response = tokio::time::timeout_at(deadline, self.request(request)).await;
        let response = response.map_err(|_| connection.timeout_error())??;
        let (head, body) = response.into_parts();
        let body = Limited::new(body, self.max_response).collect();
        match tokio::time::timeout_at(deadline, body).await {
            Ok(Ok(body)) => Ok(FullResponse {
                status: head.status,
                headers: head.headers,
                body: body.to_bytes(),
            }),
            Ok(Err(_)) | Err(_) => Err(HttpError::Unreadable(head.status)),
        }
    }
}

impl<B> HttpClient<B>
where
    B: Body + Send + Unpin + 'static,
    B::Data: Send,
    B::Error: Into<BoxError>,
{
    /// Sends a request and returns the response with its body still arriving. Only connecting has a
    /// time limit here.
    ///
    /// # Errors
    /// [`RequestError::is_connect`] tells whether nothing was sent.
    pub async fn request(&self, request: Request<B>) -> Result<Response<Incoming>, RequestError> {
        self.client.request(request).await.map_err(RequestError::new)
    }

    /// Makes a TCP connection and closes it.
    ///
    /// # Errors
    /// The reason why there is no connection within the connect timeout.
    pub async fn check_connection(&self, host: &str, port: u16) -> io::Result<()> {
        let connecting = async {
            let addresses = self.resolver.addresses(host, port).await?;
            tokio::net::TcpStream::connect(&addresses[..]).await
        };
        let connected = tokio::time::timeout(self.connect_timeout, connecting).await;
        connected.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))?.map(drop)
    }
}

impl FullResponse {
    /// Parses the body as JSON.
    ///
    /// # Errors
    /// Where the body is not JSON of this type. The error does not show the body.
    pub fn json<T: DeserializeOwned>(&self) -> Result<T, HttpError> {
        serde_json::from_slice(&self.body).map_err(|_| HttpError::Unreadable(self.status))
    }
}

/// Hides headers and body, which may be confidential.
impl fmt::Debug for FullResponse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FullResponse({}, {} bytes)", self.status.as_u16(), self.body.len())
    }
}

// Derived, it would ask for `B: Clone`.
impl<B> Clone for HttpClient<B> {
    fn clone(&self) -> Self {
        Self { client: self.client.clone(), resolver: self.resolver.clone(), ..*self }
    }
}

impl<B> fmt::Debug for HttpClient<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HttpClient").finish_non_exhaustive()
    }
}

/// A longer timeout is no other: a sum that is too large for the clock would panic.
const LONGEST_TIMEOUT: Duration = Duration::from_secs(366 * 86_400);
const JSON: HeaderValue = HeaderValue::from_static("application/json");

/// A `GET` that accepts JSON.
pub fn get(uri: Uri) -> Request<Full<Bytes>> {
    let mut request = Request::new(Full::default());
    *request.uri_mut() = uri;
    request.headers_mut().insert(ACCEPT, JSON);
    request
}

/// A `POST` with a JSON body.
///
/// # Panics
/// Where `body` cannot be JSON because a map in it has keys that are not strings.
pub fn post(uri: Uri, body: &impl Serialize) -> Request<Full<Bytes>> {
    let body = serde_json::to_vec(body).expect("a body is JSON");
    let mut request = Request::new(Full::new(body.into()));
    *request.method_mut() = Method::POST;
    *request.uri_mut() = uri;
    request.headers_mut().insert(CONTENT_TYPE, JSON);
    request
}
