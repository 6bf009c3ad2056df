//! The place of the state: a running server, or a store that is opened directly.

use std::process::{ExitCode, Termination};
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use clap::Subcommand;
use hapax::lock::{LockError, Locks};
use hapax::{OpenMode, Store, StoreError, Tenant, Token};
use http_body_util::BodyExt;
use hyper::header::{HOST, HeaderValue};
use metrics_exporter_prometheus::PrometheusBuilder;
use serde::Deserialize;
use tokio::sync::OnceCell;
use tower::ServiceExt;

use super::error::exit_code_of;
use super::lock::{release_request, renew_request, take_request};
use super::{CliError, ClientRequest, ClientResponse, ServerClient, print_response};
use crate::api;
use crate::daemon::{default_store_config, logging, missing_file};

/// The flags that name a server.
#[derive(clap::Args, Clone)]
pub(crate) struct ServerArgs {
    /// The server's address.
    #[arg(long, global = true, help_heading = "Server", env = "HAPAX_SERVER")]
    #[arg(value_name = "URL", default_value = "http://127.0.0.1:8787")]
    pub(crate) server: String,
    /// An access token, where the server asks for one. Prefer the environment variable: other users
    /// can see command lines.
    #[arg(long, global = true, help_heading = "Server", env = "HAPAX_TOKEN")]
    #[arg(value_name = "TOKEN", hide_env_values = true)]
    pub(crate) token: Option<String>,
    /// Print the server's JSON as it is.
    #[arg(long, global = true, help_heading = "Server")]
    pub(crate) json: bool,
}

impl ServerArgs {
    pub(crate) fn client(&self) -> Result<ServerClient, CliError> {
        ServerClient::new(&self.server, self.token.as_deref())
    }

    pub(crate) fn backend(&self) -> Result<Backend, CliError> {
        Ok(Backend::Server(Box::new(self.client()?)))
    }
}

/// The flags that name a store instead of a server.
#[derive(clap::Args, Clone)]
struct StoreArgs {
    /// Use this store directly instead of a server, for example the store of a proxy. Anyone who can
    /// open the store may do everything; each action is written to standard error, and each
    /// change to the store's audit log.
    #[arg(long, global = true, help_heading = "Store", value_name = "URL")]
    store: Option<String>,
    /// The tenant in a store that is used directly [default: default]
    #[arg(long, global = true, help_heading = "Store", value_name = "TENANT")]
    tenant: Option<String>,
}

/// The arguments of a command whose requests go to a server.
#[derive(clap::Args)]
pub(crate) struct ServerActionArgs<A: Subcommand> {
    #[command(flatten)]
    pub(super) server: ServerArgs,
    #[command(subcommand)]
    pub(super) action: A,
}

impl<A: Subcommand> ServerActionArgs<A> {
    /// Runs the action on the server; prints its error.
    pub(crate) async fn run<T: Termination>(
        self,
        run: impl AsyncFnOnce(A, &Backend, bool) -> Result<T, CliError>,
    ) -> anyhow::Result<ExitCode> {
        let Self { server, action } = self;
        let outcome = async { run(action, &server.backend()?, server.json).await };
        exit_code_of(server.json, outcome.await)
    }
}

/// The arguments of a command without subcommands whose requests go to a server or to a store.
#[derive(clap::Args)]
pub(crate) struct ApiCommandArgs<A: clap::Args> {
    #[command(flatten)]
    server: ServerArgs,
    #[command(flatten)]
    store: StoreArgs,
    #[command(flatten)]
    command: A,
}

impl<A: clap::Args> ApiCommandArgs<A> {
    /// Opens the server or the store and runs the command; prints its error.
    pub(crate) async fn run<T: Termination>(
        self,
        run: impl AsyncFnOnce(A, &Backend, bool) -> Result<T, CliError>,
    ) -> anyhow::Result<ExitCode> {
        let Self { server, store, command } = self;
        let outcome = async {
            let backend = Backend::open(&server, &store).await?;
            run(command, &backend, server.json).await
        };
        exit_code_of(server.json, outcome.await)
    }
}

/// The arguments of a command whose requests go to a server or to a store.
#[derive(clap::Args)]
pub(crate) struct ApiArgs<A: Subcommand> {
    #[command(flatten)]
    server: ServerArgs,
    #[command(flatten)]
    store: StoreArgs,
    #[command(subcommand)]
    action: A,
}

