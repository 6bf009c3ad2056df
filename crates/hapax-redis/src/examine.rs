//! Findings about the servers' configuration, for an operator.

use std::collections::HashMap;

use hapax_core::{Clock, Finding, Promise, Severity, StoreError, StoreResult, SystemClock};
use redis::{Value, cmd};

use crate::client::{RedisClient, read};

/// Clocks that differ by no more than this count as equal, in ms.
const MAX_SKEW: u64 = 1000;

/// The settings and state of one master; `None` where the server does not permit the command.
#[derive(Clone, Debug, Default)]
struct MasterInfo {
    info: HashMap<String, String>,
    fsync: Option<String>,
    /// Whether a server whose append-only file ends in the middle of a write starts all the same.
    loads_truncated: Option<String>,
    min_replicas: Option<String>,
    cluster: Option<HashMap<String, String>>,
    /// The difference between the server's clock and the local one, in ms.
    skew: Option<u64>,
}

pub(crate) async fn findings(client: &RedisClient) -> StoreResult<Vec<Finding>> {
    let masters = gather(client).await?;
    if masters.iter().any(|master| master.text("role") == "slave") && client.find_masters_again() {
        // Waiting helps, so it is no finding, which would end a process that starts during a failover.
        let reason = "a master has become a replica; looking for the new one".into();
        return Err(StoreError::Unavailable { reason, source: None });
    }
    let checks = [version, eviction, durability, torn_writes, replication, slots, clock];
    let worst = |check: fn(&MasterInfo) -> Option<Finding>| {
        masters.iter().filter_map(check).max_by_key(|finding| finding.severity)
    };
    let mut findings: Vec<Finding> = checks.into_iter().filter_map(worst).collect();
    if masters.len() > 1 {
        for finding in findings.iter_mut().filter(|f| f.severity == Severity::Fine) {
            finding.detail =
                format!("{} (similar on all {} masters)", finding.detail, masters.len());
        }
    }
    Ok(findings)
}

async fn gather(client: &RedisClient) -> StoreResult<Vec<MasterInfo>> {
    let infos = client.send_to_masters(&cmd("INFO")).await?;
    let mut masters = Vec::new();
    for (_, info) in infos {
        masters.push(MasterInfo { info: parse_lines(info)?, ..MasterInfo::default() });
    }
    // Managed servers forbid some of these commands; the findings then say that a setting is not known.
    let fsync = setting(client, "appendfsync").await;
    let loads_truncated = setting(client, "aof-load-truncated").await;
    let min_replicas = setting(client, "min-replicas-to-write").await;
    let skews = skews(client).await;
    let clustered = masters.iter().any(|m| m.text("cluster_enabled") == "1");
    let cluster = if clustered {
        client.send_to_masters(cmd("CLUSTER").arg("INFO")).await.ok()
    } else {
        None
    };
    for (i, master) in masters.iter_mut().enumerate() {
        master.fsync = fsync.get(i).cloned();
        master.loads_truncated = loads_truncated.get(i).cloned();
        master.min_replicas = min_replicas.get(i).cloned();
        master.skew = skews.get(i).copied();
        let state = cluster.as_ref().and_then(|replies| replies.get(i));
        master.cluster = state.and_then(|(_, reply)| parse_lines(reply.clone()).ok());
    }
    Ok(masters)
}

async fn setting(client: &RedisClient, name: &str) -> Vec<String> {
    let replies =
        client.send_to_masters(cmd("CONFIG").arg("GET").arg(name)).await.unwrap_or_default();
    let value = |(_, reply)| read::<Vec<String>>(reply).ok()?.into_iter().nth(1);
    replies.into_iter().filter_map(value).collect()
}

async fn skews(client: &RedisClient) -> Vec<u64> {
    let before = SystemClock.now().0;
    let replies = client.send_to_masters(&cmd("TIME")).await.unwrap_or_default();
    let after = SystemClock.now().0;
    let skew = |(_, reply)| {
        let (seconds, micros): (u64, u64) = read(reply).ok()?;
        let there = seconds * 1000 + micros / 1000;
        Some(before.saturating_sub(there).max(there.saturating_sub(after)))
    };
    replies.into_iter().filter_map(skew).collect()
}

