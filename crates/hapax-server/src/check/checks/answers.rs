//! Answers of every shape.

use super::{
    CheckResult, Executions, NotHeld, Order, Target, expect, is_refusal, replayed, same, seen,
};

const LARGE: usize = 300_000;
/// More than most services keep.
const HUGE: usize = 5_000_000;

pub(super) async fn empty(target: &Target) -> CheckResult {
    replayed(target, Order::size(0)).await.map(drop)
}

pub(super) async fn no_content(target: &Target) -> CheckResult {
    // With a body, which a 204 cannot have, some servers break the connection off.
    replayed(target, Order { size: Some(0), ..Order::status(204) }).await.map(drop)
}

pub(super) async fn redirect(target: &Target) -> CheckResult {
    replayed(target, Order::status(303)).await.map(drop)
}

pub(super) async fn binary(target: &Target) -> CheckResult {
    let order = Order { binary: true, ..Order::size(1000) };
    let (first, _) = replayed(target, order).await?;
    if std::str::from_utf8(&first.body).is_ok() {
        let why = "the service answers `binary` with text";
        return Err(NotHeld::Skipped(why.into()));
    }
    Ok(())
}

pub(super) async fn large(target: &Target) -> CheckResult {
    replayed(target, Order::size(LARGE)).await.map(drop)
}

pub(super) async fn huge(target: &Target) -> CheckResult {
    let (executions, request) =
        (Executions::from_now(target).await?, target.fresh(Order::size(HUGE)));
    let first = target.send(&request).await;
    let is_whole = first.as_ref().is_ok_and(|answer| answer.body.len() == HUGE);
    expect(is_whole, "the whole answer the first time", &first)?;
    let second = target.send(&request).await;
    executions.expect(1, "the second request is a duplicate").await?;
    let expected = format!("the first answer ({}), or a refusal", seen(&first));
    expect(same(&first, &second) || is_refusal(&second), &expected, &second)
}

pub(super) async fn streamed(target: &Target) -> CheckResult {
    let order = Order { stream: true, ..Order::size(1000) };
    let probe = target.send(&target.fresh(order)).await;
    // A service that does not know `stream` ignores or refuses it. One that fails may fail because of its streams.
    let is_unknown = probe.is_ok_and(|answer| {
        answer.status.is_client_error() || answer.headers.contains_key("content-length")
    });
    if is_unknown {
        let why = "the service sends no answer without a length when the body asks `stream`";
        return Err(NotHeld::Skipped(why.into()));
    }
    replayed(target, order).await.map(drop)
}
