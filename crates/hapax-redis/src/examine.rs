//! What an operator should know about the servers.

use std::collections::HashMap;

use hapax_core::{Clock, Finding, Promise, Severity, StoreError, SystemClock};
use redis::{Value, cmd};

use crate::calls::{Calls, read};

/// Up to this difference clocks count as equal, in ms.
const SKEW: u64 = 1000;

/// What one master says about itself; `None` where it does not let us ask.
#[derive(Clone, Debug, Default)]
struct Facts {
    info: HashMap<String, String>,
    fsync: Option<String>,
    min_replicas: Option<String>,
    cluster: Option<HashMap<String, String>>,
    /// How far its clock is from the one here, in ms.
    skew: Option<u64>,
}

pub(crate) async fn findings(calls: &Calls) -> Result<Vec<Finding>, StoreError> {
    let masters = gather(calls).await?;
    let checks = [version, eviction, durability, replication, slots, clock];
    let worst = |check: fn(&Facts) -> Option<Finding>| {
        masters.iter().filter_map(check).max_by_key(|finding| finding.severity)
    };
    let mut findings: Vec<Finding> = checks.into_iter().filter_map(worst).collect();
    if masters.len() > 1 {
        for finding in findings.iter_mut().filter(|f| f.severity == Severity::Fine) {
            finding.detail =
                format!("{} (the like on all {} masters)", finding.detail, masters.len());
        }
    }
    Ok(findings)
}

async fn gather(calls: &Calls) -> Result<Vec<Facts>, StoreError> {
    let infos = calls.ask_all(&cmd("INFO")).await?;
    let mut masters = Vec::new();
    for info in infos {
        masters.push(Facts { info: lines(info)?, ..Facts::default() });
    }
    // Managed servers forbid some of these; what cannot be asked is reported as such.
    let fsync = setting(calls, "appendfsync").await;
    let min_replicas = setting(calls, "min-replicas-to-write").await;
    let skews = skews(calls).await;
    let clustered = masters.iter().any(|m| m.says("cluster_enabled") == "1");
    let cluster =
        if clustered { calls.ask_all(cmd("CLUSTER").arg("INFO")).await.ok() } else { None };
    for (i, master) in masters.iter_mut().enumerate() {
        master.fsync = fsync.get(i).cloned();
        master.min_replicas = min_replicas.get(i).cloned();
        master.skew = skews.get(i).copied();
        let states = cluster.as_ref().and_then(|answers| answers.get(i));
        master.cluster = states.and_then(|answer| lines(answer.clone()).ok());
    }
    Ok(masters)
}

async fn setting(calls: &Calls, name: &str) -> Vec<String> {
    let answers = calls.ask_all(cmd("CONFIG").arg("GET").arg(name)).await.unwrap_or_default();
    let value = |answer| read::<Vec<String>>(answer).ok()?.into_iter().nth(1);
    answers.into_iter().filter_map(value).collect()
}

async fn skews(calls: &Calls) -> Vec<u64> {
    let before = SystemClock.now().0;
    let answers = calls.ask_all(&cmd("TIME")).await.unwrap_or_default();
    let after = SystemClock.now().0;
    let skew = |answer| {
        let (seconds, micros): (u64, u64) = read(answer).ok()?;
        let there = seconds * 1000 + micros / 1000;
        Some(before.saturating_sub(there).max(there.saturating_sub(after)))
    };
    answers.into_iter().filter_map(skew).collect()
}

fn lines(answer: Value) -> Result<HashMap<String, String>, StoreError> {
    let text: String = read(answer)?;
    let pairs = text.lines().filter_map(|line| line.split_once(':'));
    Ok(pairs.map(|(name, value)| (name.to_owned(), value.trim().to_owned())).collect())
}

impl Facts {
    fn says(&self, name: &str) -> &str {
        self.info.get(name).map_or("", String::as_str)
    }

    fn number(&self, name: &str) -> u64 {
        self.says(name).parse().unwrap_or(0)
    }
}

