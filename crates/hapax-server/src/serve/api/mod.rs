//! The endpoints under `/v1`, one module for each feature.

mod audit;
pub(super) mod commands;
pub(super) mod events;
pub(super) mod inbox;
pub(super) mod jobs;
pub(super) mod locks;
pub(super) mod operator;
pub(super) mod queues;
pub(super) mod records;
