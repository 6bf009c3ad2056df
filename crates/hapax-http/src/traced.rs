use hapax_core::trace::{self, TRACEPARENT, Traceparent};
use http::{HeaderMap, Request};
use tower_service::Service;

/// Calls the service in the trace of its request: what it enqueues belongs to it.
pub(crate) async fn call<S, B>(
    service: &mut S,
    request: Request<B>,
) -> Result<S::Response, S::Error>
where
    S: Service<Request<B>>,
{
    // Also what the service does before it gives its future is in the trace.
    let trace = trace_of(request.headers());
    trace::within(trace, async { service.call(request).await }).await
}

/// `None` also where there are two: nobody knows which one is true.
fn trace_of(headers: &HeaderMap) -> Option<Traceparent> {
    let mut told = headers.get_all(TRACEPARENT).iter();
    let (Some(trace), None) = (told.next(), told.next()) else { return None };
    Traceparent::parse(trace.to_str().ok()?)
}
