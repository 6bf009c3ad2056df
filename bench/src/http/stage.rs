//! All that is measured, running at the same time; only one has work at a time.

use std::fmt;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;

use hapax_bench::Processes;
use tempfile::TempDir;

use super::{CONNECTIONS, nginx};
use crate::arena::Engine;
use crate::place::Place;
use crate::process::Server;

const ANYWHERE: &str = "127.0.0.1:0";

/// What a subject is, among the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    Bare,
    Layer(Engine),
    Nginx,
    Proxy(Engine),
}

impl Role {
    pub(super) fn keeps_answers(self) -> bool {
        matches!(self, Self::Layer(_) | Self::Proxy(_))
    }

    /// What it is more than.
    pub(super) fn baseline(self) -> Option<Self> {
        match self {
            Self::Bare | Self::Nginx => None,
            Self::Layer(_) => Some(Self::Bare),
            Self::Proxy(_) => Some(Self::Nginx),
        }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bare => f.write_str("bare handler"),
            Self::Layer(engine) => write!(f, "layer, {}", engine.name()),
            Self::Nginx => f.write_str("nginx"),
            Self::Proxy(engine) => write!(f, "hapax proxy, {}", engine.name()),
        }
    }
}

pub(super) struct Subject {
    pub(super) role: Role,
    pub(super) server: Server,
    pub(super) store: Processes,
}

/// Fields are dropped in their order: first those who use the stores.
pub(super) struct Stage {
    pub(super) subjects: Vec<Subject>,
    places: Vec<Place>,
    _folder: TempDir,
}

impl Stage {
    pub(super) fn set(hapax: &Path, engines: &[Engine]) -> anyhow::Result<Self> {
        let folder = tempfile::tempdir()?;
        let places = engines.iter().map(|engine| Place::start(*engine));
        let places: Vec<Place> = places.collect::<anyhow::Result<_>>()?;
        let bare = handler(None)?;
        let upstream = bare.address();
        let mut subjects = vec![Subject::new(Role::Bare, bare, None)];
        for (engine, place) in engines.iter().zip(&places) {
            let server = handler(Some(&place.url("layer")))?;
            subjects.push(Subject::new(Role::Layer(*engine), server, Some(place)));
        }
        if let Some(server) = nginx::start(folder.path(), upstream)? {
            subjects.push(Subject::new(Role::Nginx, server, None));
        }
        for (engine, place) in engines.iter().zip(&places) {
            let server = proxy(hapax, folder.path(), upstream, &place.url("proxy"))?;
            subjects.push(Subject::new(Role::Proxy(*engine), server, Some(place)));
        }
        Ok(Self { subjects, places, _folder: folder })
    }

    /// What the numbers are about.
    pub(super) fn description(&self) -> String {
        let stores: Vec<String> = self.places.iter().map(Place::description).collect();
        let nginx = match crate::nginx::version() {
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

impl Subject {
    fn new(role: Role, server: Server, place: Option<&Place>) -> Self {
        Self { role, server, store: place.map(Place::processes).unwrap_or_default() }
    }
}

/// This binary once more: a handler under the layer on this store, or bare.
pub(crate) fn handler(store: Option<&str>) -> anyhow::Result<Server> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["serve-handler", "--listen", ANYWHERE]);
    if let Some(url) = store {
        command.args(["--store", url]);
    }
    Server::that_says_where(&mut command)
}

/// In an empty folder, so that it finds no settings file.
fn proxy(hapax: &Path, folder: &Path, upstream: SocketAddr, store: &str) -> anyhow::Result<Server> {
    let mut command = Command::new(hapax);
    let upstream = format!("http://{upstream}");
    command
        .args(["proxy", "--listen", ANYWHERE, "--upstream", &upstream, "--store", store])
        // No line for each request: nginx writes none either.
        .args(["--log-level", "error"])
        .current_dir(folder);
    Server::that_says_where(&mut command)
}
