//! Identity, order, state and closing.

use std::slice::from_ref;

use bytes::Bytes;
use hapax_core::Key;
use hapax_core::log::{Appended, Cursor, MAX_APPEND, MAX_NUMBER};

use super::{
    append, attach, attach_all, closing, entry, event, event_with_payload, offsets, published,
};
use crate::context::{LawContext, concurrently};
use crate::suite::laws;

laws![
    key job;
    job_without_events_has_no_log,
    offsets_start_at_one_without_gaps,
    events_of_one_call_are_appended_in_their_order,
    append_of_the_maximum_number_of_events_works,
    event_repeated_is_a_duplicate_at_its_first_offset,
    event_twice_in_one_call_is_appended_once,
    event_with_other_content_is_a_conflict,
    duplicate_or_conflicting_event_changes_nothing,
    stage_is_part_of_the_identity,
    jobs_domains_and_tenants_are_separate,
    mixed_append_answers_each_event_separately,
    concurrent_appends_publish_an_event_once,
    offsets_have_no_gaps_under_concurrent_appends,
    state_follows_the_highest_seq,
    late_and_sparse_seqs_are_appended,
    state_is_the_later_of_two_events_with_equal_seq,
    closing_event_closes_the_job,
    duplicates_and_conflicts_are_known_after_closing,
    event_after_a_closing_one_in_its_call_is_refused,
    late_events_are_appended_until_the_job_closes,
    payloads_are_returned_unchanged,
    payload_of_one_mebibyte_is_kept,
    hostile_job_names_are_kept_apart,
    job_names_and_stages_of_255_bytes_work,
    log_survives_a_restart,
];

async fn job_without_events_has_no_log(s: LawContext, job: Key) {
    assert_eq!(attach(&s, &job, 0, 10).await, None);
    assert_eq!(append(&s, &[]).await, []);
    assert_eq!(attach(&s, &job, 0, 10).await, None);
}

async fn offsets_start_at_one_without_gaps(s: LawContext, job: Key) {
    let mut epochs = Vec::new();
    for i in 1..=5 {
        let at = published(&s, &[event(&job, "vision", i * 10)]).await[0];
        assert_eq!(at.offset, i);
        epochs.push(at.epoch);
    }
    epochs.dedup();
    assert_eq!(epochs.len(), 1, "one epoch per lifetime");
    let attached = attach_all(&s, &job).await;
    assert_eq!((attached.head.first, attached.head.last), (1, 5));
    assert_eq!(attached.head.end(), Cursor { epoch: epochs[0], offset: 5 });
    assert_eq!(offsets(&attached), [1, 2, 3, 4, 5]);
}

async fn events_of_one_call_are_appended_in_their_order(s: LawContext, _: Key) {
    let jobs = [s.job("a"), s.job("b"), s.job("c")];
    let events: Vec<_> = (0..30).map(|i| event(&jobs[i % 3], "s", 100 - i as u64)).collect();
    let at = published(&s, &events).await;
    for (n, job) in jobs.iter().enumerate() {
        let of_job = events.iter().zip(&at).skip(n).step_by(3);
        let expected: Vec<_> = of_job.map(|(event, at)| entry(event, *at)).collect();
        let attached = attach_all(&s, job).await;
        assert_eq!(offsets(&attached), (1..=10).collect::<Vec<_>>());
        assert_eq!(attached.entries, expected);
    }
}

async fn append_of_the_maximum_number_of_events_works(s: LawContext, job: Key) {
    let events: Vec<_> = (0..MAX_APPEND as u64).map(|seq| event(&job, "s", seq)).collect();
    let at = published(&s, &events).await;
    assert!(at.iter().map(|at| at.offset).eq(1..=MAX_APPEND as u64));
    assert_eq!(attach_all(&s, &job).await.entries.len(), MAX_APPEND);
}

async fn event_repeated_is_a_duplicate_at_its_first_offset(s: LawContext, job: Key) {
    let events = [event(&job, "s", 1), event(&job, "s", 2), event(&job, "s", 3)];
    let at = published(&s, &events).await;
    let other = s.reopened().await;
    for node in [&s, &other] {
        for (event, at) in events.iter().zip(&at).rev() {
            assert_eq!(append(node, from_ref(event)).await, [Appended::Duplicate(*at)]);
        }
    }
    assert_eq!(attach_all(&s, &job).await.head.last, 3);
}

