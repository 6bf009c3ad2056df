//! Access to event streams: tokens, signed links, pages of other sites.

use hapax_testkit::Redis;
use serde_json::json;

use crate::cli_support::{hapax, run};
use crate::http::access::token;
use crate::http::events_client::{Listener, WAYS};
use crate::support::eventually;
use crate::support::server::{Server, Setup};

const SECRET: &str = "0123456789abcdef0123456789abcdef";

fn guarded(flags: &[&str]) -> Server {
    guarded_on("memory:", flags)
}

fn guarded_on(store: &str, flags: &[&str]) -> Server {
    let tokens = token("shop", "shop", "'data'") + &token("bank", "bank", "'data'");
    Setup::on(store).env("HAPAX_SSE_SECRET", SECRET).flags(flags).file(&tokens).start()
}

/// A signed link from `hapax token link`.
fn link(flags: &[&str]) -> String {
    link_signed(SECRET, flags)
}

fn link_signed(secret: &str, flags: &[&str]) -> String {
    let mut command = hapax();
    command.args(["token", "link"]).args(flags).env("HAPAX_SSE_SECRET", secret);
    run(&mut command).ok().trim().to_owned()
}

fn publish(server: &Server, tenant: &str, job: &str) {
    let event =
        json!({"domain": "scan", "job_id": job, "stage": "done", "seq": 51, "data": tenant});
    assert_eq!(server.post("/v1/events").bearer(tenant).json(&event).status(), 201);
}

fn open(server: &Server, way: &str, path: &str) -> Listener {
    Listener::open(&server.address, way, path, &[])
}

#[test]
fn token_shows_only_events_of_its_tenant() {
    let server = guarded(&[]);
    publish(&server, "shop", "1");
    publish(&server, "bank", "1");
    server.get("/v1/jobs/scan/1/events").is(401, "unauthorized");
    server.get("/v1/events/stream?job=scan/1").is(401, "unauthorized");
    for way in WAYS {
        for tenant in ["shop", "bank"] {
            let bearer = format!("Bearer {tenant}");
            let headers = [("Authorization", bearer.as_str())];
            for path in ["/v1/jobs/scan/1/events", "/v1/events/stream?job=scan/1"] {
                let seen = Listener::open(&server.address, way, path, &headers).rest();
                assert_eq!((seen.len(), &seen[0].data["data"]), (1, &tenant.into()));
            }
        }
    }
}

#[test]
fn signed_link_opens_only_its_jobs() {
    let server = guarded(&[]);
    for job in ["1", "2", "3"] {
        publish(&server, "shop", job);
        publish(&server, "bank", job);
    }
    let access = link(&["--job", "scan/1", "--job", "scan/2", "--tenant", "shop"]);
    for way in WAYS {
        for path in ["/v1/jobs/scan/1/events?", "/v1/events/stream?job=scan/1&job=scan/2&"] {
            let seen = open(&server, way, &format!("{path}access={access}")).rest();
            assert!(!seen.is_empty() && seen.iter().all(|event| event.data["data"] == "shop"));
        }
    }
    let look = |path: &str| server.get(&format!("{path}access={access}")).send();
    assert_eq!(look("/v1/jobs/scan/1?").json()["state"]["data"], "shop");
    for other in
        ["/v1/jobs/scan/3?", "/v1/jobs/scan/3/events?", "/v1/events/stream?job=scan/1&job=scan/3&"]
    {
        look(other).is(403, "forbidden");
    }
    // A link is not a token.
    for elsewhere in ["/v1/locks/k?", "/v1/records/k?", "/v1/operator/commands?", "/metrics?"] {
        look(elsewhere).is(401, "unauthorized");
    }
    let event = r#"{"domain":"scan","job_id":"1","stage":"a","seq":1,"data":0}"#;
    server.post(&format!("/v1/events?access={access}")).json(event).is(401, "unauthorized");
    look(&format!("/v1/jobs/scan/1?access={access}&")).is(400, "invalid-request");
}

#[test]
fn signed_links_expired_forged_or_foreign_are_refused() {
    let server = guarded(&[]);
    publish(&server, "shop", "1");
    let job = ["--job", "scan/1", "--tenant", "shop"];
    let good = link(&job);
    let (claims, signature) = good.split_once('.').unwrap();
    let other = link(&["--job", "scan/9", "--tenant", "shop"]);
    let others = other.split('.').next().unwrap();
    let short = link(&["--job", "scan/1", "--tenant", "shop", "--ttl", "1ms"]);
    eventually("it expires", || {
        server.get(&format!("/v1/jobs/scan/1?access={short}")).status() == 401
    });
    for wrong in [
        short,
        link_signed(&"x".repeat(32), &job),
        link(&["--job", "scan/1", "--tenant", "nobody"]),
        format!("{others}.{signature}"),
        format!("{claims}."),
        claims.to_owned(),
        format!("{claims}.AAAA"),
        String::new(),
    ] {
        server.get(&format!("/v1/jobs/scan/1/events?access={wrong}")).is(401, "unauthorized");
        // A token beside a bad link does not help.
        let ask = server.get(&format!("/v1/jobs/scan/1/events?access={wrong}")).bearer("shop");
        ask.is(401, "unauthorized");
    }
    let log = server.stop();
    assert!(!log.contains(claims) && !log.contains(SECRET), "{log}");
}

#[test]
fn signed_link_is_refused_without_a_secret() {
    let server = Server::start();
    let access = link(&["--job", "scan/1"]);
    server.get(&format!("/v1/jobs/scan/1?access={access}")).is(401, "unauthorized");
}

