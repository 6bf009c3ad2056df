//! The endpoints under `/v1`, one module for each feature.

mod audit;
pub(super) mod commands;
pub(super) mod events;
pub(super) mod inbox;
pub(super) mod locks;
pub(super) mod operator;
pub(super) mod queues;
pub(super) mod records;
mod renewal;
pub(super) mod session;
pub(super) mod tasks;

pub(super) use audit::AuditLog;
pub(super) use tasks::OperatorTasks;

/// The names that every endpoint needs.
mod prelude {
    pub(super) use axum::extract::State;
    pub(super) use hyper::StatusCode;
    pub(super) use serde::{Deserialize, Serialize};
    pub(super) use utoipa::ToSchema;

    pub(super) use crate::api::app::AppState;
    pub(super) use crate::api::request::fields::{JsonFields, LEASE, RETENTION, WAIT, required};
    pub(super) use crate::api::request::{ApiRequest, parse_page_limit};
    pub(super) use crate::api::response::{ApiResult, json_response, no_content};
    pub(super) use crate::problem::{Problem, ProblemKind};
}