fn version(master: &Facts) -> Option<Finding> {
    const CHECK: &str = "redis.version";
    let version = master.says("redis_version");
    let mut parts = version.split('.').map(|part| part.parse::<u32>().unwrap_or(0));
    let number = (parts.next().unwrap_or(0), parts.next().unwrap_or(0));
    if number < (6, 2) {
        return Some(Finding::refuse(
            CHECK,
            Promise::MutualExclusion,
            format!("version {version}; the scripts are made for 6.2 and later"),
            "upgrade to Redis 6.2 or later, or to Valkey",
        ));
    }
    Some(Finding::fine(
        CHECK,
        match master.says("valkey_version") {
            "" => format!("Redis {version}"),
            valkey => format!("Valkey {valkey}"),
        },
    ))
}

fn eviction(master: &Facts) -> Option<Finding> {
    const CHECK: &str = "redis.eviction";
    const FIX: &str = "set maxmemory-policy noeviction: a full server must refuse, not forget";
    let limit = master.number("maxmemory");
    Some(match (master.says("maxmemory_policy"), limit) {
        ("noeviction", 0) => Finding::fine(CHECK, "nothing is evicted; memory is not limited"),
        ("noeviction", _) => {
            Finding::fine(CHECK, format!("nothing is evicted; limit {limit} bytes"))
        }
        ("", _) => {
            Finding::warn(CHECK, Promise::Remembered, "the policy could not be checked", FIX)
        }
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

fn durability(master: &Facts) -> Option<Finding> {
    const CHECK: &str = "redis.durability";
    let warn = |detail: &str, fix: &str| Finding::warn(CHECK, Promise::Durable, detail, fix);
    Some(match (master.says("aof_enabled"), master.fsync.as_deref()) {
        _ if master.says("aof_last_write_status") == "err" => warn(
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
            "the server does not let us ask whether writes reach the disk",
            "allow CONFIG GET, or make sure of appendonly yes and appendfsync always",
        ),
    })
}

fn replication(master: &Facts) -> Option<Finding> {
    const CHECK: &str = "redis.replication";
    let replicas = master.number("connected_slaves");
    let least = master.min_replicas.as_deref().unwrap_or("0");
    Some(match master.says("role") {
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

fn slots(master: &Facts) -> Option<Finding> {
    const CHECK: &str = "redis.cluster";
    if master.says("cluster_enabled") != "1" {
        return None;
    }
    let says =
        |name: &str| master.cluster.as_ref().and_then(|c| c.get(name)).map_or("?", String::as_str);
    let (state, served) = (says("cluster_state"), says("cluster_slots_ok"));
    Some(if state == "ok" && served == "16384" {
        Finding::fine(CHECK, "all 16384 slots are served")
    } else {
        Finding::warn(
            CHECK,
            Promise::BoundedTime,
            format!("state {state}, {served} of 16384 slots are served; keys in the others fail"),
            "see CLUSTER NODES; bring the missing masters back",
        )
    })
}

fn clock(master: &Facts) -> Option<Finding> {
    const CHECK: &str = "redis.clock";
    const FIX: &str =
        "keep the clocks of all servers together (NTP): fences follow them across a failover";
    Some(match master.skew {
        None => Finding::warn(CHECK, Promise::FencesGrow, "the clock could not be asked", FIX),
        Some(ms) if ms > SKEW => Finding::warn(
            CHECK,
            Promise::FencesGrow,
            format!("{ms} ms away from the clock here"),
            FIX,
        ),
        Some(ms) => Finding::fine(CHECK, format!("{ms} ms away from the clock here")),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts(info: &[(&str, &str)]) -> Facts {
        let info = info.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
        Facts { info, ..Facts::default() }
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
    fn only_fsync_always_is_durable() {
        let of = |aof, fsync: Option<&str>| {
            let fsync = fsync.map(str::to_owned);
            severity(durability(&Facts { fsync, ..facts(&[("aof_enabled", aof)]) }))
        };
        assert_eq!(of("1", Some("always")), Severity::Fine);
        assert_eq!(of("1", Some("everysec")), Severity::Warn);
        assert_eq!(of("1", None), Severity::Warn);
        assert_eq!(of("0", Some("always")), Severity::Warn);
    }

    #[test]
    fn a_replica_is_refused_and_a_skewed_clock_is_told() {
        assert_eq!(severity(replication(&facts(&[("role", "slave")]))), Severity::Refuse);
        let skewed = Facts { skew: Some(5000), ..Facts::default() };
        assert_eq!(severity(clock(&skewed)), Severity::Warn);
    }
}
