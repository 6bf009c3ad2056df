//! Replays: the same answer, its headers, a marker, an expiry.

use std::collections::BTreeMap;
use std::time::{Duration, UNIX_EPOCH};

use hapax::{Clock, SystemClock};
use hapax_http_client::FullResponse;
use tokio::time::{Instant, sleep};

use super::{
    CheckResult, Executions, NotHeld, Order, Profile, Target, expect, replayed, same, wrong_answer,
    wrong_executions,
};

pub(super) async fn replay(target: &Target) -> CheckResult {
    let order = Order { status: Some(201), size: Some(100), ..Order::default() };
    replayed(target, order).await.map(drop)
}

pub(super) async fn headers(target: &Target) -> CheckResult {
    let (first, second) = replayed(target, Order::size(100)).await?;
    // The other rules do not say that a replay leaves anything of the first answer out.
    if target.profile == Profile::Hapax && second.headers.contains_key("set-cookie") {
        return Err(wrong_answer("no Set-Cookie in a replay", "Set-Cookie"));
    }
    let (first, second) = (lasting_headers(&first), lasting_headers(&second));
    let missing: Vec<_> = first.iter().filter(|header| !second.contains_key(header.0)).collect();
    let changed: Vec<_> = second
        .iter()
        .filter(|(name, value)| first.get(*name).is_some_and(|was| was != *value))
        .collect();
    match (missing.is_empty(), changed.is_empty()) {
        (true, true) => Ok(()),
        (false, _) => {
            Err(wrong_answer("the headers of the first answer", format!("without {missing:?}")))
        }
        (_, false) => Err(wrong_answer("the headers of the first answer", format!("{changed:?}"))),
    }
}

/// The headers that describe the answer; not those of the connection, of the moment, or of a replay.
fn lasting_headers(answer: &FullResponse) -> BTreeMap<String, Vec<String>> {
    let passing = [
        "date",
        "connection",
        "keep-alive",
        "transfer-encoding",
        "content-length",
        "set-cookie",
        "idempotent-replayed",
        "idempotency-expires",
        "age",
        "server-timing",
        "x-response-time",
    ];
    let names = answer.headers.keys().map(hyper::header::HeaderName::as_str);
    let values = |name: &str| {
        let values = answer.headers.get_all(name).iter();
        values.map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned()).collect()
    };
    names.filter(|name| !passing.contains(name)).map(|name| (name.into(), values(name))).collect()
}

pub(super) async fn marker(target: &Target) -> CheckResult {
    let (first, second) = replayed(target, Order::size(10)).await?;
    let marker = |answer: &FullResponse| {
        answer.headers.get("idempotent-replayed").map(|value| value.as_bytes().to_vec())
    };
    let expected = "Idempotent-Replayed: true in the second answer alone";
    let is_marked = marker(&second).is_some_and(|value| value.eq_ignore_ascii_case(b"true"));
    match (marker(&first), is_marked) {
        (None, true) => Ok(()),
        (Some(_), _) => Err(wrong_answer(expected, "the first answer has it")),
        (None, false) => Err(wrong_answer(expected, "the second answer has none")),
    }
}

pub(super) async fn expires(target: &Target) -> CheckResult {
    let (_, second) = replayed(target, Order::size(10)).await?;
    let expected = "Idempotency-Expires with a time in the future";
    let Some(value) = second.headers.get("idempotency-expires") else {
        return Err(wrong_answer(expected, "no such header"));
    };
    let text = String::from_utf8_lossy(value.as_bytes()).into_owned();
    let time = httpdate::parse_http_date(&text);
    let time = time.or_else(|_| humantime::parse_rfc3339_weak(&text).map_err(drop));
    match time {
        Ok(time) if time > UNIX_EPOCH + Duration::from_millis(SystemClock.now().0) => Ok(()),
        _ => Err(wrong_answer(expected, text)),
    }
}

pub(super) async fn retention(target: &Target) -> CheckResult {
    let Some(retention) = target.retention else {
        return Err(NotHeld::Skipped("give --retention, if it is short enough to wait for".into()));
    };
    let (executions, request) =
        (Executions::from_now(target).await?, target.fresh(Order::size(10)));
    let began = Instant::now();
    let first = target.send(&request).await;
    loop {
        let sent_after = began.elapsed();
        let again = target.send(&request).await;
        // A slow service may have got this one later than it was sent, so only a clear difference counts.
        let (arrived_within, is_due) = (began.elapsed(), sent_after >= retention);
        if executions.count().await? > 1 {
            let seen = format!("ran again within {arrived_within:?}");
            let is_early = arrived_within < retention.mul_f64(0.9);
            return if is_early {
                Err(wrong_executions("an answer for the retention", seen))
            } else {
                Ok(())
            };
        }
        if !is_due {
            expect(same(&first, &again), "the first answer, for the retention", &again)?;
        }
        if sent_after > retention * 2 + Duration::from_secs(10) {
            let seen = format!("no other run within {sent_after:?}");
            return Err(wrong_executions("the key is free after the retention", seen));
        }
        sleep((retention / 10).min(Duration::from_secs(1))).await;
    }
}
