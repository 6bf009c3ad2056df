//! Following jobs, over HTTP/1.1 (socket sink) and HTTP/1.0 (body sink).

use serde_json::json;

use crate::http::events_client::{Event, Listener, WAYS};
use crate::support::eventually;
use crate::support::server::{Server, Setup};
use rustix::process::Signal;

fn offsets(events: &[Event]) -> Vec<u64> {
    events.iter().map(Event::offset).collect()
}

#[test]
fn stream_sends_whole_log_then_new_events_until_the_last() {
    let server = Server::start();
    for way in WAYS {
        let job = format!("job-{}", way.len() + usize::from(way.ends_with('1')));
        let (_, epoch) = server.publish(&job, "vision", 10);
        let mut stream = server.follow(way, &job, "");
        assert_eq!(stream.status, 200);
        assert_eq!(stream.header("content-type"), Some("text/event-stream"));
        assert_eq!(stream.header("cache-control"), Some("no-store"));
        let first = stream.expect();
        assert_eq!((first.id(), first.name.as_str()), (format!("{epoch}-1").as_str(), "vision"));
        assert_eq!(first.data["data"], json!({"n": 10}));
        assert!((1000..=3000).contains(&stream.retry.unwrap()), "{:?}", stream.retry);
        server.publish(&job, "rule", 20);
        assert_eq!(stream.expect().id(), format!("{epoch}-2"));
        server.finish(&job);
        let last = stream.expect();
        assert_eq!((last.name.as_str(), last.offset()), ("done", 3));
        assert_eq!(stream.next(), None);
        assert!(stream.ended_in_order());
        // A reconnect with the last cursor gets 204; any other follower gets the log.
        let at_end = server.follow_with(way, &job, "", &[("Last-Event-ID", last.id())]);
        assert_eq!(at_end.status, 204);
        assert_eq!(offsets(&server.follow(way, &job, "").rest()), [1, 2, 3]);
    }
}

#[test]
fn job_without_events_is_waited_for() {
    let server = Server::start();
    for way in WAYS {
        let job = format!("later-{}", &way[5..]);
        let mut stream = server.follow(way, &job, "");
        assert_eq!(stream.status, 200);
        server.publish(&job, "vision", 10);
        assert_eq!(stream.expect().offset(), 1);
    }
}

#[test]
fn last_event_id_header_wins_over_the_query() {
    let server = Server::start();
    let (_, epoch) = server.publish("job-1", "vision", 10);
    server.publish("job-1", "vision", 11);
    server.publish("job-1", "vision", 12);
    server.finish("job-1");
    for way in WAYS {
        let query = format!("?last_event_id={epoch}-1");
        assert_eq!(offsets(&server.follow(way, "job-1", &query).rest()), [2, 3, 4]);
        let newer = format!("{epoch}-3");
        let mut stream = server.follow_with(way, "job-1", &query, &[("Last-Event-ID", &newer)]);
        assert_eq!(offsets(&stream.rest()), [4]);
        let both = format!("{query}&last_seq=0");
        assert_eq!(offsets(&server.follow(way, "job-1", &both).rest()), [2, 3, 4]);
    }
}

#[test]
fn malformed_cursors_are_refused() {
    let server = Server::start();
    server.publish("job-1", "vision", 10);
    for wrong in ["", "x", "1", "1-", "-1", "1-+1", "1--1", "1-1-1", "9007199254740992-1", "1-1x"] {
        let path =
            format!("/v1/jobs/scan/job-1/events?last_event_id={}", wrong.replace('+', "%2B"));
        server.get(&path).is(400, "invalid-request");
        let ask = server.get("/v1/jobs/scan/job-1/events").header("Last-Event-ID", wrong);
        ask.is(400, "invalid-request");
    }
    for query in ["last_seq=-1", "last_seq=x", "last_seq=", "last_seq=1&last_seq=2", "x=1"] {
        server.get(&format!("/v1/jobs/scan/job-1/events?{query}")).is(400, "invalid-request");
    }
    let twice = server.get("/v1/jobs/scan/job-1/events").header("Last-Event-ID", "1-1");
    twice.header("Last-Event-ID", "1-1").is(400, "invalid-request");
    let long = format!("/v1/jobs/scan/{}/events", "x".repeat(256));
    server.get(&long).is(400, "invalid-request");
}

