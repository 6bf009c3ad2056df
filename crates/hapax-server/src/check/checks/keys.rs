//! Keys: which are accepted, and which are refused.

use super::{
    CheckResult, Executions, Order, Profile, Target, expect, is_refusal, refused, same, seen,
    wrong_executions,
};
use uuid::Uuid;

const LONGEST: usize = 255;

fn unique(length: usize) -> String {
    let mut key = Uuid::new_v4().to_string();
    key.extend(std::iter::repeat_n('k', length.saturating_sub(key.len())));
    key
}

pub(super) async fn without_key(target: &Target) -> CheckResult {
    let executions = Executions::from_now(target).await?;
    let request = target.without_key(Order::size(100));
    let answers = [target.send(&request).await, target.send(&request).await];
    match (executions.count().await?, answers.iter().all(is_refusal)) {
        (2, false) | (0, true) => Ok(()),
        (ran, _) => {
            let seen = format!("{ran} executions of 2 requests; {}", seen(&answers[1]));
            Err(wrong_executions("each runs, or each is refused", seen))
        }
    }
}

pub(super) async fn letter_case(target: &Target) -> CheckResult {
    let executions = Executions::from_now(target).await?;
    let key = unique(0);
    for key in [format!("{key}-ab"), format!("{key}-AB")] {
        let key = target.profile.header_value(&key);
        let sent = target.without_key(Order::size(100)).raw_keys(&[key.as_bytes()]);
        target.send(&sent).await.ok();
    }
    executions.expect(2, "the keys differ in letter case").await
}

pub(super) async fn quoted(target: &Target) -> CheckResult {
    let executions = Executions::from_now(target).await?;
    let key = unique(0);
    let with = |key: &str| target.without_key(Order::size(100)).raw_keys(&[key.as_bytes()]);
    let bare = target.send(&with(&key)).await;
    let quoted = target.send(&with(&format!("\"{key}\""))).await;
    executions.expect(1, "quotes are not part of the key (RFC 8941)").await?;
    expect(same(&bare, &quoted), "the answer of the same key without quotes", &quoted)
}

pub(super) async fn longest(target: &Target) -> CheckResult {
    let executions = Executions::from_now(target).await?;
    let key = unique(LONGEST);
    let request = target.without_key(Order::size(100)).raw_keys(&[key.as_bytes()]);
    let (first, second) = (target.send(&request).await, target.send(&request).await);
    executions.expect(1, "the key has 255 bytes").await?;
    expect(same(&first, &second), &format!("the first answer ({})", seen(&first)), &second)
}

pub(super) async fn too_long(target: &Target) -> CheckResult {
    refused_key(target, &[unique(LONGEST + 1).as_bytes()]).await
}

pub(super) async fn empty(target: &Target) -> CheckResult {
    refused_key(target, &[b""]).await
}

pub(super) async fn doubled(target: &Target) -> CheckResult {
    refused_key(target, &[unique(0).as_bytes(), unique(0).as_bytes()]).await
}

pub(super) async fn not_ascii(target: &Target) -> CheckResult {
    let key = target.profile.header_value(&format!("{}-é", unique(0)));
    if target.profile != Profile::Ietf {
        return refused_key(target, &[key.as_bytes()]).await;
    }
    // RFC 8941, 4.2: a field that cannot be parsed is treated as if it were not there.
    let executions = Executions::from_now(target).await?;
    let request = target.without_key(Order::size(100)).raw_keys(&[key.as_bytes()]);
    let answers = [target.send(&request).await, target.send(&request).await];
    match (executions.count().await?, answers.iter().all(is_refusal)) {
        (2, false) | (0, true) => Ok(()),
        (ran, _) => {
            let seen = format!("{ran} executions of 2 requests; {}", seen(&answers[1]));
            Err(wrong_executions("each is refused, or runs as if it had no key", seen))
        }
    }
}

async fn refused_key(target: &Target, keys: &[&[u8]]) -> CheckResult {
    let request = target.without_key(Order::size(100)).raw_keys(keys);
    refused(target, &request, Profile::may_refuse_key_with).await
}
