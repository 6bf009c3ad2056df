//! Where commands are: behind a server, or in a store that is opened directly.

use axum::Router;
use axum::body::Body;
use hapax::Tenant;
use http_body_util::BodyExt;
use hyper::header::{HOST, HeaderValue};
use tower::ServiceExt;

use super::{Answer, Api, Call, Connect, Failure};
use crate::daemon::logging;
use crate::serve::in_process;

/// A store instead of a server.
#[derive(clap::Args, Clone)]
pub(crate) struct Direct {
    /// Use this store directly instead of a server: a proxy's, say. Whoever may open it may do
    /// everything; what is done is written to standard error, as the server's audit would have it.
    #[arg(long, global = true, help_heading = "Store", value_name = "URL")]
    store: Option<String>,
    /// Whose commands, in a store that is used directly [default: default]
    #[arg(long, global = true, help_heading = "Store", value_name = "TENANT")]
    tenant: Option<String>,
}

/// Who answers.
pub(crate) enum Desk {
    Server(Api),
    Store(Router),
}

impl Desk {
    pub(crate) async fn open(connect: &Connect, direct: &Direct) -> Result<Self, Failure> {
        let usage = |text: String| Failure::Usage(text);
        let tenant = direct.tenant.as_deref();
        match (&direct.store, tenant) {
            (None, Some(_)) => Err(usage("--tenant goes with --store; a token has its own".into())),
            (None, None) => Ok(Self::Server(connect.api()?)),
            (Some(url), tenant) => {
                let tenant = tenant.map_or(Ok(Tenant::default()), Tenant::new);
                let tenant = tenant.map_err(|error| usage(error.to_string()))?;
                logging::start_audit();
                let router = in_process::open_router(url, tenant).await;
                router.map(Self::Store).map_err(|error| Failure::Store(format!("{error:#}")))
            }
        }
    }

    /// Anything but a 2xx is a [`Failure`].
    pub(crate) async fn send(&self, call: Call) -> Result<Answer, Failure> {
        match self {
            Self::Server(api) => api.send(call).await,
            Self::Store(router) => ask(router.clone(), call).await,
        }
    }
}

async fn ask(router: Router, call: Call) -> Result<Answer, Failure> {
    let limit = call.limit;
    let mut request = call.request("")?.map(Body::from);
    request.headers_mut().insert(HOST, HeaderValue::from_static("localhost"));
    let answered = async {
        let response = router.oneshot(request).await.unwrap_or_else(|never| match never {});
        let (parts, body) = response.into_parts();
        let body = body.collect().await.map_err(|error| Failure::Local(error.to_string()))?;
        Answer::new(parts.status, parts.headers, body.to_bytes())
    };
    let late = |_| Failure::Store("the store did not answer in time".into());
    tokio::time::timeout(limit, answered).await.map_err(late)?
}