#[test]
fn hole_12_late_lower_event_is_seen_after_resume() {
    // The usual design's gateway skips every event whose seq is not above the last one seen: `rule` 20
    // after `answer` 30 would never be shown, live or after a reconnect.
    let server = Server::start();
    for way in WAYS {
        let job = format!("late-{}", &way[5..]);
        server.publish(&job, "vision", 10);
        let mut live = server.follow(way, &job, "");
        server.publish(&job, "answer", 30);
        let seen = live.take(2);
        server.publish(&job, "rule", 20);
        assert_eq!(live.expect().data["seq"], 20);
        server.finish(&job);
        let by_id = server.follow_with(way, &job, "", &[("Last-Event-ID", seen[1].id())]).rest();
        assert_eq!(offsets(&by_id), [3, 4]);
        let by_seq = server.follow(way, &job, "?last_seq=30").rest();
        assert_eq!(offsets(&by_seq), [3, 4]);
        assert_eq!(offsets(&server.follow(way, &job, "?last_seq=25").rest()), [4]);
        assert_eq!(offsets(&server.follow(way, &job, "?last_seq=9").rest()), [1, 2, 3, 4]);
        assert_eq!(server.follow(way, &job, "?last_seq=51").status, 204);
    }
}

#[test]
fn trimmed_cursor_gets_gap_snapshot_and_remaining_events() {
    let server = Setup::memory().flags(&["--event-entries", "3"]).start();
    let (_, epoch) = server.publish("job-1", "vision", 10);
    for seq in 11..=19 {
        server.publish("job-1", "vision", seq);
    }
    for way in WAYS {
        let mut stream = server.follow(way, "job-1", &format!("?last_event_id={epoch}-2"));
        let gap = stream.expect();
        assert_eq!((gap.id, gap.name.as_str()), (None, "gap"));
        assert_eq!(gap.data, json!({"from": 3, "to": 7}));
        let snapshot = stream.expect();
        assert_eq!((snapshot.id(), &*snapshot.name), (&*format!("{epoch}-7"), "snapshot"));
        assert_eq!((&snapshot.data["seq"], snapshot.offset()), (&19.into(), 10));
        assert_eq!(offsets(&stream.take(3)), [8, 9, 10]);
        // A follower cut off after the snapshot resumes at its id.
        let query = format!("?last_event_id={epoch}-7");
        assert_eq!(offsets(&server.follow(way, "job-1", &query).take(3)), [8, 9, 10]);
        // Cursors ahead of the log or of another epoch get a gap.
        for lost in [format!("{epoch}-11"), format!("{}-9", epoch + 1)] {
            let mut stream = server.follow(way, "job-1", &format!("?last_event_id={lost}"));
            let names: Vec<_> = stream.take(3).into_iter().map(|event| event.name).collect();
            assert_eq!(names, ["gap", "snapshot", "vision"], "{lost}");
        }
    }
}

#[test]
fn late_event_is_seen_after_resume_by_trimmed_seq() {
    // The remaining entries look as if seq 3 was the last one seen, although it came after 12.
    let server = Setup::memory().flags(&["--event-entries", "3"]).start();
    for seq in [12, 3, 20, 21] {
        server.publish("job-1", "vision", seq);
    }
    for way in WAYS {
        let seqs = |events: &[Event]| -> Vec<_> {
            events.iter().map(|event| event.data["seq"].as_u64()).collect()
        };
        let told = server.follow(way, "job-1", "?last_seq=12").take(5);
        assert_eq!((told[0].name.as_str(), told[1].name.as_str()), ("gap", "snapshot"));
        assert_eq!(seqs(&told[2..]), [Some(3), Some(20), Some(21)]);
        // A seq that is still in the log needs no such caution.
        assert_eq!(seqs(&server.follow(way, "job-1", "?last_seq=20").take(1)), [Some(21)]);
    }
}

