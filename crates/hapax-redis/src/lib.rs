//! hapax on Redis ≥ 6.2 and Valkey: one server, Sentinel, Cluster.
//!
//! ```no_run
//! use hapax_core::{Ask, Claims, Key, Tenant};
//! use hapax_redis::{RedisConfig, RedisStore};
//! use std::time::Duration;
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let store = RedisStore::open(RedisConfig::new("redis://127.0.0.1:6379")?)?;
//! let key = Key::lock(&Tenant::default(), "processing:user:U1")?;
//! let answer = store.claim(&key, &Ask::new(Duration::from_secs(5))).await?;
//! # Ok(()) }
//! ```
//!
//! # What is stored
//!
//! Every claim and every record is one string under one key, `hapax:{tenant:kind:scope:name}`; the
//! braces make the whole of it the hash tag. Every step is one script on that one key: one round
//! trip, one slot, at most one write. Redis itself forgets what has expired.
//!
//! - **claim**: `hapax1 <phase> <fence> <attempt> <granted> <lease end> <retention> <expires> <token
//!   bytes> <fingerprint bytes>\n`, then token, fingerprint and value as they are. Phases: `P`ending,
//!   `S`ettled, `F`ailed. Times in ms. The fingerprint is empty for none, else `=` and its text.
//! - **record**: `hapax-record1 <version> <1 where that version created it>\n`, then the value.
//!
//! Keys that other programs use too are [`Verbatim`]: such a lock is taken by one `SET … NX EX`
//! (`PX` where the TTL is not whole seconds) and whatever a foreign writer put there counts as held;
//! such a record is the plain text, and its version is a digest of it.
//!
//! - **job** of the log: one hash `hapax:{p17}:<canonical key>`, so that entries, state and dedup have one
//!   lifetime by construction; 17 is the job's partition. Beside it in the same slot `…:head` (the
//!   partition's epochs) and `…:tail`, a stream of pointers `<offset> → <job>`. The fields are described
//!   in `lua/append.lua` and `lua/head.lua`. `hapax:{log}:partitions` is their number.
//! - **queue**: seven keys `hapax:{q:<name>}:…`, described in `lua/queue.lua`.
//!
//! # What is promised
//!
//! - **Fences** are the larger of the stored one + 1 and the server's clock in µs. They grow across
//!   release, expiry and a flushed server as long as that clock does not go back, and across a
//!   failover as long as the clocks of master and replica differ by less than the time between two
//!   owners.
//! - **Mutual exclusion** holds until a failover that loses the write: replication does not wait.
//!   Let what you write to compare fences.
//! - **Lost answers.** A call whose connection broke is made once more. Claim, extend, settle and
//!   (not verbatim) put recognise their own work. A release, a delete and a verbatim put cannot: where
//!   the second call finds nothing to do they give [`hapax_core::StoreError::Unavailable`], never a
//!   wrong answer.
//! - **Time.** Every call ends within its limit ([`RedisConfig::limit`]). A connection that broke is
//!   made again, for ever; one that is silent is replaced; behind Sentinel the master is asked for
//!   anew each time.
//! - **The log** keeps what it acknowledged until a failover or a restart that loses it;
//!   [`RedisConfig::wait`] narrows that. The scripts compare the name of the server's history (its
//!   replication id), which changes with every start and every promotion: what is appended then has a
//!   new epoch. Who saw only what survived goes on, also where nothing was lost; who saw more is told.
//!   Readers of the tail are taken back to where the histories part: they see every entry that is there
//!   once, and some offsets a second time if the first one was lost. After sixteen such changes the
//!   oldest cursors and positions get a gap.
//!   A client of a single server, or behind Sentinel, knows the name for a second at a time instead of
//!   asking with every append: somebody who demotes and promotes a server by hand within that second is
//!   not noticed.
//! - **Epochs** follow the server's clock as fences do, and grow under the same conditions.
//! - **Queues** live in one slot each: many queues spread over a Cluster, one does not. What is done is
//!   forgotten by later calls on the same queue, a hundred at a time.
//! - **Waiters** hear of a settle or a release, an append or an arrival on any node by one message on `hapax:wake`, published
//!   by the same script.
//!
//! # What a user needs
//!
//! `~hapax:* &hapax:wake +eval +evalsha +get +set +del +pttl +time +publish +subscribe +ping +info`, the
//! verbatim keys, `+scan` for lists, `+config|get` for `examine`, `+role` behind Sentinel, `+cluster` in a
//! Cluster, `+wait` where replicas are waited for.
//! For the log `+hget +hmget +hset +hdel +pexpire +xadd +xrange +xrevrange +xtrim`, for queues
//! `+hget +hset +hdel +hlen +zadd +zrem +zcard +zrange +zrangebylex +zrangebyscore +zscore +zlexcount
//! +zcount`.

mod address;
mod calls;
mod claims;
mod config;
mod connect;
mod examine;
mod fault;
mod history;
mod keys;
mod link;
mod listing;
mod log;
mod node;
mod queue;
mod raw;
mod records;
mod script;
mod store;
mod wake;

pub use config::RedisConfig;
pub use keys::Verbatim;
pub use raw::{RawRedis, Reply};
pub use store::RedisStore;
