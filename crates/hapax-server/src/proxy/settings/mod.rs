//! Every option of the proxy: one declaration gives its flag, environment variable, file key and
//! help. Flags win over the environment, the environment over the file, the file over the default.

mod file;
mod policy;
#[cfg(test)]
mod tests;
mod value;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::ensure;
use hapax::OnUnknown;
use hapax::lock::OnStoreError;
use hapax_http::Scope;

use super::target::Target;
use crate::settings::shared::{LOG, LOG_LEVEL, STORE, STORE_TIMEOUT};
use crate::settings::{
    Level, Listen, LogFormat, OrZero, Setting, Size, StoreUrl, settings, sources,
};
use file::Section;
pub(crate) use policy::{Place, Route};
pub(crate) use value::{HostPolicy, Methods};

/// The flags of the proxy.
pub(crate) type Args = sources::Args<Section>;
/// Everything that was said about its options.
pub(crate) type Sources = sources::Sources<Section>;

settings! {
    /// What flags, environment and file say about the proxy as a whole.
    Options, section: Section;
    upstream: Option<Target> = Setting {
        flag: "upstream", env: "HAPAX_UPSTREAM", key: "proxy.upstream",
        value: "URL", default: "", seed: None,
        help: "The service behind the proxy; needed unless every route names its own",
    };
    listen: Listen = Setting {
        flag: "listen", env: "HAPAX_LISTEN", key: "proxy.listen",
        value: "ADDR", default: "127.0.0.1:8788", seed: None,
        help: "Where to listen; port 0 takes a free one. Every path there is the upstream's",
    };
    store: StoreUrl = STORE;
    wait: OrZero = Setting {
        flag: "wait", env: "HAPAX_WAIT", key: "proxy.wait",
        value: "TIME", default: "10s", seed: None,
        help: "How long a duplicate waits for the first one's answer; 0s not at all",
    };
    lease: Duration = Setting {
        flag: "lease", env: "HAPAX_LEASE", key: "proxy.lease",
        value: "TIME", default: "30s", seed: None,
        help: "How long a proxy that died is believed alive",
    };
    retention: Duration = Setting {
        flag: "retention", env: "HAPAX_RETENTION", key: "proxy.retention",
        value: "TIME", default: "24h", seed: None,
        help: "How long an answer is kept",
    };
    require_key: bool = Setting {
        flag: "require-key", env: "HAPAX_REQUIRE_KEY", key: "proxy.require_key",
        value: "", default: "false", seed: None,
        help: "Refuse keyed methods without an Idempotency-Key",
    };
    on_unknown: OnUnknown = Setting {
        flag: "on-unknown", env: "HAPAX_ON_UNKNOWN", key: "proxy.on_unknown",
        value: "POLICY", default: "refuse", seed: None,
        help: "Where an earlier attempt may have acted: refuse, or rerun and tell the upstream",
    };
    on_store_error: OnStoreError = Setting {
        flag: "on-store-error", env: "HAPAX_ON_STORE_ERROR", key: "proxy.on_store_error",
        value: "POLICY", default: "closed", seed: None,
        help: "Where the store fails: closed (503, nothing runs), or open (unprotected, and said)",
    };
    scope: Scope = Setting {
        flag: "scope", env: "HAPAX_SCOPE", key: "proxy.scope",
        value: "SCOPE", default: "authorization", seed: None,
        help: "Whose keys they are: authorization, header:NAME, cookie:NAME or single",
    };
    methods: Methods = Setting {
        flag: "methods", env: "HAPAX_METHODS", key: "proxy.methods",
        value: "LIST", default: "POST,PATCH", seed: None,
        help: "Which methods are keyed, out of POST, PATCH, PUT, DELETE; others pass untouched",
    };
    limit: Size = Setting {
        flag: "limit", env: "HAPAX_LIMIT", key: "proxy.limit",
        value: "SIZE", default: "1MiB", seed: None,
        help: "The largest keyed request, and the largest answer that is kept",
    };
    admin: Option<Listen> = Setting {
        flag: "admin", env: "HAPAX_ADMIN", key: "proxy.admin",
        value: "ADDR", default: "", seed: None,
        help: "Where /healthz, /readyz and /metrics are",
    };
    tls_cert: Option<PathBuf> = Setting {
        flag: "tls-cert", env: "HAPAX_TLS_CERT", key: "proxy.tls_cert",
        value: "FILE", default: "", seed: None,
        help: "The listener's certificate chain (PEM); with --tls-key",
    };
    tls_key: Option<PathBuf> = Setting {
        flag: "tls-key", env: "HAPAX_TLS_KEY", key: "proxy.tls_key",
        value: "FILE", default: "", seed: None,
        help: "The certificate's private key (PEM)",
    };
    upstream_ca: Option<PathBuf> = Setting {
        flag: "upstream-ca", env: "HAPAX_UPSTREAM_CA", key: "proxy.upstream_ca",
        value: "FILE", default: "", seed: None,
        help: "Who may have signed an https:// upstream's certificate (PEM), instead of the system's",
    };
    upstream_http2: bool = Setting {
        flag: "upstream-http2", env: "HAPAX_UPSTREAM_HTTP2", key: "proxy.upstream_http2",
        value: "", default: "false", seed: None,
        help: "Speak HTTP/2 to the upstream, also without TLS",
    };
    upstream_timeout: Duration = Setting {
        flag: "upstream-timeout", env: "HAPAX_UPSTREAM_TIMEOUT", key: "proxy.upstream_timeout",
        value: "TIME", default: "60s", seed: None,
        help: "How long the upstream may be silent; event streams may be for ever",
    };
    connect_timeout: Duration = Setting {
        flag: "connect-timeout", env: "HAPAX_CONNECT_TIMEOUT", key: "proxy.connect_timeout",
        value: "TIME", default: "5s", seed: None,
        help: "How long connecting to the upstream may take",
    };
    upstream_idle: OrZero = Setting {
        flag: "upstream-idle", env: "HAPAX_UPSTREAM_IDLE", key: "proxy.upstream_idle",
        value: "TIME", default: "1s", seed: None,
        help: "How long an idle connection to the upstream is kept; less than the upstream keeps it",
    };
    host: HostPolicy = Setting {
        flag: "host", env: "HAPAX_HOST", key: "proxy.host",
        value: "POLICY", default: "keep", seed: None,
        help: "Which Host the upstream sees: keep (the client's) or upstream (its own)",
    };
    trust_forwarded: bool = Setting {
        flag: "trust-forwarded", env: "HAPAX_TRUST_FORWARDED", key: "proxy.trust_forwarded",
        value: "", default: "false", seed: None,
        help: "Extend the X-Forwarded-* and Forwarded headers that come in instead of replacing them",
    };
    header_timeout: Duration = Setting {
        flag: "header-timeout", env: "HAPAX_HEADER_TIMEOUT", key: "proxy.header_timeout",
        value: "TIME", default: "10s", seed: None,
        help: "How long a client may take to send a request's headers",
    };
    body_timeout: Duration = Setting {
        flag: "body-timeout", env: "HAPAX_BODY_TIMEOUT", key: "proxy.body_timeout",
        value: "TIME", default: "30s", seed: None,
        help: "How long a client may be silent in the middle of a request's body",
    };
    idle_timeout: Duration = Setting {
        flag: "idle-timeout", env: "HAPAX_IDLE_TIMEOUT", key: "proxy.idle_timeout",
        value: "TIME", default: "75s", seed: None,
        help: "How long an idle client connection is kept, or one whose client does not read",
    };
    max_connections: usize = Setting {
        flag: "max-connections", env: "HAPAX_MAX_CONNECTIONS", key: "proxy.max_connections",
        value: "NUMBER", default: "10000", seed: None,
        help: "How many client connections are open at once; further ones wait to be accepted",
    };
    shutdown_limit: OrZero = Setting {
        flag: "shutdown-limit", env: "HAPAX_SHUTDOWN_LIMIT", key: "proxy.shutdown_limit",
        value: "TIME", default: "30s", seed: None,
        help: "How long requests in flight may take to end at shutdown",
    };
    store_timeout: Duration = STORE_TIMEOUT;
    sweep_interval: Duration = Setting {
        flag: "sweep-interval", env: "HAPAX_SWEEP_INTERVAL", key: "sweep_interval",
        value: "TIME", default: "60s", seed: None,
        help: "How often expired answers are deleted",
    };
    log: LogFormat = LOG;
    log_level: Level = LOG_LEVEL;
}

/// Everything that the proxy was told, read and checked.
#[derive(Debug)]
pub(crate) struct Settings {
    pub(crate) options: Options,
    /// The routes of the file in their order, then the one for everything else, if there is one.
    pub(crate) routes: Vec<Route>,
}

impl Settings {
    pub(crate) fn read(sources: &Sources) -> anyhow::Result<Self> {
        let options = Options::read(sources)?;
        let routes = policy::routes(&options)?;
        Ok(Self { options, routes })
    }
}

impl Options {
    /// What no single value can know about itself.
    fn check(&self) -> anyhow::Result<()> {
        ensure!(
            self.tls_cert.is_some() == self.tls_key.is_some(),
            "--tls-cert and --tls-key need each other: a certificate chain and its private key"
        );
        Ok(())
    }
}
