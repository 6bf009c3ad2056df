//! The OpenAPI document, generated from the handlers.

use hapax_http::problem::ProblemEdge;
use utoipa::OpenApi;
use utoipa::openapi::content::ContentBuilder;
use utoipa::openapi::path::{Operation, Parameter, ParameterBuilder, ParameterIn};
use utoipa::openapi::schema::{AnyOf, ObjectBuilder, Schema, Type};
use utoipa::openapi::security::{HttpAuthScheme, HttpBuilder, SecurityRequirement, SecurityScheme};
use utoipa::openapi::{Ref, RefOr, Required, Response, ResponseBuilder};

use crate::problem::{ProblemDocument, ProblemKind};

const DESCRIPTION: &str = "\
Makes duplicates harmless: locks, records with compare-and-put, idempotent commands, events, \
inbox and queues.\n\n\
Keys and names in paths are percent-encoded, 1 to 255 bytes of printable ASCII. Bodies are JSON, \
`Content-Type: application/json` or none. Unknown or doubled fields, query parameters and headers \
are refused. Durations are whole milliseconds. Every error response is a problem \
document (RFC 9457) whose `type` ends in a stable code.";

#[derive(OpenApi)]
#[openapi(
    info(title = "hapax", description = DESCRIPTION),
    components(schemas(ProblemDocument)),
    tags(
        (name = "locks", description = "A lock has one holder at a time, and only that holder releases it"),
        (name = "records", description = "JSON with a version, changed by compare-and-put"),
        (name = "commands", description = "The effect happens once, and every caller gets the same response"),
        (name = "inbox", description = "A message that is delivered twice takes effect once"),
        (name = "events", description = "Events of jobs, each delivered once and in order, across reconnects"),
        (name = "queues", description = "Queue depths, and decisions about dead letters; reading needs the scope `read` or `admin`, the rest `admin`"),
        (name = "operator", description = "Decisions about commands whose owner is gone, and the audit log; reading needs the scope `read` or `admin`, the rest `admin`"),
        (name = "session", description = "Signing in to the console; needs no scope"),
        (name = "system", description = "Health, readiness and metrics"),
    ),
)]
pub(crate) struct ApiDoc;

/// The statuses of the problems that any `/v1` request may get.
const ANYWHERE: &[u16] = &[400, 401, 403, 408, 413, 415, 429, 431, 500, 503];
/// The statuses of the problems that requests for health and metrics may get.
const ANYWHERE_IN_SYSTEM: &[u16] = &[400, 401, 403, 408, 431, 500];

/// Adds path parameters and the security requirement to every `/v1` operation, and common problems to
/// all operations.
pub(crate) fn complete(api: &mut utoipa::openapi::OpenApi) {
    let scheme = HttpBuilder::new()
        .scheme(HttpAuthScheme::Bearer)
        .description(Some("Needed only if the server has tokens; the token determines the tenant"))
        .build();
    let components = api.components.get_or_insert_default();
    components.add_security_scheme("token", SecurityScheme::Http(scheme));
    if let Some(RefOr::T(details)) = components.schemas.get_mut("CommandDetails") {
        allow_overlap(details);
    }
    for (path, item) in &mut api.paths.paths {
        let operations =
            [&mut item.get, &mut item.put, &mut item.post, &mut item.delete, &mut item.patch];
        for (i, operation) in operations.into_iter().enumerate() {
            let Some(operation) = operation else { continue };
            if path.starts_with("/v1/") {
                let is_read = i == 0;
                if ["/v1/operator/", "/v1/queues/"].iter().any(|root| path.starts_with(root)) {
                    add_operator_parameters(operation, is_read);
                }
                add_parameters(path, operation);
                add_problems(operation, ANYWHERE);
            } else {
                add_problems(operation, ANYWHERE_IN_SYSTEM);
            }
        }
    }
}

/// Turns `oneOf` into `anyOf`: the fields of a failed command are among those of other states, so that
/// several variants match.
fn allow_overlap(schema: &mut Schema) {
    if let Schema::OneOf(one_of) = schema {
        let mut any_of = AnyOf::new();
        any_of.items = std::mem::take(&mut one_of.items);
        any_of.description = one_of.description.take();
        *schema = Schema::AnyOf(any_of);
    }
}

fn add_parameters(path: &str, operation: &mut Operation) {
    // Either nothing or a token: a server without tokens requires none.
    let token = SecurityRequirement::new::<_, _, String>("token", []);
    operation.security = Some(vec![SecurityRequirement::default(), token]);
    let named = path.split(['{', '}']).skip(1).step_by(2).map(|name| path_parameter(name).into());
    let parameters = named.chain(operation.parameters.take().unwrap_or_default()).collect();
    operation.parameters = Some(parameters).filter(|parameters: &Vec<_>| !parameters.is_empty());
}

/// Adds the headers of requests that change something: the note, and the proof beside a cookie.
fn add_operator_parameters(operation: &mut Operation, is_read: bool) {
    if is_read {
        return;
    }
    let header = |name: &str, text: &str| {
        let schema = ObjectBuilder::new().schema_type(Type::String);
        let header = ParameterBuilder::new().name(name).parameter_in(ParameterIn::Header);
        header.required(Required::False).description(Some(text)).schema(Some(schema)).build()
    };
    let note = "Why, for the audit log: at most 500 bytes of UTF-8, percent-encoded";
    let csrf = "The `csrf` of the session; needed beside its cookie";
    let added = [header("Hapax-Note", note), header("Hapax-Csrf", csrf)].map(Into::into);
    operation.parameters.get_or_insert_default().extend(added);
}

fn add_problems(operation: &mut Operation, anywhere: &[u16]) {
    let responses = &mut operation.responses.responses;
    for status in anywhere {
        responses.entry(status.to_string()).or_insert_with(|| common_problem(*status).into());
    }
    for (status, response) in responses {
        if let RefOr::T(response) = response
            && status.starts_with(['4', '5'])
            && response.content.is_empty()
        {
            let document = Ref::from_schema_name("ProblemDocument");
            let content = ContentBuilder::new().schema(Some(document)).build();
            response.content.insert("application/problem+json".to_owned(), content.into());
        }
    }
}

fn path_parameter(name: &str) -> Parameter {
    let text = ObjectBuilder::new().schema_type(Type::String).min_length(Some(1));
    ParameterBuilder::new()
        .name(name)
        .parameter_in(ParameterIn::Path)
        .required(Required::True)
        .schema(Some(text.max_length(Some(255))))
        .build()
}

fn common_problem(status: u16) -> Response {
    let kinds = ProblemKind::ALL.iter().filter(|kind| kind.edges().contains(&ProblemEdge::Api));
    let codes: Vec<_> = kinds
        .filter(|kind| kind.status() == status && !kind.code().starts_with("record-"))
        .map(|kind| format!("`{}`", kind.code()))
        .collect();
    ResponseBuilder::new().description(codes.join(", ")).build()
}
