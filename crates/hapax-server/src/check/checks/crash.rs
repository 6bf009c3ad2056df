//! A crash: answers outlive it, and a request that was running is not run again unasked.

use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::{
    Answer, CheckResult, Executions, NotHeld, Order, OrderRequest, Target, expect, fails,
    has_status, same, seen,
};
use crate::check::restart::Restart;
use crate::check::target::problem_code;

fn restart(target: &Target) -> Result<&Restart, NotHeld> {
    target.restart.as_ref().ok_or_else(|| NotHeld::Skipped("give --restart CMD".into()))
}

pub(super) async fn keeps_answers(target: &Target) -> CheckResult {
    let restart = restart(target)?;
    let request = target.fresh(Order::size(100));
    let first = target.send(&request).await;
    restart.run(target).await?;
    let executions = Executions::from_now(target).await?;
    let second = target.send(&request).await;
    executions.expect(0, "the request ran before the restart").await?;
    expect(same(&first, &second), &format!("the first answer ({})", seen(&first)), &second)
}

pub(super) async fn in_the_middle(target: &Target) -> CheckResult {
    let restart = restart(target)?;
    let before = target.executions().await?;
    let request = target.fresh(Order { size: Some(100), ..Order::slow(4000) });
    let crash = async {
        let counted = target.counted_more_than(before, Duration::from_secs(2)).await?;
        restart.run(target).await?;
        Ok::<_, NotHeld>(counted > before)
    };
    let (_, was_counted) = tokio::join!(target.send(&request), crash);
    let (was_counted, executions) = (was_counted?, Executions::from_now(target).await?);
    let last = when_decided(target, &request).await;
    let ran = executions.count().await?;
    if was_counted && ran > 0 {
        let seen = format!("{} executions, and then {}", ran + 1, seen(&last));
        return Err(fails("no second run: the first one may have had its effect", seen));
    }
    match &last {
        Ok(answer) if answer.status.is_success() => Ok(()),
        Ok(answer) if problem_code(answer).as_deref() == Some("in-progress") => {
            let seen =
                format!("in progress {:?} after the crash, with nothing running", target.timeout);
            Err(fails("an answer, or an error that says the outcome is unknown", seen))
        }
        // Without a problem document nothing tells *in progress* from *unknown*: ask what the former looks like.
        Ok(answer) if problem_code(answer).is_none() && has_status(&last, 409) => {
            let running = target.fresh(Order::slow(1500));
            let before = target.executions().await?;
            let duplicate = async {
                target.counted_more_than(before, Duration::from_millis(500)).await?;
                Ok::<_, NotHeld>(target.send(&running).await)
            };
            let (_, duplicate) = tokio::join!(target.send(&running), duplicate);
            let is_wedged = same(&duplicate?, &last);
            expect(!is_wedged, "another answer than that of a request that runs", &last)
        }
        _ => expect(has_status(&last, 409), "the answer, or 409", &last),
    }
}

/// The answer once it is final: a success, an error that says that a retry is no use, or whatever it is
/// when the time is over.
async fn when_decided(target: &Target, request: &OrderRequest) -> Answer {
    let deadline = Instant::now() + target.timeout;
    loop {
        let answer = target.send(request).await;
        let is_final = answer.as_ref().is_ok_and(|answer| {
            let body: serde_json::Value = serde_json::from_slice(&answer.body).unwrap_or_default();
            let is_waiting =
                matches!(answer.status.as_u16(), 409 | 423 | 425 | 429 | 502 | 503 | 504);
            !is_waiting || body.get("retryable") == Some(&false.into())
        });
        if is_final || Instant::now() > deadline {
            return answer;
        }
        sleep(Duration::from_millis(250)).await;
    }
}
