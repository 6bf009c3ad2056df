//! Requests with one key at the same time.

use std::time::Duration;

use futures_util::future::join_all;

use super::{
    Answer, CheckResult, Executions, NotHeld, Order, OrderRequest, Profile, Target, expect,
    has_status, overlapping, same, seen, when_settled, wrong_answer,
};

const AT_ONCE: usize = 50;

/// Sends one request many times at once.
async fn race(target: &Target) -> (OrderRequest, Vec<Answer>) {
    let order = Order { delay_ms: Some(300), size: Some(100), ..Order::default() };
    let request = target.fresh(order);
    let answers = join_all((0..AT_ONCE).map(|_| target.send(&request))).await;
    (request, answers)
}

pub(super) async fn runs_once(target: &Target) -> CheckResult {
    let executions = Executions::from_now(target).await?;
    race(target).await;
    executions.expect(1, "50 requests at once have one key").await
}

pub(super) async fn one_answer(target: &Target) -> CheckResult {
    let executions = Executions::from_now(target).await?;
    let (request, at_once) = race(target).await;
    let ran = executions.count().await?;
    if ran > 1 {
        // Answers of several runs may look alike and are not one answer.
        return Err(NotHeld::Skipped(format!("{ran} of the 50 ran, see `race`")));
    }
    let settled = when_settled(target, &request).await;
    for answer in &at_once {
        let expected = format!("409, or the one answer ({})", seen(&settled));
        expect(has_status(answer, 409) || same(answer, &settled), &expected, answer)?;
    }
    let succeeded = at_once.iter().any(|answer| same(answer, &settled));
    expect(succeeded, "the answer for at least one of the 50", &at_once[0])
}

pub(super) async fn in_flight(target: &Target) -> CheckResult {
    let executions = Executions::from_now(target).await?;
    let request = target.fresh(Order { size: Some(100), ..Order::slow(1500) });
    let (first, second) = overlapping(target, &request, &request).await?;
    executions.expect(1, "the second request came while the first one ran").await?;
    let expected = format!("409, or the first one's answer ({})", seen(&first));
    expect(has_status(&second, 409) || same(&first, &second), &expected, &second)?;
    let tells_when = |answer: &Answer| {
        answer.as_ref().is_ok_and(|answer| answer.headers.contains_key("retry-after"))
    };
    let must_tell = target.profile == Profile::Hapax && has_status(&second, 409);
    expect(!must_tell || tells_when(&second), "409 with Retry-After", &second)
}

pub(super) async fn client_leaves(target: &Target) -> CheckResult {
    let executions = Executions::from_now(target).await?;
    let request = target.fresh(Order { size: Some(100), ..Order::slow(1000) });
    target.send_and_leave(&request, Duration::from_millis(400)).await;
    let answer = when_settled(target, &request).await;
    executions.expect(1, "the client left and sent the request again").await?;
    match answer {
        Ok(answer) if answer.status.is_success() => Ok(()),
        other => Err(wrong_answer("the answer of the one run", seen(&other))),
    }
}
