//! Starts real Redis, PostgreSQL, NATS and RabbitMQ servers for tests, on free loopback ports in temporary folders.
//!
//! [`Browser`] is a real one, too: a headless Chromium for pages.
//!
//! Every constructor returns when the server answers, every wait is bounded, and a wait that
//! fails panics with the end of the server's log. Servers end when they are dropped; should the
//! test process die first, a janitor process ends them and removes their folders.
//!
//! The API is synchronous on purpose: it works in plain tests, and in `#[tokio::test]` set-up
//! code, where blocking the thread for a moment harms nobody.
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
mod command;
mod janitor;
mod logs;
mod nats;
mod ports;
mod postgres;
mod process;
mod procfs;
mod rabbitmq;
mod redis;
mod redis_cluster;
mod redis_sentinel;
mod settings;
mod wait;
mod wire;

pub use binary::{MissingBinary, find_binary};
pub use browser::Browser;
pub use certificates::Certificates;
pub use logs::keep_log;
pub use nats::Nats;
pub use ports::free_port;
pub use postgres::Postgres;
pub use rabbitmq::RabbitMq;
pub use redis::Redis;
pub use redis_cluster::RedisCluster;
pub use redis_sentinel::RedisSentinel;
pub use settings::{python, scale, valkey_server};
pub use wait::wait_for;
pub use wire::Wire;