impl<A: Subcommand> ApiArgs<A> {
    /// Opens the server or the store and runs the action; prints its error.
    pub(crate) async fn run<T: Termination>(
        self,
        run: impl AsyncFnOnce(A, &Backend, bool) -> Result<T, CliError>,
    ) -> anyhow::Result<ExitCode> {
        let Self { server, store, action } = self;
        let outcome = async {
            let backend = Backend::open(&server, &store).await?;
            run(action, &backend, server.json).await
        };
        exit_code_of(server.json, outcome.await)
    }
}

#[derive(clap::Args)]
pub(crate) struct TicketArgs {
    /// The ticket that `begin` printed
    #[arg(long, env = "HAPAX_TICKET", hide_env_values = true)]
    pub(super) ticket: String,
}

/// A running server, or a store that is opened directly.
pub(crate) enum Backend {
    Server(Box<ServerClient>),
    Store(OpenedStore),
}

/// A store with the server's own API on it.
pub(crate) struct OpenedStore {
    store: Arc<dyn Store>,
    tenant: Tenant,
    router: OnceCell<Router>,
}

/// Proof that a lock is ours.
#[derive(Deserialize)]
pub(crate) struct LockTicket {
    pub(crate) token: String,
    pub(crate) fence: u64,
}

pub(crate) enum LockRefusal {
    /// Another owner has the lock.
    Held(CliError),
    /// The lock is not ours any more.
    Lost(CliError),
    /// The outcome is unknown.
    Failed(CliError),
}

impl LockRefusal {
    pub(crate) fn into_error(self) -> CliError {
        match self {
            Self::Held(error) | Self::Lost(error) | Self::Failed(error) => error,
        }
    }
}

impl Backend {
    /// Opens the store that `--store` names, or else uses the server.
    async fn open(server: &ServerArgs, store: &StoreArgs) -> Result<Self, CliError> {
        let usage = |text: String| CliError::Usage(text);
        let tenant = store.tenant.as_deref();
        let Some(url) = &store.store else {
            return match tenant {
                Some(_) => Err(usage("--tenant goes with --store; a token has its own".into())),
                None => server.backend(),
            };
        };
        let tenant = tenant.map_or(Ok(Tenant::default()), Tenant::new);
        let tenant = tenant.map_err(|error| usage(error.to_string()))?;
        // SQLite would create a file whose name is misspelt, and show an empty store.
        if let Some(path) = missing_file(url) {
            return Err(CliError::Store(format!("there is no file {}", path.display())));
        }
        let pending = hapax::migration_sql(url, &default_store_config()).await;
        match pending.map_err(|error| CliError::Store(format!("the store: {error}")))? {
            Some(sql) if !sql.is_empty() => {
                let text = "the store has no tables of this version; `hapax migrate` makes them";
                return Err(CliError::Store(text.into()));
            }
            _ => {}
        }
        logging::start_audit();
        let opened = OpenedStore::open(url, tenant, OpenMode::Existing).await;
        opened.map(Self::Store).map_err(|error| CliError::Store(format!("the store: {error}")))
    }

    /// Opens a store for locks, and creates it where it does not exist; without a URL, uses the server.
    pub(crate) async fn open_for_locks(
        server: &ServerArgs,
        url: Option<&str>,
    ) -> Result<Self, CliError> {
        match url {
            None => server.backend(),
            Some(url) => {
                let opened = OpenedStore::open(url, Tenant::default(), OpenMode::Migrate).await;
                opened.map(Self::Store).map_err(store_error)
            }
        }
    }

    /// Sends a request of the API. Any status but 2xx is a [`CliError`].
    pub(crate) async fn send(&self, request: ClientRequest) -> Result<ClientResponse, CliError> {
        match self {
            Self::Server(client) => client.send(request).await,
            Self::Store(opened) => opened.send(request).await,
        }
    }

    pub(crate) async fn print(&self, request: ClientRequest, json: bool) -> Result<(), CliError> {
        print_response(&self.send(request).await?, json)
    }

