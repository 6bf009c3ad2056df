//! Reading request bodies, bounded in size and time.

use std::time::Duration;

use axum::body::{Body, Bytes};
use http_body_util::BodyExt;
use hyper::body::Body as _;
use tokio::time::{Instant, timeout_at};

use crate::serve::problem::{Problem, ProblemKind};

/// How much of a refused body is still read, and for how long: a client that is still sending
/// would otherwise see a broken connection instead of the response.
const DISCARD_BYTES: usize = 8 << 20;
const DISCARD_TIME: Duration = Duration::from_secs(1);

/// Reads a complete body of at most `limit` bytes `within` this time.
pub(crate) async fn read(mut body: Body, limit: usize, within: Duration) -> Result<Bytes, Problem> {
    let too_large = || {
        Problem::new(
            ProblemKind::PayloadTooLarge,
            format!("the body may have at most {limit} bytes"),
        )
    };
    if body.size_hint().lower() > limit as u64 {
        discard(body).await;
        return Err(too_large());
    }
    let deadline = Instant::now() + within;
    let mut read = Vec::new();
    loop {
        let frame = match timeout_at(deadline, body.frame()).await {
            Err(_) => {
                return Err(Problem::new(
                    ProblemKind::RequestTimeout,
                    "the body did not arrive in time",
                ));
            }
            Ok(Some(Err(_))) => return Err(Problem::invalid("the body ended too early")),
            Ok(Some(Ok(frame))) => frame,
            Ok(None) => return Ok(read.into()),
        };
        let Ok(data) = frame.into_data() else { continue };
        if read.len() + data.len() > limit {
            discard(body).await;
            return Err(too_large());
        }
        read.extend_from_slice(&data);
    }
}

/// Reads and drops the rest of a refused body, up to the bounds above.
pub(crate) async fn discard(mut body: Body) {
    let deadline = Instant::now() + DISCARD_TIME;
    let mut left = DISCARD_BYTES;
    while let Ok(Some(Ok(frame))) = timeout_at(deadline, body.frame()).await {
        let length = frame.data_ref().map_or(0, Bytes::len);
        left = left.saturating_sub(length);
        if left == 0 {
            break;
        }
    }
}
