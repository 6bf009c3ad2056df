//! The pages: the OpenAPI document, its viewer, and the status page.

pub(super) mod docs;
pub(super) mod openapi;
pub(super) mod status_page;