#[test]
fn stream_ends_when_its_link_expires() {
    let server = guarded(&[]);
    for way in WAYS {
        let opened = |ttl: &str| {
            let access = link(&["--job", "scan/open", "--tenant", "shop", "--ttl", ttl]);
            open(&server, way, &format!("/v1/jobs/scan/open/events?access={access}"))
        };
        // A link that expires while the machine stalls opens nothing; the next one lasts longer.
        let mut streams = ["5s", "10s", "20s"].into_iter().map(opened);
        let mut stream = streams.find(|stream| stream.status != 401).expect("an open link");
        assert_eq!((stream.status, stream.next()), (200, None));
        assert!(stream.ended_in_order());
    }
}

#[test]
fn cors_lets_named_sites_read_events_only() {
    let origin = "https://app.example";
    for server in [
        guarded(&["--sse-origins", "https://app.example"]),
        Setup::memory()
            .flags(&["--sse-origins", &format!("{origin},http://localhost:3000")])
            .start(),
    ] {
        let ask = |method: &str, path: &str, origin: &str| {
            server.ask(method, path).bearer("shop").header("Origin", origin)
        };
        for path in ["/v1/jobs/scan/none", "/v1/jobs/scan/none?x=1"] {
            let answer = ask("GET", path, origin).send();
            assert!([400, 404].contains(&answer.status));
            assert_eq!(answer.header("access-control-allow-origin"), Some(origin));
            assert_eq!(answer.header("vary"), Some("origin"));
        }
        for way in WAYS {
            let headers = [("Origin", origin), ("Authorization", "Bearer shop")];
            let stream = Listener::open(&server.address, way, "/v1/jobs/scan/a/events", &headers);
            assert_eq!(stream.status, 200);
            assert_eq!(stream.header("access-control-allow-origin"), Some(origin));
        }
        // Browsers send preflight requests without a token.
        let preflight = |path: &str, method: &str| {
            let ask = server.ask("OPTIONS", path).header("Origin", origin);
            let ask = ask.header("Access-Control-Request-Method", method);
            ask.header("Access-Control-Request-Headers", "authorization").send()
        };
        let beforehand = preflight("/v1/events/stream", "GET");
        assert_eq!(beforehand.status, 204);
        assert_eq!(beforehand.header("access-control-allow-origin"), Some(origin));
        let headers = beforehand.header("access-control-allow-headers").unwrap();
        assert!(headers.contains("authorization"), "{headers}");
        for (path, origin) in
            [("/v1/jobs/scan/none", "https://evil.example"), ("/v1/locks/k", origin)]
        {
            let answer = ask("GET", path, origin).send();
            assert_eq!(answer.header("access-control-allow-origin"), None, "{path} {origin}");
        }
        let write = preflight("/v1/jobs/scan/none", "POST");
        assert_eq!(write.header("access-control-allow-origin"), None);
    }
    let none = Server::start();
    none.get("/v1/jobs/scan/none").header("Origin", origin).is(403, "forbidden");
}

#[test]
fn fault_21_link_cannot_take_every_stream() {
    let limits = ["--sse-connections", "6", "--sse-tenant-connections", "4"];
    let server = guarded(&[&limits[..], &["--sse-link-connections", "2"]].concat());
    let links = ["a", "b", "c"].map(|job| {
        let access = link(&["--job", &format!("scan/{job}"), "--tenant", "shop"]);
        format!("/v1/jobs/scan/{job}/events?access={access}")
    });
    let refused = |path: &str, whose: &str| {
        let answer = server.get(path).send();
        answer.is(503, "too-many-streams");
        assert!(answer.detail().contains(whose), "{}", answer.detail());
        assert!(answer.header("retry-after").is_some());
    };
    // Slots are taken before the head is sent, so these are open one after the other.
    let opened = |path: &str| {
        let stream = open(&server, WAYS[0], path);
        assert_eq!(stream.status, 200);
        stream
    };
    let mut streams: Vec<_> = (0..2).map(|_| opened(&links[0])).collect();
    refused(&links[0], "this link");
    streams.extend((0..2).map(|_| opened(&links[1])));
    refused(&links[2], "this tenant");
    for _ in 0..2 {
        let headers = [("Authorization", "Bearer bank")];
        let stream = Listener::open(&server.address, WAYS[0], "/v1/jobs/scan/a/events", &headers);
        assert_eq!(stream.status, 200);
        streams.push(stream);
    }
    let ask = server.get("/v1/jobs/scan/a/events").bearer("bank").send();
    assert!(ask.is(503, "too-many-streams").detail().contains("this server"));
    drop(streams.remove(0));
    eventually("a slot is free again", || open(&server, WAYS[0], &links[0]).status == 200);
}

#[test]
fn fault_21_requests_of_links_leave_some_to_tokens() {
    let redis = Redis::start();
    let server = guarded_on(&redis.url(), &["--in-flight", "4"]);
    let access = link(&["--job", "scan/1", "--tenant", "shop"]);
    let path = format!("/v1/jobs/scan/1?access={access}");
    // Requests take long while the store hangs; a quarter of four is one.
    redis.stop();
    let links: Vec<_> = (0..8).map(|_| server.get(&path).begin()).collect();
    let token = server.get("/v1/jobs/scan/1").bearer("shop").status();
    assert_eq!(token, 503, "the store hangs, and the request was let in");
    // Without a share of their own, four links would be let in. On a machine that stands still for longer than the
    // store's time limit, the next one is let in when the first one has ended.
    let answers = links.into_iter().map(|link| link.answer().status);
    let refused = answers.filter(|status| *status == 429).count();
    assert!(refused > 4, "{refused} of 8 links were refused");
    redis.cont();
}
