//! The API's description, made from the handlers.

use hapax_http::problem::ProblemEdge;
use utoipa::OpenApi;
use utoipa::openapi::content::ContentBuilder;
use utoipa::openapi::path::Operation;
use utoipa::openapi::security::{HttpAuthScheme, HttpBuilder, SecurityRequirement, SecurityScheme};
use utoipa::openapi::{Ref, ResponseBuilder};

use crate::serve::problem::{ProblemDocument, ProblemKind};

const DESCRIPTION: &str = "\
Makes duplicates harmless: locks, records with compare-and-put, idempotent commands, events, \
inbox and queues.\n\n\
Keys and names in paths are percent-encoded, 1 to 255 bytes of printable ASCII. Bodies are JSON, \
`Content-Type: application/json` or none. Unknown or doubled fields, query parameters and headers \
are refused. Durations are whole milliseconds. Every answer that is no success is a problem \
document (RFC 9457) whose `type` ends in a stable code.";

#[derive(OpenApi)]
#[openapi(
    info(title = "hapax", description = DESCRIPTION),
    components(schemas(ProblemDocument)),
    tags(
        (name = "locks", description = "One at a time, released by their owner alone"),
        (name = "records", description = "JSON with a version, changed by compare-and-put"),
        (name = "commands", description = "The effect happens once, and everybody gets the same answer"),
        (name = "inbox", description = "A message that is delivered twice has its effect once"),
        (name = "events", description = "Events of jobs, each once and in order, across reconnects"),
        (name = "queues", description = "How much waits, and what is decided about dead letters; needs the scope `admin`"),
        (name = "operator", description = "Deciding about commands whose owner went away; needs the scope `admin`"),
        (name = "system", description = "What operators need"),
    ),
)]
pub(crate) struct Api;

/// Problems that any call of a feature may get.
const ANYWHERE: &[u16] = &[400, 401, 403, 408, 413, 415, 429, 431, 500, 503];

/// Adds to every feature's call what they have in common: the problems, and who may call.
pub(crate) fn complete(api: &mut utoipa::openapi::OpenApi) {
    let scheme = HttpBuilder::new()
        .scheme(HttpAuthScheme::Bearer)
        .description(Some("Only where the server has tokens; the token says whose data is seen"))
        .build();
    let components = api.components.get_or_insert_default();
    components.add_security_scheme("token", SecurityScheme::Http(scheme));
    for (path, item) in &mut api.paths.paths {
        if !path.starts_with("/v1/") {
            continue;
        }
        let operations =
            [&mut item.get, &mut item.put, &mut item.post, &mut item.delete, &mut item.patch];
        for operation in operations.into_iter().flatten() {
            add_common(operation);
        }
    }
}

fn add_common(operation: &mut Operation) {
    // Either nothing or a token: a server without tokens asks for none.
    let token = SecurityRequirement::new::<_, _, String>("token", []);
    operation.security = Some(vec![SecurityRequirement::default(), token]);
    let responses = &mut operation.responses.responses;
    for status in ANYWHERE {
        responses.entry(status.to_string()).or_insert_with(|| problem(*status).into());
    }
}

fn problem(status: u16) -> utoipa::openapi::Response {
    let codes: Vec<_> = ProblemKind::ALL
        .iter()
        .filter(|kind| kind.edges().contains(&ProblemEdge::Api))
        .filter(|kind| kind.status() == status && !kind.code().starts_with("record-"))
        .map(|kind| format!("`{}`", kind.code()))
        .collect();
    let document = Ref::from_schema_name("ProblemDocument");
    let content = ContentBuilder::new().schema(Some(document)).build();
    ResponseBuilder::new()
        .description(codes.join(", "))
        .content("application/problem+json", content)
        .build()
}