    /// Takes a lock, and waits for it up to `wait`.
    pub(crate) async fn take_lock(
        &self,
        key: &str,
        ttl: Duration,
        wait: Duration,
    ) -> Result<LockTicket, LockRefusal> {
        match self {
            Self::Server(client) => {
                let response = send_lock(client, take_request(key, ttl, wait)).await?;
                response.read().map_err(LockRefusal::Failed)
            }
            Self::Store(opened) => {
                let ticket = opened.locks().take(key, ttl, wait).await.map_err(lock_refusal)?;
                let token = ticket.token.as_str().to_owned();
                Ok(LockTicket { token, fence: ticket.fence.0 })
            }
        }
    }

    /// Makes a lock last `ttl` from now; gives up after `timeout`.
    pub(crate) async fn renew_lock(
        &self,
        key: &str,
        ticket: &LockTicket,
        ttl: Duration,
        timeout: Duration,
    ) -> Result<(), LockRefusal> {
        match self {
            Self::Server(client) => {
                let request = renew_request(key, &ticket.token, ttl);
                send_lock(client, request.timeout_at_most(timeout)).await.map(drop)
            }
            Self::Store(opened) => {
                let token = Token::presented(&ticket.token);
                let locks = opened.locks();
                let renewed = tokio::time::timeout(timeout, locks.renew(key, &token, ttl)).await;
                let late = |_| LockRefusal::Failed(store_error(StoreError::Timeout { timeout }));
                renewed.map_err(late)?.map(drop).map_err(lock_refusal)
            }
        }
    }

    pub(crate) async fn release_lock(
        &self,
        key: &str,
        ticket: &LockTicket,
    ) -> Result<(), LockRefusal> {
        match self {
            Self::Server(client) => {
                send_lock(client, release_request(key, &ticket.token)).await.map(drop)
            }
            Self::Store(opened) => {
                let token = Token::presented(&ticket.token);
                opened.locks().release(key, &token).await.map_err(lock_refusal)
            }
        }
    }
}

impl OpenedStore {
    async fn open(url: &str, tenant: Tenant, mode: OpenMode) -> Result<Self, StoreError> {
        let store = hapax::open(url, &default_store_config().mode(mode))?;
        Ok(Self { store, tenant, router: OnceCell::new() })
    }

    fn locks(&self) -> Locks {
        Locks::new(self.store.clone()).tenant(self.tenant.clone()).source("cli")
    }

    async fn send(&self, request: ClientRequest) -> Result<ClientResponse, CliError> {
        let router = self.router.get_or_try_init(async || {
            let metrics = PrometheusBuilder::new().build_recorder().handle();
            api::router_for_store(self.store.clone(), self.tenant.clone(), metrics)
        });
        let router = router.await.map_err(|error| CliError::Store(format!("{error:#}")))?.clone();
        let timeout = request.timeout;
        let mut request = request.into_http("")?.map(Body::from);
        request.headers_mut().insert(HOST, HeaderValue::from_static("localhost"));
        let responding = async {
            let response = router.oneshot(request).await.unwrap_or_else(|never| match never {});
            let (parts, body) = response.into_parts();
            let body = body.collect().await.map_err(|error| CliError::Local(error.to_string()))?;
            ClientResponse::new(parts.status, parts.headers, body.to_bytes())
        };
        let late = |_| CliError::Store("the store did not answer in time".into());
        tokio::time::timeout(timeout, responding).await.map_err(late)?
    }
}

async fn send_lock(
    client: &ServerClient,
    request: ClientRequest,
) -> Result<ClientResponse, LockRefusal> {
    client.send(request).await.map_err(|error| {
        if error.has_code("lock-held") {
            LockRefusal::Held(error)
        } else if error.has_code("lock-lost") {
            LockRefusal::Lost(error)
        } else {
            LockRefusal::Failed(error)
        }
    })
}

fn lock_refusal(error: LockError) -> LockRefusal {
    match error {
        LockError::Held { .. } => LockRefusal::Held(CliError::Held(error.to_string())),
        LockError::Lost => LockRefusal::Lost(CliError::Local(error.to_string())),
        LockError::Store(error) => LockRefusal::Failed(store_error(error)),
        other => LockRefusal::Failed(CliError::Usage(other.to_string())),
    }
}

fn store_error(error: StoreError) -> CliError {
    CliError::Store(error.to_string())
}
