//! The settings of `hapax proxy`.

mod file;
mod upstream_url;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::ensure;
use hapax::OnUnknown;
use hapax::lock::OnStoreError;
use hapax_http::CallerScope;
use hyper::Method;
use hyper::header::HeaderName;

use super::declare::{Declaration, settings};
use super::serve::AllowedOrigins;
use super::shared::*;
use super::values::*;
use file::ProxySection;
pub(crate) use file::{RouteSection, StatusVerdicts};
pub(crate) use upstream_url::UpstreamUrl;

const EXAMPLES: &str = "\
Examples:
  hapax proxy --upstream http://127.0.0.1:3000
      in front of any service; then, twice, and the service sees one request:
      curl -i -H 'Idempotency-Key: tea-1' -d cups=2 http://127.0.0.1:8788/orders
  hapax proxy --upstream http://127.0.0.1:3000 --store redis://10.0.0.5/0 --listen 0.0.0.0:8788
      on several machines that share their keys
  hapax proxy --config hapax.toml
      with routes of their own upstream and policy:
          [[proxy.route]]
          path = \"/payments/*\"
          upstream = \"http://127.0.0.1:4000\"
          require_key = true
          statuses = { 404 = \"give-back\" }

A problem document's `retryable` says whether the same request may be sent again. docs/proxy.md
explains every status, and what to do about an unknown outcome.";

settings! {
    /// The settings of the proxy as a whole; [`ProxySection`] has those of its routes.
    ProxySettings, "proxy", Some(EXAMPLES), section: ProxySection;
    upstream: Option<UpstreamUrl> = Declaration::new("URL", "",
        "The service behind the proxy; needed unless every route names its own");
    listen: ListenAddress = LISTEN.default("127.0.0.1:8788")
        .help("The address to listen on; port 0 takes a free one. Every path there is the upstream's");
    store: SecretUrl = STORE;
    wait: DurationOrZero = Declaration::new("TIME", "10s",
        "How long a duplicate waits for the first one's answer; 0s not at all");
    lease: Duration = LEASE;
    retention: Duration = RETENTION.help("How long an answer is kept");
    require_key: bool = Declaration::switch("Refuse keyed methods without an Idempotency-Key");
    on_unknown: OnUnknown = Declaration::new("POLICY", "refuse",
        "Where an earlier attempt may have acted: refuse, or rerun and tell the upstream");
    on_store_error: OnStoreError = Declaration::new("POLICY", "closed",
        "Where the store fails: closed (503, nothing runs), or open (unprotected, and said)");
    scope: CallerScope = Declaration::new("SCOPE", "authorization",
        "What identifies a key's owner: authorization (and --credential-headers), header:NAME, cookie:NAME or single");
    credential_headers: HeaderNames = Declaration::new("LIST", "X-Api-Key,Api-Key,X-Auth-Token,X-Access-Token",
        "Which headers identify a caller beside Authorization, with --scope authorization");
    methods: KeyedMethods = Declaration::new("LIST", "POST,PATCH",
        "Which methods are keyed, out of POST, PATCH, PUT, DELETE; others pass untouched");
    limit: ByteSize = Declaration::new("SIZE", "1MiB",
        "The largest keyed request, and the largest answer that is kept");
    admin: Option<ListenAddress> = ADMIN.help("Serve /healthz, /readyz and /metrics on this address");
    tls_cert: Option<PathBuf> = Declaration::new("FILE", "",
        "The listener's certificate chain (PEM); with --tls-key");
    tls_key: Option<PathBuf> = Declaration::new("FILE", "", "The certificate's private key (PEM)");
    upstream_ca: Option<PathBuf> = Declaration::new("FILE", "",
        "The CA of an https:// upstream's certificate (PEM), instead of the system's");
    upstream_http2: bool = Declaration::switch("Speak HTTP/2 to the upstream, also without TLS");
    upstream_timeout: Duration = Declaration::new("TIME", "60s",
        "How long the upstream may be silent; an event stream may be for ever");
    connect_timeout: Duration = Declaration::new("TIME", "5s",
        "How long connecting to the upstream may take");
    upstream_idle: DurationOrZero = Declaration::new("TIME", "1s",
        "How long an idle connection to the upstream is kept; less than the upstream keeps it");
    host: HostPolicy = Declaration::new("POLICY", "keep",
        "Which Host the upstream sees: keep (the client's) or upstream (its own)");
    trust_forwarded: bool = Declaration::switch(
        "Extend the X-Forwarded-* and Forwarded headers that come in instead of replacing them");
    cors_origins: AllowedOrigins = Declaration::new("ORIGINS", "",
        "Sites whose pages may read the proxy's own answers, as https://app.example, or *");
    header_timeout: Duration = HEADER_TIMEOUT;
    body_timeout: Duration = BODY_TIMEOUT.default("30s")
        .help("How long a client may be silent in the middle of a request's body");
    body_rate: ByteSize = Declaration::new("SIZE", "1KiB",
        "The least that a keyed request's body may bring each second, beyond its first --body-timeout");
    buffer_memory: MemorySize = BUFFER_MEMORY;
    in_flight: usize = Declaration::new("NUMBER", "1024",
        "How many keyed requests of one caller are in flight at once, anonymous ones together; further ones get 429");
    idle_timeout: Duration = IDLE_TIMEOUT;
    max_connections: usize = MAX_CONNECTIONS;
    tunnel_idle_timeout: Duration = Declaration::new("TIME", "10m",
        "How long a WebSocket or another tunnel may be silent before it is closed");
    max_detached: Option<usize> = Declaration::new("NUMBER", "",
        "How many keyed requests run on after their client has left; empty: as many as --max-connections. Beyond it new ones get 503");
    detached_timeout: Duration = Declaration::new("TIME", "60s",
        "How long an answer above --limit, or an event stream, is read on after its client has left");
    shutdown_timeout: DurationOrZero = SHUTDOWN_TIMEOUT.aliases(&["shutdown_limit"]);
    store_timeout: Duration = STORE_TIMEOUT;
    store_calls: usize = STORE_CALLS;
    accept_risk: CheckNames = ACCEPT_RISK;
    gauge_interval: DurationOrZero = GAUGE_INTERVAL;
    node: Option<NodeName> = NODE;
    report_interval: DurationOrZero = REPORT_INTERVAL;
    sweep_interval: Duration = SWEEP_INTERVAL;
    log: LogFormat = LOG;
    log_level: LogLevel = LOG_LEVEL;
}

impl ProxySettings {
    fn check(&self) -> anyhow::Result<()> {
        ensure!(
            self.tls_cert.is_some() == self.tls_key.is_some(),
            "--tls-cert and --tls-key need each other: a certificate chain and its private key"
        );
        check_buffer_memory(self.limit.0, "--limit", self.buffer_memory)?;
        Ok(())
    }
}

/// Methods, comma-separated; an empty text is none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct KeyedMethods(pub(crate) Vec<Method>);

impl SettingValue for KeyedMethods {
    fn parse(text: &str) -> Result<Self, String> {
        let methods = list_items(text).map(|name| match name {
            "POST" | "PATCH" | "PUT" | "DELETE" => Ok(name.parse().expect("a method by name")),
            _ => Err("methods out of POST, PATCH, PUT and DELETE are expected".to_owned()),
        });
        methods.collect::<Result<_, _>>().map(Self)
    }
}

/// Names of headers, comma-separated; an empty text is none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct HeaderNames(pub(crate) Vec<HeaderName>);

impl SettingValue for HeaderNames {
    fn parse(text: &str) -> Result<Self, String> {
        let names = list_items(text).map(|name| {
            let expected = "names of headers are expected, such as X-Api-Key,X-Auth-Token";
            HeaderName::try_from(name).map_err(|_| expected.to_owned())
        });
        names.collect::<Result<_, _>>().map(Self)
    }
}

impl SettingValue for CallerScope {
    fn parse(text: &str) -> Result<Self, String> {
        let expected = "authorization, header:NAME, cookie:NAME or single is expected";
        match text.split_once(':') {
            None if text == "authorization" => Ok(Self::Authorization),
            None if text == "single" => Ok(Self::Single),
            Some(("header", name)) => {
                HeaderName::try_from(name).map(Self::Header).map_err(|_| expected.into())
            }
            Some(("cookie", name)) if !name.is_empty() && !name.contains(['=', ';', ' ']) => {
                Ok(Self::Cookie(name.into()))
            }
            _ => Err(expected.into()),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HostPolicy {
    /// The client's.
    Keep,
    /// The upstream's own.
    Upstream,
}
