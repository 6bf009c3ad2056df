//! The calls of a console, as a browser sends them: with the cookie of a session.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use http_body_util::{BodyExt, Full};
use hyper::body::Bytes;
use hyper::header::{CONTENT_TYPE, COOKIE, SET_COOKIE};
use hyper::{Method, Request, Response, body::Incoming};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use tokio::task::JoinHandle;

/// Somebody who is signed in.
#[derive(Clone)]
pub(super) struct ConsoleClient {
    address: SocketAddr,
    http: Client<HttpConnector, Full<Bytes>>,
    cookie: String,
}

impl ConsoleClient {
    pub(super) async fn sign_in(address: SocketAddr, token: &str) -> anyhow::Result<Self> {
        let http = Client::builder(TokioExecutor::new()).build_http();
        let mut client = Self { address, http, cookie: String::new() };
        let body = serde_json::json!({ "token": token }).to_string();
        let answer = client.send(Method::POST, "/v1/session", body).await?;
        ensure!(answer.status() == 200, "signing in: {}", answer.status());
        let cookie = answer.headers().get(SET_COOKIE).context("no cookie")?.to_str()?;
        client.cookie = cookie.split(';').next().unwrap_or_default().to_owned();
        Ok(client)
    }

    async fn send(
        &self,
        method: Method,
        path: &str,
        body: String,
    ) -> anyhow::Result<Response<Incoming>> {
        let request = Request::builder()
            .method(method)
            .uri(format!("http://{}{path}", self.address))
            .header(CONTENT_TYPE, "application/json")
            .header(COOKIE, &self.cookie)
            .body(Full::from(body))?;
        Ok(self.http.request(request).await?)
    }

    /// Asks, and reads the whole answer; how long that took, and how many bytes it has.
    pub(super) async fn get(&self, path: &str) -> anyhow::Result<(Duration, usize)> {
        let begun = Instant::now();
        let answer = self.send(Method::GET, path, String::new()).await?;
        let status = answer.status();
        let body = answer.into_body().collect().await?.to_bytes();
        ensure!(status == 200, "{path}: {status} {}", String::from_utf8_lossy(&body));
        Ok((begun.elapsed(), body.len()))
    }

    /// Opens the event stream of a console, and reads it until it is aborted.
    pub(super) async fn follow(&self) -> anyhow::Result<JoinHandle<()>> {
        let answer = self.send(Method::GET, "/v1/operator/activity", String::new()).await?;
        ensure!(answer.status() == 200, "the stream: {}", answer.status());
        let mut body = answer.into_body();
        Ok(tokio::spawn(async move { while let Some(Ok(_)) = body.frame().await {} }))
    }
}
