//! The servers under test. All run at the same time, and one has work at a time.

use std::fmt;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;

use hapax_workload::ProcessGroup;
use tempfile::TempDir;

use super::CONNECTIONS;
use crate::RunArgs;
use crate::process::{ANY_PORT, ServerProcess, hapax_command, nginx_version, start_nginx};
use crate::store_server::{Engine, StoreServer};

/// The part that a server plays in the comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HttpRole {
    Bare,
    Layer(Engine),
    Nginx,
    Proxy(Engine),
}

impl HttpRole {
    pub(super) fn keeps_answers(self) -> bool {
        matches!(self, Self::Layer(_) | Self::Proxy(_))
    }

    pub(super) fn store(self) -> Option<Engine> {
        match self {
            Self::Bare | Self::Nginx => None,
            Self::Layer(engine) | Self::Proxy(engine) => Some(engine),
        }
    }

    /// The server whose cost this one is compared with.
    pub(super) fn baseline(self) -> Option<Self> {
        match self {
            Self::Bare | Self::Nginx => None,
            Self::Layer(_) => Some(Self::Bare),
            Self::Proxy(_) => Some(Self::Nginx),
        }
    }
}

impl fmt::Display for HttpRole {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bare => f.write_str("bare handler"),
            Self::Layer(engine) => write!(f, "layer, {}", engine.name()),
            Self::Nginx => f.write_str("nginx"),
            Self::Proxy(engine) => write!(f, "hapax proxy, {}", engine.name()),
        }
    }
}

pub(super) struct HttpTarget {
    pub(super) role: HttpRole,
    pub(super) server: ServerProcess,
    pub(super) store: ProcessGroup,
}

/// Fields drop in order: the servers before the stores that they use.
pub(super) struct HttpSetup {
    pub(super) servers: Vec<HttpTarget>,
    stores: Vec<StoreServer>,
    _folder: TempDir,
}

impl HttpSetup {
    pub(super) fn start(hapax: &Path, run: &RunArgs) -> anyhow::Result<Self> {
        let folder = tempfile::tempdir()?;
        let stores = StoreServer::start_all(run.engines())?;
        let bare = handler(None)?;
        let upstream = bare.address();
        let mut servers = vec![HttpTarget::new(HttpRole::Bare, bare, None)];
        for store in &stores {
            let server = handler(Some(&store.url("layer")))?;
            servers.push(HttpTarget::new(HttpRole::Layer(store.engine()), server, Some(store)));
        }
        if nginx_version().is_some() {
            let configure = |address| configuration(folder.path(), address, upstream);
            let server = start_nginx(folder.path(), |binary| Command::new(binary), configure)?;
            servers.push(HttpTarget::new(HttpRole::Nginx, server, None));
        }
        for store in &stores {
            let (command, url) = (Command::new(hapax), store.url("proxy"));
            let mut command = hapax_command(command, "proxy", &url, folder.path());
            command.args(["--upstream", &format!("http://{upstream}")]);
            let server = ServerProcess::start_announced(&mut command)?;
            servers.push(HttpTarget::new(HttpRole::Proxy(store.engine()), server, Some(store)));
        }
        Ok(Self { servers, stores, _folder: folder })
    }

    /// The text above the tables.
    pub(super) fn description(&self) -> String {
        let stores: Vec<String> = self.stores.iter().map(StoreServer::description).collect();
        let nginx = match nginx_version() {
            Some(version) => format!("nginx {version} (one worker, upstream kept alive, no log)"),
            None => "no nginx here, so the proxy stands alone: apt-get install nginx-light".into(),
        };
        format!(
            "## HTTP\n\n{CONNECTIONS} connections, kept alive, one request at a time each. The \
             handler is axum; the layer and the proxy have their default settings, \
             but the proxy's log is off. Stores: {}. \
             Beside: {nginx}. CPU time is that of the server under test (of a proxy without the \
             handler behind it) and of its store's server; the load generator's is not in it.\n",
            stores.join(", ")
        )
    }
}

impl HttpTarget {
    fn new(role: HttpRole, server: ServerProcess, store: Option<&StoreServer>) -> Self {
        Self { role, server, store: store.map(StoreServer::processes).unwrap_or_default() }
    }
}

/// Starts this binary as a handler, under the layer on this store or bare.
pub(crate) fn handler(store: Option<&str>) -> anyhow::Result<ServerProcess> {
    let mut command = Command::new(std::env::current_exe()?);
    command.env_clear().args(["serve-handler", "--listen", ANY_PORT]);
    if let Some(url) = store {
        command.args(["--store", url]);
    }
    ServerProcess::start_announced(&mut command)
}

fn configuration(folder: &Path, address: SocketAddr, upstream: SocketAddr) -> String {
    let folder = folder.display();
    format!(
        "events {{ worker_connections 1024; }}
http {{
    access_log off;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    # Connections last as long as the measurement, on both sides.
    keepalive_requests 1000000000;
    upstream handler {{
        server {upstream};
        keepalive 64;
        keepalive_requests 1000000000;
    }}
    server {{
        listen {address};
        location / {{
            proxy_pass http://handler;
            proxy_http_version 1.1;
            proxy_set_header Connection \"\";
            proxy_set_header Host $host;
            proxy_set_header X-Forwarded-For $remote_addr;
            proxy_set_header X-Forwarded-Proto $scheme;
        }}
    }}
}}
"
    )
}
