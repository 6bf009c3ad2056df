//! The small HTTP client that everything here uses, and that a bot may use for its own calls.
//!
//! A request is sent at most once, and what failed says whether it may have arrived: the pool repeats
//! only what it could not hand to a connection at all, and what a connection has taken, and then
//! lost, comes back as [`HttpError::Unknown`]. So that this is rare, an idle connection is kept for
//! less time than servers keep theirs. Redirects are not followed.
//!
//! ```no_run
//! # async fn example() -> Result<(), hapax_line::http::HttpError> {
//! use std::time::Duration;
//! use hapax_line::http::{self, Http};
//!
//! let http = Http::new();
//! let uri = "https://api.open-meteo.com/v1/forecast?latitude=25&longitude=121".parse().unwrap();
//! let reply = http.call(http::get(uri), Duration::from_secs(3)).await?;
//! if reply.status.is_success() {
//!     let weather: serde_json::Value = reply.json()?;
//! }
//! # Ok(())
//! # }
//! ```

use std::fmt;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, LazyLock};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::header::{ACCEPT, CONTENT_TYPE, HeaderMap, HeaderValue};
use hyper::{Method, Request, StatusCode, Uri};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use rustls::crypto::ring;
use rustls::{ClientConfig, RootCertStore};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tower_service::Service;

/// How long a name, a connection and a handshake may take together.
const CONNECT: Duration = Duration::from_secs(3);
/// How long a connection waits for the next request: Node and uvicorn close theirs after 5 s, gunicorn
/// after 2 s.
const IDLE: Duration = Duration::from_secs(1);
/// So much of an answer is read.
const MAX_BODY: usize = 1 << 20;

/// Calls anything by HTTP/1.1, over TLS with the system's roots where the address says `https`.
/// A clone shares its connections.
#[derive(Clone)]
pub struct Http(Client<Prompt<HttpsConnector<HttpConnector>>, Full<Bytes>>);

/// An answer, read to its end.
#[derive(Clone)]
pub struct Reply {
    /// Its status.
    pub status: StatusCode,
    /// Its headers.
    pub headers: HeaderMap,
    /// Its body, of at most 1 MiB.
    pub body: Bytes,
}

/// Why there is no answer that can be used. Shows neither the address nor what was said.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HttpError {
    /// Certainly nothing arrived: there was no connection to send it over.
    #[error("no connection: {0}")]
    NotSent(io::ErrorKind),
    /// It may have arrived: the connection was cut, or time is up.
    #[error("no answer")]
    Unknown,
    /// It arrived and this was answered, but the body was cut off, is too long, or is no JSON of the
    /// expected form.
    #[error("the answer {0} cannot be read")]
    Unreadable(StatusCode),
}

impl Http {
    /// A client without connections.
    #[allow(clippy::new_without_default)] // It reads the system's certificates.
    pub fn new() -> Self {
        let mut http = HttpConnector::new();
        http.enforce_http(false);
        http.set_nodelay(true);
        let connector = HttpsConnectorBuilder::new()
            .with_tls_config(TLS.clone())
            .https_or_http()
            .enable_http1()
            .wrap_connector(http);
        let client = Client::builder(TokioExecutor::new())
            .timer(TokioTimer::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(IDLE)
            .build(Prompt(connector));
        Self(client)
    }

    /// Sends a request and reads its answer, all within `limit`.
    ///
    /// # Errors
    /// Only [`HttpError::NotSent`] means that nothing arrived. A connection may take 3 s; where `limit`
    /// is shorter and runs out meanwhile, that is [`HttpError::Unknown`] too.
    pub async fn call(
        &self,
        request: Request<Full<Bytes>>,
        limit: Duration,
    ) -> Result<Reply, HttpError> {
        let until = tokio::time::Instant::now() + limit;
        let response = match tokio::time::timeout_at(until, self.0.request(request)).await {
            Ok(Ok(response)) => response,
            Ok(Err(error)) if error.is_connect() => return Err(HttpError::NotSent(kind(&error))),
            Ok(Err(_)) | Err(_) => return Err(HttpError::Unknown),
        };
        let (head, body) = response.into_parts();
        let body = Limited::new(body, MAX_BODY).collect();
        match tokio::time::timeout_at(until, body).await {
            Ok(Ok(body)) => {
                Ok(Reply { status: head.status, headers: head.headers, body: body.to_bytes() })
            }
            Ok(Err(_)) | Err(_) => Err(HttpError::Unreadable(head.status)),
        }
    }
}

impl Reply {
    /// The body as JSON.
    ///
    /// # Errors
    /// Where it is none, or of another form. What it is instead is not told.
    pub fn json<T: DeserializeOwned>(&self) -> Result<T, HttpError> {
        serde_json::from_slice(&self.body).map_err(|_| HttpError::Unreadable(self.status))
    }
}

/// A `GET` that asks for JSON.
pub fn get(uri: Uri) -> Request<Full<Bytes>> {
    let mut request = Request::new(Full::default());
    *request.uri_mut() = uri;
    request.headers_mut().insert(ACCEPT, JSON);
    request
}

/// A `POST` with a body of JSON.
///
/// # Panics
/// Where `body` cannot be JSON: it has maps whose keys are no strings.
pub fn post(uri: Uri, body: &impl Serialize) -> Request<Full<Bytes>> {
    let body = serde_json::to_vec(body).expect("a body is JSON");
    let mut request = Request::new(Full::new(body.into()));
    *request.method_mut() = Method::POST;
    *request.uri_mut() = uri;
    request.headers_mut().insert(CONTENT_TYPE, JSON);
    request
}

const JSON: HeaderValue = HeaderValue::from_static("application/json");

/// Read once: they are the same for all, and there are many.
static TLS: LazyLock<ClientConfig> = LazyLock::new(|| {
    let mut roots = RootCertStore::empty();
    let (added, _) =
        roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    if added == 0 {
        tracing::warn!(
            "this system has no root certificates, so that nothing can be reached at https://; \
             install ca-certificates"
        );
    }
    ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .expect("the provider has them")
        .with_root_certificates(roots)
        .with_no_client_auth()
});

/// Why there was no connection, of all causes the one that the system names.
fn kind(error: &(dyn std::error::Error + 'static)) -> io::ErrorKind {
    let mut causes = std::iter::successors(Some(error), |error| error.source());
    causes.find_map(|error| error.downcast_ref()).map_or(io::ErrorKind::Other, io::Error::kind)
}

/// Connects within a limit, the TLS handshake included. What fails here has sent no request.
#[derive(Clone)]
struct Prompt<C>(C);

type BoxError = Box<dyn std::error::Error + Send + Sync>;

impl<C> Service<Uri> for Prompt<C>
where
    C: Service<Uri>,
    C::Error: Into<BoxError>,
    C::Future: Send + 'static,
{
    type Response = C::Response;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<C::Response, BoxError>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.0.poll_ready(cx).map_err(Into::into)
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let connecting = tokio::time::timeout(CONNECT, self.0.call(uri));
        Box::pin(async move {
            match connecting.await {
                Ok(connected) => connected.map_err(Into::into),
                Err(_) => Err(io::Error::from(io::ErrorKind::TimedOut).into()),
            }
        })
    }
}

/// Shows nothing that was said.
impl fmt::Debug for Reply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Reply({}, {} bytes)", self.status.as_u16(), self.body.len())
    }
}