async fn event_twice_in_one_call_is_appended_once(s: LawContext, job: Key) {
    let (one, two) = (event(&job, "s", 1), event(&job, "s", 2));
    let other = event_with_payload(&job, "s", 1, "else".into());
    let answers = append(&s, &[one.clone(), one, two, other]).await;
    let [Appended::Published(first), again, Appended::Published(second), conflict] = answers[..]
    else {
        panic!("{answers:?}")
    };
    assert_eq!((again, conflict), (Appended::Duplicate(first), Appended::Conflict));
    assert_eq!((first.offset, second.offset), (1, 2));
}

async fn event_with_other_content_is_a_conflict(s: LawContext, job: Key) {
    published(&s, &[event(&job, "s", 1)]).await;
    assert_eq!(
        append(&s, &[event_with_payload(&job, "s", 1, "else".into())]).await,
        [Appended::Conflict]
    );
    assert_eq!(attach_all(&s, &job).await.head.last, 1);
}

async fn duplicate_or_conflicting_event_changes_nothing(s: LawContext, job: Key) {
    let events = [event(&job, "s", 5), event(&job, "s", 3)];
    let at = published(&s, &events).await;
    let before = attach_all(&s, &job).await;
    let again =
        [closing(events[0].clone()), closing(event_with_payload(&job, "s", 3, "else".into()))];
    assert_eq!(append(&s, &again).await, [Appended::Duplicate(at[0]), Appended::Conflict]);
    let mut after = attach_all(&s, &job).await;
    after.head.expires_in = before.head.expires_in;
    assert_eq!(after, before);
    assert_eq!(published(&s, &[event(&job, "s", 4)]).await[0].offset, 3);
}

async fn stage_is_part_of_the_identity(s: LawContext, job: Key) {
    let events = [event(&job, "vision", 7), event(&job, "visio", 7), event(&job, "n", 7)];
    assert_eq!(published(&s, &events).await.len(), 3);
    assert_eq!(attach_all(&s, &job).await.head.last, 3);
}

async fn jobs_domains_and_tenants_are_separate(s: LawContext, _: Key) {
    let jobs = [
        Key::job(&s.tenant, "scan", "1").unwrap(),
        Key::job(&s.tenant, "scan", "2").unwrap(),
        Key::job(&s.tenant, "scans", "1").unwrap(),
        Key::job(&s.tenant.scoped("ab").unwrap(), "scan", "1").unwrap(),
        Key::job(&s.other_tenant(), "scan", "1").unwrap(),
    ];
    for (i, job) in jobs.iter().enumerate() {
        let said = closing(event_with_payload(job, "s", 1, format!("{i}").into()));
        let at = published(&s, &[said]).await;
        assert_eq!(at[0].offset, 1, "another job's events are in its log");
    }
    for (i, job) in jobs.iter().enumerate() {
        assert_eq!(attach_all(&s, job).await.head.state.as_ref().unwrap().payload, format!("{i}"));
    }
}

async fn mixed_append_answers_each_event_separately(s: LawContext, _: Key) {
    let [open, closed, fresh] = ["open", "closed", "fresh"].map(|name| s.job(name));
    let at = published(&s, &[event(&open, "s", 1), closing(event(&closed, "s", 1))]).await;
    let call = [
        event(&closed, "s", 2),
        event(&open, "s", 2),
        event(&open, "s", 1),
        event(&fresh, "s", 1),
        event_with_payload(&open, "s", 1, "else".into()),
        event(&closed, "s", 1),
    ];
    let answers = append(&s, &call).await;
    assert_eq!(answers[0], Appended::Closed);
    assert_eq!(answers[1], Appended::Published(Cursor { offset: 2, ..at[0] }));
    assert_eq!(answers[2], Appended::Duplicate(at[0]));
    assert!(matches!(answers[3], Appended::Published(at) if at.offset == 1));
    assert_eq!(answers[4], Appended::Conflict);
    assert_eq!(answers[5], Appended::Duplicate(at[1]));
}

