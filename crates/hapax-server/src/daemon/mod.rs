//! The parts that `serve`, `proxy`, `relay` and `line` have in common: booting, logging, metrics,
//! health, the admin address, listening with timeouts, and shutting down.
//!
//! ```text
//!   settings ─► boot ─► Daemon { store, readiness, metrics } ─► admin (health, metrics, queues)
//!                                                            └► listener ─► connection ─► handler
//! ```

mod admin;
mod boot;
mod connection;
mod io_timeouts;
mod listener;
pub(crate) mod logging;
mod metrics;
mod readiness;
mod shutdown;
mod takeover;

pub(crate) use admin::{HealthDocument, LocalApi, ReadyDocument, health_routes, healthz, readyz};
pub(crate) use boot::{
    Daemon, DaemonSettings, admin_line, daemon_settings, default_store_config, open_store,
    print_banner,
};
pub(crate) use io_timeouts::{ConnectionActivity, EarlyRefusals, InFlightGuard, IoTimeouts};
pub(crate) use listener::{BoxError, Peer, RequestHandler};
pub(crate) use metrics::{RequestMetrics, exposition};
pub(crate) use readiness::{Readiness, ReadinessState};
pub(crate) use takeover::{RawConnection, Takeover};
