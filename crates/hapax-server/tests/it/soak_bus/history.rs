//! What publishers and clients recorded.

use std::str::FromStr;

/// The position of an entry: epoch first, so that positions sort across epochs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct At {
    pub(crate) epoch: u64,
    pub(crate) offset: u64,
}

impl FromStr for At {
    type Err = ();

    fn from_str(id: &str) -> Result<Self, ()> {
        let (epoch, offset) = id.split_once('-').ok_or(())?;
        Ok(Self { epoch: epoch.parse().map_err(drop)?, offset: offset.parse().map_err(drop)? })
    }
}

/// The producer's name for an event.
pub(crate) type Name = (String, u64);

/// One job's history.
#[derive(Clone, Debug, Default)]
pub(crate) struct History {
    /// What publishers were told, in no order.
    pub(crate) acknowledged: Vec<(Name, At)>,
    /// The highest seq that an observer saw as the job's state, in the order seen.
    pub(crate) states: Vec<(At, u64)>,
    /// What each client saw, in the order seen, over all its connections.
    pub(crate) clients: Vec<Vec<Saw>>,
}

/// What a client saw.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Saw {
    Event(Name, At),
    Gap,
    Snapshot(At),
    /// The stream ended after the final event.
    End,
}
