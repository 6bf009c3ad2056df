//! hapax on Redis ≥ 6.2 and Valkey: one server, Sentinel, Cluster.
//!
//! ```no_run
//! use hapax_core::{ClaimRequest, Claims, Key, Tenant};
//! use hapax_redis::{RedisConfig, RedisStore};
//! use std::time::Duration;
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let store = RedisStore::open(RedisConfig::new("redis://127.0.0.1:6379")?)?;
//! let key = Key::lock(&Tenant::default(), "processing:user:U1")?;
//! let result = store.claim(&key, &ClaimRequest::new(Duration::from_secs(5))).await?;
//! # Ok(()) }
//! ```
//!
//! # Stored format
//!
//! A claim or a record is one string under the key `hapax:{tenant:kind:scope:name}`; the braces make all of it the
//! hash tag. Each step is one script on that key: one round trip, one slot, one write and perhaps a marker. The claim of a
//! key that this process has seen settled begins with `GET` and `PTTL`, and needs the script only if the claim is not
//! settled any more. Redis removes expired keys by itself.
//!
//! **Claim**: one line of fields separated by single spaces, then the fingerprint and the value without a separator.
//!
//! ```text
//! hapax1 <#token> <token> <phase> <fence> <attempt> <granted> <since> <lease> <retention> <#fingerprint>\n<fingerprint><value>
//! ```
//!
//! | field | content |
//! |---|---|
//! | `hapax1` | these six bytes |
//! | `#token`, `token` | length of the token in bytes, and the token itself, which may contain spaces |
//! | `phase` | `P` pending, `S` settled, `F` failed |
//! | `fence`, `attempt` | of the last grant |
//! | `granted` | time of the last grant |
//! | `since` | time of the last grant or renewal (`P`), or of the settle or failure (`S`, `F`) |
//! | `lease`, `retention` | as asked for, in ms |
//! | `#fingerprint`, `fingerprint` | length in bytes, and `=` with the text; `0` and empty for none |
//! | `value` | the rest of the string, only if settled |
//!
//! Numbers are decimal; times are in ms since 1970. A pending claim is unknown from `since + lease` on and expires
//! at `since + lease + retention`, a settled or failed one at `since + retention`; that is also the TTL of the key.
//!
//! **Record**: `hapax-record1 <version> <created>\n<value>`, where `created` is `1` if that version created the
//! record, else `0`.
//!
//! **Verbatim keys** ([`VerbatimKeys`]) are shared with other programs. Such a lock is a claim under the lock's own
//! name, taken by one `SET … NX EX` (`PX` for a TTL that is not whole seconds); any other value there counts as
//! held. Such a record is the value alone, and its version is the SHA-1 of the value.
//!
//! **Job** of the log: one hash `hapax:{p17}:<canonical key>`, where 17 is the job's partition, so that entries,
//! state and dedup expire together. In the same slot are `…:head`, a hash with the partition's epochs, and `…:tail`,
//! a stream of pointers `<offset> → <job>`. `lua/append.lua` and `lua/append_rest.lua` describe the fields.
//! `hapax:{log}:partitions` is the number of partitions.
//!
//! **Queue**: seven keys `hapax:{q:<name>}:…`, described in `lua/queue.lua`; `queue/item.rs` describes an item's body.
//! `hapax:{queues}` is a sorted set of the names of all queues.
//!
//! **Marker**: the answer of a put, delete, enqueue or dead letter's action, under `hapax:{<tag of the key>}:did:<id of the
//! call>` for twice the timeout and 5 s. The same call, repeated, returns it and writes nothing.
//!
//! # Promises
//!
//! - **Fences** are the larger of the stored fence + 1 and the server's clock in µs. They grow across release, expiry
//!   and a flushed server as long as that clock does not go back, and across a failover as long as the clocks of
//!   master and replica differ by less than the time between two owners.
//! - **Mutual exclusion** holds until a failover loses the write, because replication is asynchronous. Let the
//!   resource that you write to compare fences.
//! - **Lost replies.** A call whose connection broke is made once more. Claims, appends and leases recognise their own
//!   first attempt by token or identity; puts, deletes and enqueues by their marker, whatever others have written
//!   since. A release and a retry of an item cannot: if the second attempt finds nothing to do, they return
//!   [`hapax_core::StoreError::Unavailable`], never a wrong result. A put or delete of a verbatim key with `}` and without
//!   a hash tag has no marker and is not repeated.
//! - **Late requests.** A server that stands still executes the requests in its sockets when it continues. Claims, leases,
//!   puts, deletes and enqueues carry the time until which their caller waits, and a second for clocks; the script
//!   refuses them later. The client reads the server's clock once for each connection, and again after a refusal. A
//!   server whose clock goes back may execute late requests; unheard claims are then undone by the client.
//! - **Time.** Every call ends within the [`RedisConfig::timeout`]. A broken connection is made again, without a
//!   limit of attempts; one on which a call timed out is replaced; behind Sentinel the sentinels are asked for the
//!   master each time.
//! - **The log** keeps acknowledged events until a failover or a restart loses them;
//!   [`RedisConfig::wait_for_replicas`] reduces that. The scripts compare the server's replication id, which changes
//!   with every start and every promotion: entries appended after a change have a new epoch. Every reader that passes
//!   the change gets a gap there, unless nothing can have been lost: a restart with an append-only file (and no power
//!   cut with `appendfsync everysec`) of a server that had no replicas. Readers of the tail are taken back to the
//!   point of the change: they see every existing entry once, and an offset twice if its first entry was lost. After
//!   sixteen changes the oldest cursors and positions get a gap.
//!   A client of a single server or behind Sentinel caches the replication id for a second, so it does not notice
//!   an operator who demotes and promotes the server by hand within that second.
//! - **Epochs** follow the server's clock as fences do, and grow under the same conditions.
//! - **Queues** live in one slot each: many queues spread over a Cluster, one queue does not. Later calls on the same
//!   queue forget acknowledged items after their retention: a hundred, and two for each item of the call.
//! - **Sweeping** removes the pointers of forgotten jobs from the tails of partitions that are idle; everything else
//!   expires by itself.
//! - **Waiters** on any node are woken by one message on `hapax:wake`, which the script publishes that settles or
//!   releases a claim, appends an event or makes an item due.
//!
//! # Permissions
//!
//! A user needs `~hapax:* &hapax:wake +eval +evalsha +get +set +del +pttl +time +publish +subscribe +ping +info`, the
//! verbatim keys, `+getrange` so that records are read without a script, `+scan` for lists, `+config|get` for `examine`,
//! `+role` behind Sentinel, `+cluster` in a Cluster, `+wait` with [`RedisConfig::wait_for_replicas`]; for the log
//! `+hget +hmget +hset +hdel +pexpire +xadd +xrange +xrevrange +xtrim`; for queues `+hget +hset +hdel +hlen +zadd +zrem
//! +zcard +zrange +zrangebylex +zrangebyscore +zscore +zlexcount +zcount`.

mod claims;
mod client;
mod commands;
mod config;
mod connect;
mod error;
mod examine;
mod keys;
mod log;
mod oversight;
mod queue;
mod records;
mod replication_id;
mod script;
mod server_clock;
mod settled_keys;
mod store;
mod wake;

pub use commands::{RedisCommands, RedisReply};
pub use config::RedisConfig;
pub use keys::VerbatimKeys;
pub use store::RedisStore;
