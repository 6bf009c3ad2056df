//! Reading a request whole.

use std::error::Error as StdError;
use std::pin::pin;

use bytes::Bytes;
use http_body::Body as HttpBody;
use http_body_util::{BodyExt, LengthLimitError, Limited};

use crate::{BoxError, Problem, ProblemKind, Whole};

pub(crate) async fn read<B>(body: B, limit: usize) -> Result<Whole, Problem>
where
    B: HttpBody<Data = Bytes>,
    B::Error: Into<BoxError>,
{
    // What says that it is too large is not read at all.
    if body.size_hint().lower() > limit as u64 {
        return Err(too_large(limit));
    }
    match pin!(Limited::new(body, limit)).collect().await {
        Ok(body) => {
            let trailers = body.trailers().cloned();
            Ok(Whole::new(body.to_bytes(), trailers))
        }
        // The limit may also be somebody else's, outside the layer.
        Err(error) if is_too_long(&*error) => Err(too_large(limit)),
        Err(_) => {
            Err(Problem::invalid("the request body ended early; nothing was run").retryable())
        }
    }
}

fn is_too_long(error: &(dyn StdError + 'static)) -> bool {
    error.is::<LengthLimitError>() || error.source().is_some_and(is_too_long)
}

fn too_large(limit: usize) -> Problem {
    Problem::new(
        ProblemKind::PayloadTooLarge,
        format!("a request with an Idempotency-Key may have at most {limit} bytes"),
    )
}
