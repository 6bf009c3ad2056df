//! A single Redis server: pauses, crashes, TLS, other binaries.

use std::net::{Ipv4Addr, TcpStream};
use std::process::Command;
use std::time::Duration;

use hapax_testkit::{Redis, find_binary, free_port, valkey_server};

use crate::client::Client;

#[test]
fn redis_restarts_with_its_data_after_a_kill() {
    let redis = Redis::start();
    assert_eq!(redis.url(), format!("redis://127.0.0.1:{}/0", redis.port()));
    assert_eq!(redis.cli(&["PING"]), "PONG");
    assert_eq!(redis.cli(&["SET", "key", "a value"]), "OK");
    redis.kill();
    assert!(TcpStream::connect((Ipv4Addr::LOCALHOST, redis.port())).is_err());
    redis.restart();
    assert_eq!(redis.cli(&["GET", "key"]), "a value");
}

#[test]
fn redis_answers_after_a_pause() {
    let redis = Redis::start();
    let mut client = Client::connect(redis.port());
    redis.stop();
    assert!(!redis.is_awake());
    client.send("PING");
    assert_eq!(client.answer_within(Duration::from_millis(200)), None);
    redis.cont();
    let answer = client.answer_within(Duration::from_secs(60));
    assert_eq!(answer.as_deref(), Some("+PONG\r\n"));
}

#[test]
fn redis_can_be_killed_while_paused() {
    let redis = Redis::start();
    redis.stop();
    redis.kill();
    redis.restart();
    assert_eq!(redis.cli(&["PING"]), "PONG");
}

#[test]
fn redis_arguments_override_defaults() {
    let redis = Redis::with(&["--maxmemory", "3mb", "--appendonly", "no"]);
    assert_eq!(redis.cli(&["CONFIG", "GET", "maxmemory"]), "maxmemory\n3145728");
    assert_eq!(redis.cli(&["CONFIG", "GET", "appendonly"]), "appendonly\nno");
}

#[test]
fn redis_with_a_password_counts_as_ready() {
    let redis = Redis::with(&["--requirepass", "secret"]);
    assert_eq!(redis.cli(&["-a", "secret", "PING"]), "PONG");
}

#[test]
fn redis_tls_is_verified_against_the_authority() {
    let redis = Redis::tls();
    assert!(redis.url().starts_with("rediss://127.0.0.1:"));
    assert_eq!(redis.cli(&["PING"]), "PONG");
    for name in ["-verify_ip 127.0.0.1", "-verify_hostname localhost"] {
        let verified = Command::new(find_binary("openssl").unwrap())
            .args(["s_client", "-verify_return_error", "-CAfile"])
            .arg(redis.ca_path())
            .args(["-connect", &format!("127.0.0.1:{}", redis.port())])
            .args(name.split(' '))
            .stdin(std::process::Stdio::null())
            .output()
            .unwrap();
        assert!(verified.status.success(), "{name}: {verified:?}");
    }
}

#[test]
fn valkey_starts_like_redis() {
    let Some(binary) = valkey_server() else {
        return;
    };
    let valkey = Redis::binary(binary);
    valkey.cli(&["SET", "key", "a value"]);
    valkey.kill();
    valkey.restart();
    assert_eq!(valkey.cli(&["GET", "key"]), "a value");
    assert!(valkey.cli(&["INFO", "server"]).contains("server_name:valkey"));
}

#[test]
fn ports_are_given_once() {
    let mut ports: Vec<u16> = (0..200).map(|_| free_port()).collect();
    ports.sort_unstable();
    ports.dedup();
    assert_eq!(ports.len(), 200);
}

#[test]
fn missing_program_is_named_with_its_installer() {
    assert_eq!(
        find_binary("no-such-server").unwrap_err().to_string(),
        "`no-such-server` is not installed; run ./test.sh, which installs what the tests need"
    );
}
