use super::claims::ClaimTable;
use super::{MemoryStore, Tables};

/// The data of a [`MemoryStore`] at one moment, from [`MemoryStore::replica`].
#[derive(Clone, Debug)]
pub struct MemoryReplica {
    claims: Vec<ClaimTable>,
    tables: Tables,
}

/// A failover that loses acknowledged writes, so that a test can see what its program does then.
///
/// ```
/// use hapax_core::{Expect, Key, Records, Tenant, memory::MemoryStore};
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let store = MemoryStore::default();
/// let replica = store.replica();
/// let key = Key::record(&Tenant::default(), "r")?;
/// let _ = store.put(&key, "1".into(), &Expect::Any, None).await?;
/// store.fail_over_to(replica);
/// assert_eq!(store.get(&key).await?, None);
/// # Ok(()) }
/// ```
impl MemoryStore {
    /// A copy of all data, which does not follow later writes.
    pub fn replica(&self) -> MemoryReplica {
        let (claims, tables) = (self.claims.all(), self.tables());
        let claims = claims.iter().map(|part| ClaimTable::clone(part)).collect();
        MemoryReplica { claims, tables: tables.clone() }
    }

    /// Continues with the data of the replica: all later writes are lost. Every log goes on under another epoch,
    /// at which readers get a gap. Fences, versions and positions that were used before are not used again.
    pub fn fail_over_to(&self, replica: MemoryReplica) {
        let (mut claims, mut tables) = (self.claims.all(), self.tables());
        for (part, kept) in claims.iter_mut().zip(replica.claims) {
            **part = kept;
        }
        let mut next = replica.tables;
        next.last_epoch = tables.last_epoch;
        for (partition, changes) in &tables.tails {
            next.tails.entry(*partition).or_default().last = changes.last;
        }
        let epoch = next.next_epoch(self.clock.now());
        next.jobs.values_mut().for_each(|job| job.epochs.turn(epoch, job.last + 1, true));
        *tables = next;
    }
}