#[test]
fn hole_15_forgotten_job_restarts_under_another_epoch() {
    // In the usual design the state lives for one hour and the marker for two: a retry in between is
    // skipped as a duplicate of an event that is nowhere any more.
    // The retention is long enough for a busy machine; both ways wait together.
    let server = Setup::memory().flags(&["--event-retention", "10s"]).start();
    let begun = WAYS.map(|way| {
        let job = format!("anew-{}", &way[5..]);
        let mut live = server.follow(way, &job, "");
        let (_, old) = server.publish(&job, "vision", 10);
        assert_eq!(live.expect().offset(), 1);
        (way, job, live, old)
    });
    for (way, job, mut live, old) in begun {
        let path = format!("/v1/jobs/scan/{job}");
        eventually("it is forgotten", || server.get(&path).status() == 404);
        // Dedup has the same retention: the same event is new again.
        let (offset, new) = server.publish(&job, "vision", 10);
        assert!(offset == 1 && new > old);
        // The live stream is told that the job is forgotten, or that it began anew.
        live.expect_gap();
        assert_eq!(live.expect().id(), format!("{new}-1"));
        let mut resumed = server.follow(way, &job, &format!("?last_event_id={old}-1"));
        assert_eq!(resumed.expect().name, "gap");
        assert_eq!(resumed.expect().id(), format!("{new}-0"));
    }
}

/// Far more keep-alive comments than a stalled machine lets pass before an event.
const MANY_COMMENTS: usize = 50;

#[test]
fn fault_04_cursor_of_forgotten_job_gets_a_gap() {
    let server = Setup::memory().flags(&["--sse-keep-alive", "200ms"]).start();
    for way in WAYS {
        let job = format!("never-{}", &way[5..]);
        let mut one = server.follow(way, &job, "?last_event_id=7-3");
        let gap = one.next_within_comments(MANY_COMMENTS).expect("a gap, not silence");
        assert_eq!((gap.id, gap.name.as_str()), (None, "gap"));
        assert_eq!(gap.data, json!({"from": 4, "to": null}));
        let (_, epoch) = server.publish(&job, "vision", 1);
        assert_eq!(one.expect().id(), format!("{epoch}-1"), "neither a second gap nor a snapshot");
    }
}

#[test]
fn fault_04_forgotten_job_among_several_gets_a_gap() {
    let mut server = Setup::memory().flags(&["--sse-keep-alive", "200ms"]).start();
    for way in WAYS {
        let [gone, alive] = ["gone", "alive"].map(|job| format!("{job}-{}", &way[5..]));
        let path = format!("/v1/events/stream?job=scan/{gone}&job=scan/{alive}");
        server.publish(&gone, "vision", 1);
        let seen = Listener::open(&server.address, way, &path, &[]).expect();
        // The store is in memory: nothing is left of the job.
        server.restart();
        let resume = [("Last-Event-ID", seen.id())];
        let mut stream = Listener::open(&server.address, way, &path, &resume);
        let gap = stream.next_within_comments(MANY_COMMENTS).expect("a gap, not silence");
        let told = json!({"domain": "scan", "job_id": gone, "from": 2, "to": null});
        assert_eq!((gap.name.as_str(), gap.data), ("gap", told));
        // The next id no longer names the forgotten job: whoever resumes there is not told again.
        server.publish(&alive, "vision", 1);
        let next = stream.expect();
        assert_eq!(next.data["job_id"], alive.as_str());
        let resume = [("Last-Event-ID", next.id())];
        let mut stream = Listener::open(&server.address, way, &path, &resume);
        server.publish(&gone, "vision", 1);
        let first = stream.expect();
        assert_eq!((&first.data["job_id"], first.offset()), (&json!(gone), 1));
    }
}

