//! A crash: answers outlive it, and a request that was running is not run again unasked.

use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::{
    Answer, CheckResult, Executions, NotHeld, Order, OrderRequest, Profile, Target, expect,
    has_status, overlapping, same, says_wait, seen, wrong_answer, wrong_executions,
};
use crate::check::restart::Restart;

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
    let (last, took) = when_decided(target, &request).await;
    let ran = executions.count().await?;
    if was_counted && ran > 0 {
        let seen = format!("{} executions, and then {}", ran + 1, seen(&last));
        return Err(wrong_executions("no second run: the first one may have had its effect", seen));
    }
    let expected = "the answer, or an error that says the outcome is unknown";
    match &last {
        Ok(answer) if answer.status.is_success() => Ok(()),
        Ok(_) if is_final(&last) => {
            let may_have = target.profile != Profile::Hapax || has_status(&last, 409);
            expect(may_have, "the answer, or 409", &last)
        }
        Ok(_) if looks_running(target, &last, took).await? => {
            let during = target.timeout;
            let seen = format!("in progress {during:?} after the crash, with nothing running");
            Err(wrong_answer(expected, format!("{seen}: {}", super::seen(&last))))
        }
        _ => expect(has_status(&last, 409), expected, &last),
    }
}

/// Whether a duplicate of a request that runs, and runs for longer than the answer took, gets such an answer too.
async fn looks_running(target: &Target, answer: &Answer, took: Duration) -> Result<bool, NotHeld> {
    let longer = took + Duration::from_millis(1500);
    let running = target.fresh(Order::slow(longer.as_millis() as u64));
    let (_, duplicate) = overlapping(target, &running, &running).await?;
    Ok(match (answer, &duplicate) {
        (Ok(answer), Ok(duplicate)) => {
            answer.status == duplicate.status && pattern(&answer.body) == pattern(&duplicate.body)
        }
        _ => false,
    })
}

/// The text without what differs from request to request: each word with a digit in it, such as a key, a time or
/// a number, becomes `#`.
fn pattern(body: &[u8]) -> String {
    let is_word = |letter: char| letter.is_alphanumeric() || matches!(letter, '-' | '_');
    let text = String::from_utf8_lossy(body);
    let parts = text.split_inclusive(|letter| !is_word(letter)).map(|part| {
        let word = part.trim_end_matches(|letter| !is_word(letter));
        let has_digit = word.contains(|letter: char| letter.is_ascii_digit());
        if has_digit { format!("#{}", &part[word.len()..]) } else { part.to_owned() }
    });
    parts.collect()
}

/// Whether the answer stays as it is, for all that it says.
fn is_final(answer: &Answer) -> bool {
    answer.as_ref().is_ok_and(|response| {
        let body: serde_json::Value = serde_json::from_slice(&response.body).unwrap_or_default();
        !says_wait(answer) || body.get("retryable") == Some(&false.into())
    })
}

/// The answer once it is final, or whatever it is when the time is over, and how long it took.
async fn when_decided(target: &Target, request: &OrderRequest) -> (Answer, Duration) {
    let deadline = Instant::now() + target.timeout;
    loop {
        let sent = Instant::now();
        let answer = target.send(request).await;
        if is_final(&answer) || Instant::now() > deadline {
            return (answer, sent.elapsed());
        }
        sleep(Duration::from_millis(250)).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn check_pattern_leaves_keys_and_numbers_out() {
        let one = r#"{"detail":"key 5d8c0f1e-7a (try 3 at 2026-11-17T04:20:28Z) is in use"}"#;
        let other = r#"{"detail":"key 9e01aa77-00 (try 4 at 2026-11-17T04:20:59Z) is in use"}"#;
        assert_eq!(pattern(one.as_bytes()), pattern(other.as_bytes()));
        assert_ne!(pattern(b"key 1 is in use"), pattern(b"the outcome of key 1 is unknown"));
    }
}
