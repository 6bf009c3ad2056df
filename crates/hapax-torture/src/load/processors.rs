//! Half of the processors for the servers and half for their clients, as if these were other machines: what is measured is
//! how the servers share theirs, and not who wins a processor from a client that never rests.

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// The processors of this thread, and of the threads and processes that it starts.
pub(super) struct Processors {
    all: CpuSet,
    servers: CpuSet,
    clients: CpuSet,
}

impl Processors {
    /// The halves of what this thread may use; with one processor, both are that one.
    pub(super) fn halve() -> anyhow::Result<Self> {
        let all = sched_getaffinity(None)?;
        let usable: Vec<usize> =
            (0..CpuSet::MAX_CPU).filter(|number| all.is_set(*number)).collect();
        let (first, second) = usable.split_at(usable.len().div_ceil(2));
        let set = |numbers: &[usize]| {
            let mut set = CpuSet::new();
            numbers.iter().for_each(|number| set.set(*number));
            set
        };
        let clients = if second.is_empty() { set(first) } else { set(second) };
        Ok(Self { all, servers: set(first), clients })
    }

    /// Gives the servers' half to this thread, and to whatever it starts from now on.
    pub(super) fn use_for_servers(&self) -> anyhow::Result<()> {
        Ok(sched_setaffinity(None, &self.servers)?)
    }

    /// Gives the clients' half to this thread, and to whatever it starts from now on.
    pub(super) fn use_for_clients(&self) -> anyhow::Result<()> {
        Ok(sched_setaffinity(None, &self.clients)?)
    }
}

impl Drop for Processors {
    fn drop(&mut self) {
        let _ = sched_setaffinity(None, &self.all);
    }
}