#[test]
fn fault_46_event_message_has_unnamed_frames() {
    let server = Setup::memory().flags(&["--event-entries", "3"]).start();
    for way in WAYS {
        let job = format!("job-{}", &way[5..]);
        let several = format!("/v1/events/stream?job=scan/{job}&event=message");
        server.publish(&job, "vision", 1);
        let mut named = server.follow(way, &job, "");
        let mut unnamed = [
            server.follow(way, &job, "?event=message"),
            Listener::open(&server.address, way, &several, &[]),
        ];
        for seq in 1..=3 {
            let expected = named.expect();
            assert_eq!((expected.name.as_str(), expected.offset()), ("vision", seq));
            for stream in &mut unnamed {
                let event = stream.expect();
                assert_eq!((event.name.as_str(), &event.data), ("", &expected.data));
            }
            // From the second event on all are live, and the named follower shares the fan-out.
            server.publish(&job, "vision", seq + 1);
        }
        // The next job has no follower, so that its trimmed events are nowhere.
        let trimmed = format!("trimmed-{}", &way[5..]);
        let (_, epoch) = server.publish(&trimmed, "vision", 1);
        for seq in 2..8 {
            server.publish(&trimmed, "vision", seq);
        }
        let query = format!("?event=message&last_event_id={epoch}-1");
        let mut resumed = server.follow(way, &trimmed, &query);
        let told = resumed.take(3);
        assert!(told.iter().all(|event| event.name.is_empty()), "{told:?}");
        assert_eq!((&told[0].id, &told[0].data), (&None, &json!({"from": 2, "to": 4})));
        assert_eq!((told[1].id(), told[1].offset()), (format!("{epoch}-4").as_str(), 7));
        assert_eq!(told[2].offset(), 5);
        for wrong in ["x", "", "vision"] {
            let path = format!("/v1/jobs/scan/{job}/events?event={wrong}");
            server.get(&path).is(400, "invalid-request");
        }
    }
}

#[test]
fn hole_14_busy_job_evicts_nothing_of_another() {
    // In the usual design `MAXLEN ~ 10000` holds for the shard: a busy job pushes out what others have not
    // delivered yet, and nobody is told.
    let server = Setup::memory().flags(&["--event-entries", "2"]).start();
    server.publish("quiet", "vision", 10);
    for seq in 0..50 {
        server.publish("busy", "vision", seq);
    }
    server.finish("quiet");
    assert_eq!(offsets(&server.follow(WAYS[0], "quiet", "").rest()), [1, 2]);
    assert_eq!(server.follow(WAYS[0], "busy", "").expect().name, "gap");
}

#[test]
fn comments_keep_a_quiet_stream_alive() {
    let server = Setup::memory().flags(&["--sse-keep-alive", "50ms"]).start();
    for way in WAYS {
        server.follow(way, "quiet", "").until_comment();
    }
}

#[test]
fn client_that_only_listens_is_not_idle() {
    let flags = ["--idle-timeout", "100ms", "--sse-keep-alive", "50ms"];
    let server = Setup::memory().flags(&flags).start();
    for way in WAYS {
        let job = format!("quiet-{}", &way[5..]);
        let mut stream = server.follow(way, &job, "");
        for _ in 0..10 {
            stream.comments = 0;
            stream.until_comment();
        }
        server.publish(&job, "vision", 10);
        assert_eq!(stream.expect().offset(), 1);
    }
}

#[test]
fn stream_limit_holds_and_slots_are_released() {
    let server = Setup::memory().flags(&["--sse-connections", "2"]).start();
    for way in WAYS {
        // A stream leaves the gauge a moment before its slot is free.
        let open = ["a", "b"].map(|job| {
            let mut stream = None;
            eventually("there is a place", || {
                stream.insert(server.follow(way, job, "")).status == 200
            });
            stream
        });
        let refused = server.get("/v1/jobs/scan/c/events").is(503, "too-many-streams");
        assert_eq!(refused.header("retry-after"), Some("5"));
        assert!(server.metrics().contains("hapax_sse_connections 2"));
        drop(open);
        server.counts("hapax_sse_connections 0");
    }
    // A HEAD request takes no slot.
    for _ in 0..3 {
        eventually("the headers come", || {
            server.ask("HEAD", "/v1/jobs/scan/a/events").status() == 200
        });
    }
}

#[test]
fn client_that_does_not_read_is_cut_off() {
    let server = Setup::memory().flags(&["--sse-write-timeout", "300ms"]).start();
    for way in WAYS {
        let job = format!("slow-{}", &way[5..]);
        let _asleep = server.follow(way, &job, "");
        let data = json!("x".repeat(500_000));
        // More than the buffers of both sockets hold.
        for seq in 0..24 {
            server.publish_data(&job, "vision", seq, &data);
        }
        let ended =
            format!("hapax_sse_ended_total{{reason=\"slow\"}} {}", 1 + usize::from(way != WAYS[0]));
        server.counts(&ended);
    }
}

