//! The parts that `serve`, `proxy`, `relay` and `line` have in common: booting, logging, metrics,
//! health, the admin address, listening with timeouts, and shutting down.
//!
//! ```text
//!   settings ─► boot ─► Daemon { store, readiness, metrics } ─► admin (health, metrics)
//!                                                            └► listener ─► connection ─► handler
//! ```

pub(crate) mod admin;
pub(crate) mod body;
mod boot;
mod clock_check;
mod connection;
mod fair_store;
mod io_timeouts;
mod layers;
mod listener;
pub(crate) mod logging;
mod metrics;
mod open_connections;
mod readiness;
mod reporting;
mod store_gauges;
mod takeover;
mod turns;

pub(crate) use admin::health_routes;
pub(crate) use body::GuardedBody;
pub(crate) use boot::{
    Daemon, DaemonSettings, admin_line, daemon_settings, default_store_config, missing_file,
    open_store, print_banner,
};
pub(crate) use fair_store::fair_store;
pub(crate) use io_timeouts::{ConnectionActivity, InFlightGuard, IoTimeouts};
pub(crate) use layers::{RecordedAs, method_not_allowed, with_common_layers};
pub(crate) use listener::{BoxError, Peer, RequestHandler};
pub(crate) use metrics::RequestMetrics;
pub(crate) use readiness::{Readiness, ReadinessState};
pub(crate) use takeover::{RawConnection, Takeover};
