//! The client against real servers on loopback.

use std::future::pending;
use std::io::ErrorKind;
use std::time::Duration;

use hapax_http_client::{FullResponse, HttpClient, HttpClientConfig, HttpError, TrustStore, get};
use hapax_testkit::Certificates;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

/// Longer than any answer takes.
const PATIENT: Duration = Duration::from_secs(60);
const SHORT: Duration = Duration::from_millis(100);

/// The port of a server that reads a request, answers with these bytes, and leaves the connection open.
async fn server(answer: &'static str) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        let mut open = Vec::new();
        while let Ok((mut socket, _)) = listener.accept().await {
            let _ = socket.read(&mut [0; 4096]).await;
            let _ = socket.write_all(answer.as_bytes()).await;
            open.push(socket);
        }
    });
    port
}

fn config() -> HttpClientConfig {
    HttpClientConfig::new(TrustStore::empty())
}

async fn call(
    client: HttpClientConfig,
    url: String,
    timeout: Duration,
) -> Result<FullResponse, HttpError> {
    let client: HttpClient = client.build();
    client.call(get(url.parse().unwrap()), timeout).await
}

#[tokio::test]
async fn redirect_is_returned_and_not_followed() {
    let port = server("HTTP/1.1 302 Found\r\nlocation: /b\r\ncontent-length: 0\r\n\r\n").await;
    let response = call(config(), format!("http://127.0.0.1:{port}/a"), PATIENT).await.unwrap();
    assert_eq!(
        (response.status.as_u16(), &response.headers["location"]),
        (302, &"/b".parse().unwrap())
    );
}

#[tokio::test]
async fn timeout_before_the_response_leaves_the_outcome_unknown() {
    let url = format!("http://127.0.0.1:{}", server("").await);
    // On a stalled machine the timeout may pass before there is a connection.
    for _ in 0..50 {
        match call(config(), url.clone(), SHORT).await.unwrap_err() {
            HttpError::Unknown => return,
            other => assert_eq!(other, HttpError::NotSent(ErrorKind::TimedOut)),
        }
    }
    panic!("no call was connected");
}

#[tokio::test]
async fn cut_off_or_long_body_is_unreadable() {
    let port = server("HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nab").await;
    let (url, status) = (format!("http://127.0.0.1:{port}"), 200.try_into().unwrap());
    let outcome = call(config(), url.clone(), SHORT).await;
    assert_eq!(outcome.unwrap_err(), HttpError::Unreadable(status), "cut off");
    let outcome = call(config().max_response(1), url, PATIENT).await;
    assert_eq!(outcome.unwrap_err(), HttpError::Unreadable(status), "too long");
}

#[tokio::test]
async fn failed_connection_means_that_nothing_was_sent() {
    let refused = call(config(), "http://127.0.0.1:1".into(), PATIENT).await;
    assert_eq!(refused.unwrap_err(), HttpError::NotSent(ErrorKind::ConnectionRefused));
    // The timeout of connecting covers the TLS handshake, which never ends here.
    let slow = config().connect_timeout(SHORT);
    let slow = call(slow, format!("https://127.0.0.1:{}", server("").await), PATIENT).await;
    assert_eq!(slow.unwrap_err(), HttpError::NotSent(ErrorKind::TimedOut));
    let filtered = config().allowed_addresses(|_| false);
    let filtered = call(filtered, "http://localhost:1".into(), PATIENT).await;
    assert_eq!(filtered.unwrap_err(), HttpError::AddressRefused);
}

/// The TLS handshake never ends, so that no machine is too slow for the short timeout.
#[tokio::test]
async fn fault_27_timeout_while_connecting_means_not_sent() {
    let url = format!("https://127.0.0.1:{}", server("").await);
    let outcome = call(config().connect_timeout(PATIENT), url, SHORT).await;
    assert_eq!(outcome.unwrap_err(), HttpError::NotSent(ErrorKind::TimedOut));
}

#[tokio::test]
async fn only_a_trusted_certificate_is_accepted() {
    let folder = tempfile::tempdir().unwrap();
    let files = Certificates::make_in(folder.path());
    let port = tls_server(&files).await;
    let url = format!("https://127.0.0.1:{port}");
    let untrusted = call(config(), url.clone(), PATIENT).await;
    assert!(matches!(untrusted.unwrap_err(), HttpError::NotSent(_)), "no root at all");
    let trust = TrustStore::from_pem_file(&files.authority).unwrap();
    assert_eq!(call(HttpClientConfig::new(trust), url, PATIENT).await.unwrap().status, 204);
    assert!(TrustStore::from_pem_file(&files.key).is_err(), "a file without a certificate");
}

async fn tls_server(files: &Certificates) -> u16 {
    use rustls::pki_types::pem::PemObject;
    use rustls::pki_types::{CertificateDer, PrivateKeyDer};
    let chain = vec![CertificateDer::from_pem_file(&files.certificate).unwrap()];
    let key = PrivateKeyDer::from_pem_file(&files.key).unwrap();
    let provider = rustls::crypto::ring::default_provider();
    let config = rustls::ServerConfig::builder_with_provider(provider.into())
        .with_safe_default_protocol_versions()
        .and_then(|builder| builder.with_no_client_auth().with_single_cert(chain, key))
        .unwrap();
    let acceptor = tokio_rustls::TlsAcceptor::from(std::sync::Arc::new(config));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((socket, _)) = listener.accept().await {
            let Ok(mut socket) = acceptor.accept(socket).await else { continue };
            let _ = socket.read(&mut [0; 4096]).await;
            let _ = socket.write_all(b"HTTP/1.1 204 No Content\r\n\r\n").await;
            tokio::spawn(async move { drop((socket, pending::<()>().await)) });
        }
    });
    port
}