#[test]
fn streams_end_in_order_at_shutdown() {
    let server = Server::start();
    server.publish("job-1", "vision", 10);
    let mut streams: Vec<_> = WAYS.iter().map(|way| server.follow(way, "job-1", "")).collect();
    streams.iter_mut().for_each(|stream| drop(stream.expect()));
    server.signal(Signal::TERM);
    for stream in &mut streams {
        assert_eq!(stream.next(), None);
        assert!(stream.ended_in_order());
    }
    let log = server.ended();
    assert!(log.contains("every request was answered"), "{log}");
}

#[test]
fn several_jobs_share_one_stream_and_resume_together() {
    let server = Server::start();
    for way in WAYS {
        let (a, b) = (format!("a-{}", &way[5..]), format!("b-{}", &way[5..]));
        let path = format!("/v1/events/stream?job=scan/{a}&job=scan%2F{b}");
        let open = |last: Option<&str>| {
            let headers: Vec<_> = last.iter().map(|id| ("Last-Event-ID", *id)).collect();
            Listener::open(&server.address, way, &path, &headers)
        };
        let mut stream = open(None);
        let mut last = None;
        for (job, seq) in [(&a, 10), (&b, 10), (&a, 11), (&b, 11)] {
            server.publish(job, "vision", seq);
            let event = stream.expect();
            assert_eq!((&event.data["job_id"], &event.data["seq"]), (&json!(job), &json!(seq)));
            last = event.id;
        }
        let last = last.unwrap();
        assert!(last.len() < 64, "{last}");
        drop(stream);
        server.publish(&a, "vision", 12);
        server.finish(&b);
        let mut resumed = open(Some(&last));
        let mut missed: Vec<_> = resumed.take(2).into_iter().map(|event| event.offset()).collect();
        missed.sort_unstable();
        assert_eq!(missed, [3, 3], "{a} 12 and the end of {b}");
        server.finish(&a);
        let end = resumed.expect();
        assert_eq!((&end.data["job_id"], resumed.next()), (&json!(a), None));
        assert_eq!(open(Some(end.id())).status, 204);
        // The order of the jobs does not matter, nor does one more.
        let other = format!("/v1/events/stream?job=scan/{b}&job=scan/{a}&job=scan/c");
        let mut more = Listener::open(&server.address, way, &other, &[("Last-Event-ID", end.id())]);
        server.publish("c", "vision", u64::from(way == WAYS[0]));
        assert_eq!(more.expect().data["job_id"], "c");
    }
}

#[test]
fn gap_in_one_of_several_jobs_names_the_job() {
    let server = Setup::memory().flags(&["--event-entries", "1"]).start();
    let path = "/v1/events/stream?job=scan/a&job=scan/b";
    for way in WAYS {
        server.publish("a", "vision", way.len() as u64 * 100 + u64::from(way.ends_with('1')));
        let mut stream = Listener::open(&server.address, way, path, &[]);
        let mut first = stream.expect();
        if first.name == "gap" {
            first = stream.take(2).remove(1);
        }
        drop(stream);
        for i in 0..2 {
            server.publish("a", &format!("{i}{}", &way[5..]), 20);
        }
        let mut resumed =
            Listener::open(&server.address, way, path, &[("Last-Event-ID", first.id())]);
        let gap = resumed.expect();
        assert_eq!((gap.name.as_str(), &gap.data["job_id"]), ("gap", &json!("a")));
        assert_eq!(gap.data["from"], first.offset() + 1);
        assert_eq!(resumed.expect().name, "snapshot");
    }
}

#[test]
fn job_lists_are_parsed_strictly() {
    let server = Server::start();
    let many: String = (0..33).map(|i| format!("&job=scan/{i}")).collect();
    for query in [
        "",
        "?job=",
        "?job=scan",
        "?job=scan/",
        "?job=/1",
        "?job=a/1&job=a/1",
        "?jobs=a/1",
        "?job=a/1&last_seq=1",
        &format!("?{}", &many[1..]),
    ] {
        let refused = server.get(&format!("/v1/events/stream{query}")).is(400, "invalid-request");
        if query.len() > 99 {
            assert!(refused.detail().contains("32"), "{}", refused.detail());
        }
    }
    for wrong in ["7-1", "!", "AAAA"] {
        let ask = server.get("/v1/events/stream?job=a/1").header("Last-Event-ID", wrong);
        ask.is(400, "invalid-request");
    }
}
