//! What the writers, the sink and the consumer behind it recorded.

/// A row that a writer put into the outbox.
#[derive(Clone, Debug)]
pub(crate) struct Row {
    pub(crate) id: String,
    pub(crate) key: String,
    /// When its transaction began and when its end was known, on one clock of the test's.
    pub(crate) began: u64,
    pub(crate) ended: u64,
    pub(crate) committed: bool,
}

/// The complete history.
#[derive(Clone, Debug, Default)]
pub(crate) struct History {
    pub(crate) rows: Vec<Row>,
    /// Ids as the sink got them, in that order.
    pub(crate) deliveries: Vec<String>,
    /// Ids whose effect the consumer committed.
    pub(crate) effects: Vec<String>,
    /// Whether nothing was killed, cut or failed: then no row may be sent twice.
    pub(crate) undisturbed: bool,
}
