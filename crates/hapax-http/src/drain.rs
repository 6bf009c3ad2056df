use tokio::sync::watch;

/// How many first runs there are, and whether there may be more.
#[derive(Clone, Debug, Default)]
pub(crate) struct Gate(watch::Sender<Passed>);

#[derive(Debug, Default)]
struct Passed {
    running: usize,
    closed: bool,
}

impl Gate {
    /// Lets one more in, unless the gate is closed.
    pub(crate) fn enter(&self) -> Option<Inside> {
        let mut open = false;
        self.0.send_if_modified(|passed| {
            open = !passed.closed;
            passed.running += usize::from(open);
            false
        });
        open.then(|| Inside(self.clone()))
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.0.borrow().closed
    }

    pub(crate) fn running(&self) -> usize {
        self.0.borrow().running
    }

    pub(crate) fn close(&self) -> impl Future<Output = ()> + Send + use<> {
        self.0.send_modify(|passed| passed.closed = true);
        // Holding the sender too, the channel cannot close before the last one is out.
        let gate = self.clone();
        async move {
            let _ = gate.0.subscribe().wait_for(|passed| passed.running == 0).await;
        }
    }
}

/// One first run, until it is dropped.
#[derive(Debug)]
pub(crate) struct Inside(Gate);

impl Drop for Inside {
    fn drop(&mut self) {
        self.0.0.send_if_modified(|passed| {
            passed.running -= 1;
            passed.running == 0
        });
    }
}
