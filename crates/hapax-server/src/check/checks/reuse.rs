//! A key that comes back with something else: another body, query, path or caller.

use super::{
    CheckResult, Executions, NotHeld, Order, Profile, Target, expect, is_refusal, overlapping,
    refused, seen, status, statuses, wrong_answer, wrong_executions,
};

pub(super) async fn other_body(target: &Target) -> CheckResult {
    let request = target.fresh(Order::size(100));
    target.send(&request).await.ok();
    let other = request.order(Order::size(101));
    refused(target, &other, Profile::may_refuse_reuse_with).await
}

pub(super) async fn other_body_in_flight(target: &Target) -> CheckResult {
    let executions = Executions::from_now(target).await?;
    let request = target.fresh(Order { size: Some(100), ..Order::slow(1500) });
    let other = request.clone().order(Order { size: Some(101), ..Order::slow(1500) });
    let (_, second) = overlapping(target, &request, &other).await?;
    executions.expect(1, "the second request has the first one's key").await?;
    let may_be = |status| status == 409 || target.profile.may_refuse_reuse_with(status);
    expect(status(&second).is_some_and(may_be), &statuses(may_be), &second)
}

pub(super) async fn other_query(target: &Target) -> CheckResult {
    let request = target.fresh(Order::size(100));
    target.send(&request).await.ok();
    let other = request.suffix("?hapax-check=other-query");
    refused(target, &other, Profile::may_refuse_reuse_with).await
}

pub(super) async fn other_path(target: &Target) -> CheckResult {
    const OTHER: &str = "/other-path";
    let executions = Executions::from_now(target).await?;
    target.send(&target.fresh(Order::size(100)).suffix(OTHER)).await.ok();
    if executions.count().await? == 0 {
        let why = format!("the service runs nothing at a second path ({OTHER} below the first)");
        return Err(NotHeld::Skipped(why));
    }
    let request = target.fresh(Order::size(100));
    let first = target.send(&request).await;
    let executions = Executions::from_now(target).await?;
    let other = target.send(&request.suffix(OTHER)).await;
    match executions.count().await? {
        0 if is_refusal(&other) => Ok(()),
        0 => Err(wrong_executions(
            "another run, or a refusal",
            format!("the first path's answer ({})", seen(&first)),
        )),
        1 => expect(other.is_ok(), "an answer", &other),
        ran => Err(wrong_executions("1 execution", format!("{ran} executions"))),
    }
}

pub(super) async fn other_caller(target: &Target) -> CheckResult {
    let Some((name, value)) = target.other_caller() else {
        let why = "give --other-caller 'NAME: VALUE', since --header says who is asking";
        return Err(NotHeld::Skipped(why.into()));
    };
    let executions = Executions::from_now(target).await?;
    let request = target.fresh(Order::size(100));
    target.send(&request).await.ok();
    let other = target.send(&request.header(name, value)).await;
    executions.expect(2, "each caller has its own keys").await?;
    let is_success = other.as_ref().is_ok_and(|answer| answer.status.is_success());
    expect(is_success, "an answer of its own", &other)?;
    let is_replay = other.is_ok_and(|answer| answer.headers.contains_key("idempotent-replayed"));
    if is_replay {
        return Err(wrong_answer("an answer of its own", "a replay of the other caller's"));
    }
    Ok(())
}
