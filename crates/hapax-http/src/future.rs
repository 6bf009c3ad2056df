use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use hapax_core::trace::InTrace;
use http::Response;
use pin_project_lite::pin_project;

use crate::ResponseBody;

type BoxResponse<R, E> = Pin<Box<dyn Future<Output = Result<Response<ResponseBody<R>>, E>> + Send>>;

pin_project! {
    /// The response of [`Idempotency`](crate::Idempotency). Without a key this is the inner
    /// service's future, not boxed.
    pub struct ResponseFuture<F, R, E> {
        #[pin]
        inner: Inner<F, R, E>,
    }
}

pin_project! {
    #[project = InnerProjection]
    enum Inner<F, R, E> {
        Keyless { #[pin] future: InTrace<F> },
        Keyed { future: BoxResponse<R, E> },
    }
}

impl<F, R, E> ResponseFuture<F, R, E> {
    pub(crate) fn keyless(future: InTrace<F>) -> Self {
        Self { inner: Inner::Keyless { future } }
    }

    pub(crate) fn keyed(
        future: impl Future<Output = Result<Response<ResponseBody<R>>, E>> + Send + 'static,
    ) -> Self {
        Self { inner: Inner::Keyed { future: Box::pin(future) } }
    }
}

impl<F, R, E> Future for ResponseFuture<F, R, E>
where
    F: Future<Output = Result<Response<R>, E>>,
{
    type Output = Result<Response<ResponseBody<R>>, E>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match self.project().inner.project() {
            InnerProjection::Keyless { future } => {
                future.poll(cx).map_ok(|response| response.map(ResponseBody::passed_through))
            }
            InnerProjection::Keyed { future } => future.as_mut().poll(cx),
        }
    }
}

impl<F, R, E> fmt::Debug for ResponseFuture<F, R, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResponseFuture").finish_non_exhaustive()
    }
}