fn parse_lines(reply: Value) -> StoreResult<HashMap<String, String>> {
    let text: String = read(reply)?;
    let pairs = text.lines().filter_map(|line| line.split_once(':'));
    Ok(pairs.map(|(name, value)| (name.to_owned(), value.trim().to_owned())).collect())
}

impl MasterInfo {
    fn text(&self, name: &str) -> &str {
        self.info.get(name).map_or("", String::as_str)
    }

    fn number(&self, name: &str) -> u64 {
        self.text(name).parse().unwrap_or(0)
    }
}

fn version(master: &MasterInfo) -> Option<Finding> {
    let version = master.text("redis_version");
    let mut parts = version.split('.').map(|part| part.parse::<u32>().unwrap_or(0));
    let number = (parts.next().unwrap_or(0), parts.next().unwrap_or(0));
    let refusal = Finding::refuse(
        "redis.version",
        Promise::MutualExclusion,
        format!("version {version}; the scripts are made for 6.2 and later"),
        "upgrade to Redis 6.2 or later, or to Valkey",
    );
    let product = match master.text("valkey_version") {
        "" => format!("Redis {version}"),
        valkey => format!("Valkey {valkey}"),
    };
    Some(refusal.unless(number >= (6, 2), product))
}

fn eviction(master: &MasterInfo) -> Option<Finding> {
    const CHECK: &str = "redis.eviction";
    const FIX: &str = "set maxmemory-policy noeviction: a full server must refuse, not forget";
    let limit = master.number("maxmemory");
    Some(match (master.text("maxmemory_policy"), limit) {
        ("noeviction", 0) => Finding::fine(CHECK, "nothing is evicted; memory is not limited"),
        ("noeviction", _) => {
            Finding::fine(CHECK, format!("nothing is evicted; limit {limit} bytes"))
        }
        ("", _) => Finding::warn(CHECK, Promise::Remembered, "the policy is not known", FIX),
        (policy, 0) => {
            let detail = format!("policy {policy}, harmless only while memory is not limited");
            Finding::warn(CHECK, Promise::Remembered, detail, FIX)
        }
        (policy, _) => {
            let detail = format!("policy {policy} with a limit of {limit} bytes");
            Finding::refuse(CHECK, Promise::Remembered, detail, FIX)
        }
    })
}

fn durability(master: &MasterInfo) -> Option<Finding> {
    const CHECK: &str = "redis.durability";
    let warn = |detail: &str, fix: &str| Finding::warn(CHECK, Promise::Durable, detail, fix);
    Some(match (master.text("aof_enabled"), master.fsync.as_deref()) {
        _ if master.text("aof_last_write_status") == "err" => warn(
            "the append-only file cannot be written",
            "see the server's log; often a full disk",
        ),
        ("0", _) => warn(
            "no append-only file: a crash loses everything since the last snapshot",
            "set appendonly yes and appendfsync always",
        ),
        ("1", Some("always")) => {
            Finding::fine(CHECK, "every write is on disk before it is acknowledged")
        }
        ("1", Some("everysec")) => warn(
            "appendfsync everysec: a power cut loses what the last second acknowledged",
            "set appendfsync always",
        ),
        ("1", Some(policy)) => warn(
            &format!("appendfsync {policy}: a power cut loses what was acknowledged lately"),
            "set appendfsync always",
        ),
        _ => warn(
            "the server does not permit CONFIG GET, so it is not known whether writes reach the disk",
            "allow CONFIG GET, or make sure of appendonly yes and appendfsync always",
        ),
    })
}

/// Redis and Valkey write a script's changes between `MULTI` and `EXEC`. If a crash cuts them off, a server that starts all
/// the same removes the last, incomplete command and leaves the `MULTI`: what follows is applied with the half of the
/// script at the next start, or is lost if no `EXEC` came after it (valkey-io/valkey#4342).
fn torn_writes(master: &MasterInfo) -> Option<Finding> {
    const CHECK: &str = "redis.torn_writes";
    if master.text("aof_enabled") != "1" {
        return None;
    }
    Some(match master.loads_truncated.as_deref()? {
        "no" => Finding::fine(CHECK, "a cut append-only file is not loaded before it is mended"),
        _ => Finding::warn(
            CHECK,
            Promise::Durable,
            "aof-load-truncated yes: a crash in the middle of a write, and a second one later, can \
             lose what was acknowledged between them",
            "set aof-load-truncated no and mend the file with redis-check-aof --fix, or run BGREWRITEAOF \
             after each crash",
        ),
    })
}

