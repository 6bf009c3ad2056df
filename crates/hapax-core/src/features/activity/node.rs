//! Nodes: the processes that share a store, as they report themselves.

use serde::{Deserialize, Serialize};

/// A heartbeat of a process.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct NodeReport {
    /// When it was sent, in milliseconds since the Unix epoch.
    pub at: u64,
    /// The name of the node.
    pub node: String,
    /// The kind of the node: `api`, `proxy`, `relay`, `line`, `layer`, or any other.
    pub edge: String,
    /// The version of hapax.
    pub version: String,
    /// When the process started, in milliseconds since the Unix epoch.
    pub started_at: u64,
    /// The id of the process.
    pub pid: u32,
    /// How long the store took to answer a ping; `None` where it did not.
    pub store_latency_ms: Option<u64>,
    /// How many checks of the store found something wrong.
    pub findings: u64,
    /// Whether the process has ended in order.
    pub stopped: bool,
    /// What the node sends to: the sink of a relay, the bot of a LINE gateway.
    pub target: Option<NodeTarget>,
    /// How many messages a LINE channel may send.
    pub quota: Option<MessageQuota>,
}

/// What a node sends to.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct NodeTarget {
    /// The kind of the target: `nats`, `webhook`, `bot`.
    pub name: String,
    /// The queue that is sent.
    pub queue: Option<String>,
    /// Whether the target takes anything.
    pub up: bool,
    /// Why it was last away; kept when it is back.
    pub last_error: Option<String>,
}

/// How many messages a LINE channel may send in a month, and has sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct MessageQuota {
    /// The limit; `None` where there is none.
    pub limit: Option<u64>,
    /// The messages that were sent in this month.
    pub used: u64,
}
