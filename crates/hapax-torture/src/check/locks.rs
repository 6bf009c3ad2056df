//! Locks: one owner at a time, fences that grow, and steps that only the owner can make.

use super::KeyFindings;
use crate::history::{HistoryEntry, Observation};

/// Leases are measured by another process in whole milliseconds, on the same machine, whose clock may be slewed.
const CLOCK_MARGIN: u64 = 50_000;

/// A grant whose answer was heard, and until when its owner could be sure of it.
struct GrantedLock {
    fence: u64,
    client: u32,
    from: u64,
    to: u64,
    /// When the lease ends at the earliest.
    lease_until: u64,
    /// When the owner sent its first release.
    given_up: u64,
    /// The shortest TTL of its renewals whose end is unknown: each may be done later than those that were sent after it.
    unknown_ttl_ms: u64,
}

impl GrantedLock {
    fn held_until(&self) -> u64 {
        self.lease_until.min(self.given_up)
    }
}

pub(super) fn check(entries: &[&HistoryEntry], findings: &mut KeyFindings<'_>) {
    let mut grants = grants(entries);
    grants.sort_by_key(|grant| grant.fence);
    check_fences(&grants, findings);
    check_exclusion(&grants, findings);
    check_steps(entries, &grants, findings);
    check_resource(entries, &grants, findings);
}

/// The owner counts its lease from before the request was sent, and gives it up when it sends the release.
fn grants(entries: &[&HistoryEntry]) -> Vec<GrantedLock> {
    let mut grants: Vec<GrantedLock> = Vec::new();
    for entry in entries {
        if let Observation::LockTake { ttl_ms, outcome, .. } = &entry.what
            && let Some(fence) = outcome.done()
        {
            grants.push(GrantedLock {
                fence: *fence,
                client: entry.client,
                from: entry.from,
                to: entry.to,
                lease_until: lease_end(entry, *ttl_ms),
                given_up: u64::MAX,
                unknown_ttl_ms: u64::MAX,
            });
        }
    }
    for entry in entries {
        let mut owned = |fence: u64, change: &dyn Fn(&mut GrantedLock)| {
            let mine =
                |grant: &&mut GrantedLock| grant.fence == fence && grant.client == entry.client;
            grants.iter_mut().filter(mine).for_each(change);
        };
        match &entry.what {
            Observation::LockRenew { fence, ttl_ms, outcome, .. } => owned(*fence, &|grant| {
                let until = lease_end(entry, *ttl_ms);
                if outcome.done().is_some() && entry.to <= grant.lease_until {
                    grant.lease_until = until.min(lease_end(entry, grant.unknown_ttl_ms));
                } else {
                    grant.unknown_ttl_ms = grant.unknown_ttl_ms.min(*ttl_ms);
                    // The renewal may have been done at any time, and a shorter TTL shortens the lease. If it was done after the
                    // lease, others may have had the lock between.
                    grant.lease_until = grant.lease_until.min(until);
                }
            }),
            Observation::LockRelease { fence, .. } => {
                owned(*fence, &|grant| grant.given_up = grant.given_up.min(entry.from));
            }
            _ => {}
        }
    }
    grants
}

fn lease_end(entry: &HistoryEntry, ttl_ms: u64) -> u64 {
    entry.from.saturating_add(ttl_ms.saturating_mul(1000)).saturating_sub(CLOCK_MARGIN)
}

/// A later grant has a greater fence, and no two have the same.
fn check_fences(grants: &[GrantedLock], findings: &mut KeyFindings<'_>) {
    // The earliest end among all grants with greater fences.
    let mut later_end: Option<(u64, u64)> = None;
    for pair in grants.windows(2) {
        if pair[0].fence == pair[1].fence {
            let what = format!(
                "fence {} was granted twice, to client {} and client {}",
                pair[0].fence, pair[0].client, pair[1].client
            );
            findings.report(pair[1].to, what);
        }
    }
    for grant in grants.iter().rev() {
        if let Some((end, fence)) = later_end
            && end < grant.from
        {
            let what = format!(
                "the fence went back from {fence} to {} (client {})",
                grant.fence, grant.client
            );
            findings.report(grant.to, what);
        }
        if later_end.is_none_or(|(end, _)| grant.to < end) {
            later_end = Some((grant.to, grant.fence));
        }
    }
}

/// No grant lies wholly within the time in which another owner could be sure of the lock.
fn check_exclusion(grants: &[GrantedLock], findings: &mut KeyFindings<'_>) {
    let mut by_time: Vec<&GrantedLock> = grants.iter().collect();
    by_time.sort_by_key(|grant| grant.from);
    for owner in &by_time {
        let first = by_time.partition_point(|other| other.from < owner.to);
        for other in by_time[first..].iter().take_while(|other| other.from < owner.held_until()) {
            if other.to < owner.held_until() {
                let what = format!(
                    "client {} got the lock with fence {} while client {} held it with fence {}",
                    other.client, other.fence, owner.client, owner.fence
                );
                findings.report_loss("locks (second owner)", other.to, what);
            }
        }
    }
}

/// An owner whose successor was known cannot renew or release any more.
fn check_steps(entries: &[&HistoryEntry], grants: &[GrantedLock], findings: &mut KeyFindings<'_>) {
    for entry in entries {
        let (step, fence) = match &entry.what {
            Observation::LockRenew { fence, outcome, .. } if outcome.done().is_some() => {
                ("renewed", *fence)
            }
            Observation::LockRelease { fence, outcome, .. } if outcome.done().is_some() => {
                ("released", *fence)
            }
            Observation::LockRenew { fence, outcome, .. } if outcome.is_refused() => {
                check_refusal(entry, *fence, grants, findings);
                continue;
            }
            _ => continue,
        };
        let first = grants.partition_point(|grant| grant.fence <= fence);
        if let Some(next) = grants[first..].iter().find(|next| next.to < entry.from) {
            let what = format!(
                "client {} {step} the lock with fence {fence} although client {} had got it with fence {}",
                entry.client, next.client, next.fence
            );
            findings.report_loss("locks (second owner)", entry.to, what);
        }
    }
}

/// An owner keeps its lock until its lease ends.
fn check_refusal(
    entry: &HistoryEntry,
    fence: u64,
    grants: &[GrantedLock],
    findings: &mut KeyFindings<'_>,
) {
    let held = |grant: &GrantedLock| {
        grant.fence == fence && grant.client == entry.client && entry.to < grant.held_until()
    };
    if grants.iter().any(held) {
        let what =
            format!("client {} lost the lock with fence {fence} before its TTL", entry.client);
        findings.report_loss("locks (grant)", entry.to, what);
    }
}

/// The resource never goes back, and never refuses an owner that can be sure of its lock.
fn check_resource(
    entries: &[&HistoryEntry],
    grants: &[GrantedLock],
    findings: &mut KeyFindings<'_>,
) {
    let mut largest = 0;
    for entry in entries {
        let Observation::FencedWrite { fence, accepted, .. } = entry.what else { continue };
        if accepted && fence < largest {
            let what = format!("the resource took fence {fence} after {largest}");
            findings.report(entry.to, what);
        }
        if accepted {
            largest = largest.max(fence);
        }
        let held = |grant: &GrantedLock| {
            grant.fence == fence && grant.client == entry.client && entry.to < grant.held_until()
        };
        if !accepted && grants.iter().any(held) {
            let what = format!(
                "the resource refused client {} although it held the lock with fence {fence}",
                entry.client
            );
            findings.report_loss("locks (late write, refused by its fence)", entry.to, what);
        }
    }
}
