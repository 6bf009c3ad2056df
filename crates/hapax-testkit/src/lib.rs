//! Starts real Redis, PostgreSQL, NATS and RabbitMQ servers for tests, on free loopback ports in temporary folders.
//!
//! [`Browser`] is a headless Chromium for pages, and [`HttpStub`] a server that answers as a test says.
//!
//! Every constructor returns when the server answers. Every wait has a timeout, after which it panics with the end of the
//! server's log. Servers end when they are dropped; if the test process dies first, a cleanup script ends them and
//! removes their folders.
//!
//! The API is synchronous: it works in plain tests, and in the set-up code of `#[tokio::test]`, where blocking the thread
//! for a moment is harmless.
//!
//! ```no_run
//! let redis = hapax_testkit::Redis::start();
//! redis.cli(&["SET", "key", "value"]);
//! redis.kill();
//! redis.restart();
//! assert_eq!(redis.cli(&["GET", "key"]), "value");
//! ```

mod binary;
mod browser;
mod certificates;
mod cleanup;
mod command;
mod environment;
mod http_stub;
mod nats;
mod pgbouncer;
mod ports;
mod postgres;
mod postgres_standby;
mod process;
mod program;
mod rabbitmq;
mod redis;
mod redis_cluster;
mod redis_sentinel;
mod tcp_proxy;
mod wait;

pub use binary::find_binary;
pub use browser::Browser;
pub use certificates::Certificates;
pub use environment::{keep_log, python, redis_62_server, scale, valkey_server};
pub use http_stub::{HttpStub, ReceivedRequest, StubAnswer};
pub use nats::Nats;
pub use pgbouncer::PgBouncer;
pub use ports::free_port;
pub use postgres::Postgres;
pub use postgres_standby::PostgresStandby;
pub use program::Program;
pub use rabbitmq::RabbitMq;
pub use redis::Redis;
pub use redis_cluster::RedisCluster;
pub use redis_sentinel::RedisSentinel;
pub use tcp_proxy::TcpProxy;
pub use wait::wait_for;