async fn concurrent_appends_publish_an_event_once(s: LawContext, _: Key) {
    let nodes = [s.clone(), s.reopened().await];
    for round in 0..4 {
        let one = event(&s.job(&format!("k{round}")), "s", 1);
        let appends = (0..16).map(|i| {
            let (s, one) = (nodes[i % 2].clone(), one.clone());
            async move { append(&s, &[one]).await[0] }
        });
        let mut published = 0;
        for answer in concurrently(appends).await {
            match answer {
                Appended::Published(at) if at.offset == 1 => published += 1,
                Appended::Duplicate(at) if at.offset == 1 => {}
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(published, 1);
    }
}

/// Twelve tasks append to two jobs, in calls of one to five; every event is sent by two of them.
async fn offsets_have_no_gaps_under_concurrent_appends(s: LawContext, _: Key) {
    let nodes = [s.clone(), s.reopened().await];
    let jobs = [s.job("a"), s.job("b")];
    let tasks = (0..12_usize).map(|task| {
        let (s, jobs) = (nodes[task % 2].clone(), jobs.clone());
        async move {
            let stage = format!("stage{}", task / 2);
            let events: Vec<_> = (0..30).map(|i| event(&jobs[i % 2], &stage, i as u64)).collect();
            let mut answers = Vec::new();
            for call in events.chunks(1 + task % 5) {
                answers.extend(append(&s, call).await.into_iter().zip(call.to_vec()));
            }
            answers
        }
    });
    let mut seen = Vec::new();
    let mut published = 0;
    for (answer, event) in concurrently(tasks).await.into_iter().flatten() {
        let (Appended::Published(at) | Appended::Duplicate(at)) = answer else {
            panic!("{answer:?}")
        };
        published += usize::from(matches!(answer, Appended::Published(_)));
        seen.push((event, at));
    }
    assert_eq!(published, 180, "each event once");
    for job in &jobs {
        let attached = attach_all(&s, job).await;
        assert_eq!(offsets(&attached), (1..=90).collect::<Vec<_>>());
        for (event, at) in seen.iter().filter(|(event, _)| event.job == *job) {
            let index = usize::try_from(at.offset).unwrap() - 1;
            assert_eq!(attached.entries[index], entry(event, *at), "not where it was said to be");
        }
    }
}

async fn state_follows_the_highest_seq(s: LawContext, job: Key) {
    for (seq, state) in [(10, 10), (12, 12), (11, 12), (3, 12), (40, 40), (39, 40)] {
        published(&s, &[event(&job, "s", seq)]).await;
        let head = attach_all(&s, &job).await.head;
        assert_eq!(head.state.as_ref().unwrap().seq, state, "after {seq}");
        assert_eq!(head.state.as_ref().unwrap().payload, format!("s {state}"));
    }
    let attached = attach_all(&s, &job).await;
    assert_eq!(Some(&attached.entries[4]), attached.head.state.as_ref());
    let late = [event(&job, "s", 100), event(&job, "s", 99)];
    published(&s, &late).await;
    assert_eq!(
        attach_all(&s, &job).await.head.state.as_ref().unwrap().seq,
        100,
        "within one call as well"
    );
}

async fn late_and_sparse_seqs_are_appended(s: LawContext, job: Key) {
    for (i, seq) in [MAX_NUMBER, 0, 7, MAX_NUMBER - 1, 1].into_iter().enumerate() {
        assert_eq!(published(&s, &[event(&job, "s", seq)]).await[0].offset, i as u64 + 1);
    }
    let attached = attach_all(&s, &job).await;
    let seqs: Vec<_> = attached.entries.iter().map(|entry| entry.seq).collect();
    assert_eq!(seqs, [MAX_NUMBER, 0, 7, MAX_NUMBER - 1, 1]);
    assert_eq!(attached.head.state.as_ref().unwrap().seq, MAX_NUMBER);
}

async fn state_is_the_later_of_two_events_with_equal_seq(s: LawContext, job: Key) {
    for stage in ["first", "second", "a-third"] {
        published(&s, &[event(&job, stage, 9)]).await;
        assert_eq!(&*attach_all(&s, &job).await.head.state.as_ref().unwrap().stage, stage);
    }
}

async fn closing_event_closes_the_job(s: LawContext, job: Key) {
    published(&s, &[event(&job, "s", 1)]).await;
    assert!(!attach_all(&s, &job).await.head.closed);
    published(&s, &[closing(event(&job, "done", 51))]).await;
    let before = attach_all(&s, &job).await;
    assert!(before.head.closed);
    assert_eq!(before.entries.iter().map(|e| e.closes).collect::<Vec<_>>(), [false, true]);
    let refused = [event(&job, "s", 2), closing(event(&job, "s", 60))];
    assert_eq!(append(&s, &refused).await, [Appended::Closed, Appended::Closed]);
    let mut after = attach_all(&s, &job).await;
    after.head.expires_in = before.head.expires_in;
    assert_eq!(after, before);
}

async fn duplicates_and_conflicts_are_known_after_closing(s: LawContext, job: Key) {
    let events = [event(&job, "s", 1), closing(event(&job, "done", 51))];
    let at = published(&s, &events).await;
    let duplicates: Vec<_> = at.iter().map(|at| Appended::Duplicate(*at)).collect();
    assert_eq!(append(&s, &events).await, duplicates);
    let others = [
        event_with_payload(&job, "s", 1, "else".into()),
        event_with_payload(&job, "done", 51, "else".into()),
    ];
    assert_eq!(append(&s, &others).await, [Appended::Conflict, Appended::Conflict]);
}

async fn event_after_a_closing_one_in_its_call_is_refused(s: LawContext, job: Key) {
    let call = [event(&job, "s", 1), closing(event(&job, "s", 2)), event(&job, "s", 3)];
    let answers = append(&s, &call).await;
    assert!(matches!(answers[1], Appended::Published(at) if at.offset == 2));
    assert_eq!(answers[2], Appended::Closed);
    assert_eq!(attach_all(&s, &job).await.head.last, 2);
}

async fn late_events_are_appended_until_the_job_closes(s: LawContext, job: Key) {
    let events = [event(&job, "s", 50), event(&job, "s", 10), closing(event(&job, "s", 20))];
    published(&s, &events).await;
    let attached = attach_all(&s, &job).await;
    assert_eq!(attached.entries.iter().map(|e| e.seq).collect::<Vec<_>>(), [50, 10, 20]);
    assert_eq!((attached.head.state.as_ref().unwrap().seq, attached.head.closed), (50, true));
}

async fn payloads_are_returned_unchanged(s: LawContext, job: Key) {
    let every_byte = Bytes::from((0..=255).collect::<Vec<u8>>());
    let payloads =
        [every_byte, Bytes::new(), "{}".into(), Bytes::from_static(b"\xff\xfe\0$1\r\n\\x00'\"")];
    for (seq, payload) in payloads.iter().enumerate() {
        published(&s, &[event_with_payload(&job, "s", seq as u64, payload.clone())]).await;
        assert_eq!(attach_all(&s, &job).await.head.state.as_ref().unwrap().payload, *payload);
    }
    let kept: Vec<_> = attach_all(&s, &job).await.entries.into_iter().map(|e| e.payload).collect();
    assert_eq!(kept, payloads);
}

async fn payload_of_one_mebibyte_is_kept(s: LawContext, job: Key) {
    let payload = Bytes::from((0..1 << 20).map(|i| (i % 251) as u8).collect::<Vec<_>>());
    published(&s, &[event_with_payload(&job, "s", 1, payload.clone())]).await;
    let attached = attach_all(&s, &job).await;
    assert!(
        attached.entries[0].payload == payload
            && attached.head.state.as_ref().unwrap().payload == payload
    );
}

async fn hostile_job_names_are_kept_apart(s: LawContext, _: Key) {
    let names = ["a:b", "a", "a}", "{a}", "a%3Ab", "%", "*", "a'b\"", "\\", "$", "a,b", "a@1"];
    for domain in names {
        for name in names {
            let job = Key::job(&s.tenant, domain, name).unwrap();
            let events = [event(&job, name, 1), event(&job, domain, 2)];
            assert_eq!(published(&s, &events).await[1].offset, 2);
        }
    }
}

async fn job_names_and_stages_of_255_bytes_work(s: LawContext, _: Key) {
    let long = "n".repeat(255);
    let job = Key::job(&s.tenant, &long, &long).unwrap();
    let [one, two] = [event(&job, &long, 1), event(&job, &long[1..], 1)];
    let at = published(&s, &[one.clone(), two]).await;
    assert_eq!(attach_all(&s, &job).await.entries[0], entry(&one, at[0]));
}

async fn log_survives_a_restart(s: LawContext, job: Key) {
    let one = event(&job, "s", 1);
    let first = published(&s, from_ref(&one)).await[0];
    let other = s.reopened().await;
    assert_eq!(attach_all(&other, &job).await.entries, [entry(&one, first)]);
    let second = published(&other, &[event(&job, "s", 2)]).await[0];
    assert_eq!(second, Cursor { offset: 2, ..first });
    assert_eq!(offsets(&attach_all(&s, &job).await), [1, 2]);
}