fn replication(master: &MasterInfo) -> Option<Finding> {
    const CHECK: &str = "redis.replication";
    let replicas = master.number("connected_slaves");
    let least = master.min_replicas.as_deref().unwrap_or("0");
    Some(match master.text("role") {
        "slave" => Finding::refuse(
            CHECK,
            Promise::Durable,
            "this server is a replica and takes no writes",
            "use the master's address, redis+sentinel:// or redis+cluster://",
        ),
        _ if replicas == 0 => Finding::fine(CHECK, "no replica, so no failover that loses writes"),
        _ if least == "0" => Finding::warn(
            CHECK,
            Promise::MutualExclusion,
            format!(
                "{replicas} replicas, none of which a write waits for: a failover can lose the last ones"
            ),
            "set min-replicas-to-write, and let what you write to compare fences",
        ),
        _ => Finding::warn(
            CHECK,
            Promise::MutualExclusion,
            format!(
                "{replicas} replicas, of which {least} must be connected: a failover can still lose the last writes"
            ),
            "let what you write to compare fences",
        ),
    })
}

fn slots(master: &MasterInfo) -> Option<Finding> {
    if master.text("cluster_enabled") != "1" {
        return None;
    }
    let state_of =
        |name: &str| master.cluster.as_ref().and_then(|c| c.get(name)).map_or("?", String::as_str);
    let (state, served) = (state_of("cluster_state"), state_of("cluster_slots_ok"));
    let warning = Finding::warn(
        "redis.cluster",
        Promise::BoundedTime,
        format!("state {state}, {served} of 16384 slots are served; keys in the others fail"),
        "see CLUSTER NODES; bring the missing masters back",
    );
    Some(warning.unless(state == "ok" && served == "16384", "all 16384 slots are served"))
}

fn clock(master: &MasterInfo) -> Option<Finding> {
    let detail = match master.skew {
        None => "the server's clock is not known".to_owned(),
        Some(ms) => format!("{ms} ms from the local clock; leases and TTLs follow the server's"),
    };
    let fix = "keep the clocks of all servers together, and let NTP slew them: leases end early or late \
               when they are set, and fences follow them across a failover";
    let warning = Finding::warn("redis.clock", Promise::FencesGrow, &*detail, fix);
    Some(warning.unless(master.skew.is_some_and(|ms| ms <= MAX_SKEW), detail))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts(info: &[(&str, &str)]) -> MasterInfo {
        let info = info.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
        MasterInfo { info, ..MasterInfo::default() }
    }

    fn severity(finding: Option<Finding>) -> Severity {
        finding.unwrap().severity
    }

    #[test]
    fn versions_before_6_2_are_refused() {
        let of = |version| severity(super::version(&facts(&[("redis_version", version)])));
        assert_eq!(of("6.0.16"), Severity::Refuse);
        assert_eq!(of("6.2.0"), Severity::Fine);
        assert_eq!(of("10.0.1"), Severity::Fine);
    }

    #[test]
    fn evicting_servers_are_refused() {
        let of = |policy, limit| {
            severity(eviction(&facts(&[("maxmemory_policy", policy), ("maxmemory", limit)])))
        };
        assert_eq!(of("allkeys-lru", "1000"), Severity::Refuse);
        assert_eq!(of("allkeys-lru", "0"), Severity::Warn);
        assert_eq!(of("noeviction", "1000"), Severity::Fine);
    }

    #[test]
    fn durability_is_fine_only_with_fsync_always() {
        let of = |aof, fsync: Option<&str>| {
            let fsync = fsync.map(str::to_owned);
            severity(durability(&MasterInfo { fsync, ..facts(&[("aof_enabled", aof)]) }))
        };
        assert_eq!(of("1", Some("always")), Severity::Fine);
        assert_eq!(of("1", Some("everysec")), Severity::Warn);
        assert_eq!(of("1", None), Severity::Warn);
        assert_eq!(of("0", Some("always")), Severity::Warn);
    }

    #[test]
    fn replica_is_refused_and_skewed_clock_is_warned_of() {
        assert_eq!(severity(replication(&facts(&[("role", "slave")]))), Severity::Refuse);
        let skewed = MasterInfo { skew: Some(5000), ..MasterInfo::default() };
        assert_eq!(severity(clock(&skewed)), Severity::Warn);
    }
}
