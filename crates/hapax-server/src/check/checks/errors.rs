//! Errors: which are kept, and how refusals look.

use super::{CheckResult, Executions, Order, Profile, Target, expect, has_status, replayed};

pub(super) async fn client_error(target: &Target) -> CheckResult {
    replayed(target, Order::status(404)).await.map(drop)
}

pub(super) async fn server_error_kept(target: &Target) -> CheckResult {
    replayed(target, Order::status(500)).await.map(drop)
}

pub(super) async fn server_error_not_kept(target: &Target) -> CheckResult {
    runs_again(target, 500).await
}

pub(super) async fn refusals(target: &Target) -> CheckResult {
    for status in [401, 403, 408, 425, 429] {
        runs_again(target, status).await?;
    }
    Ok(())
}

async fn runs_again(target: &Target, status: u16) -> CheckResult {
    let executions = Executions::from_now(target).await?;
    let request = target.fresh(Order::status(status));
    let first = target.send(&request).await;
    expect(has_status(&first, status), &format!("status {status}, as asked"), &first)?;
    target.send(&request).await.ok();
    executions.expect(2, &format!("a {status} may change with a retry, and is not kept")).await
}

pub(super) async fn bad_gateway(target: &Target) -> CheckResult {
    let executions = Executions::from_now(target).await?;
    let request = target.fresh(Order::status(502));
    target.send(&request).await.ok();
    let second = target.send(&request).await;
    executions.expect(1, "the first run may have had its effect").await?;
    expect(has_status(&second, 409), "status 409", &second)
}

pub(super) async fn format(target: &Target) -> CheckResult {
    let request = target.fresh(Order::size(100));
    target.send(&request).await.ok();
    let refusal = target.send(&request.order(Order::size(101))).await;
    let expected = "application/problem+json with type, title and status";
    let is_problem = refusal.as_ref().is_ok_and(|answer| {
        let kind = answer.headers.get("content-type").map(|value| value.as_bytes());
        let body: serde_json::Value = serde_json::from_slice(&answer.body).unwrap_or_default();
        let required: &[&str] = match target.profile {
            Profile::Hapax => &["type", "title", "status", "detail", "retryable"],
            _ => &["type", "title"],
        };
        answer.status.is_client_error()
            && kind.is_some_and(|kind| kind.starts_with(b"application/problem+json"))
            && required.iter().all(|name| body.get(name).is_some())
    });
    expect(is_problem, expected, &refusal)
}
