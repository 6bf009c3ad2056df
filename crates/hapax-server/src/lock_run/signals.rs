//! Signals to this process, in order.

use std::fs;
use std::io;

use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;

/// The signals that ask a process to end.
pub(super) struct ForwardedSignals(mpsc::UnboundedReceiver<i32>);

impl ForwardedSignals {
    /// Catches the signals from now on. A signal that this process was started to ignore stays ignored,
    /// as `nohup` and background jobs of a shell expect.
    pub(super) fn install() -> io::Result<Self> {
        let (sender, receiver) = mpsc::unbounded_channel();
        let ignored = ignored();
        let all = [
            SignalKind::terminate(),
            SignalKind::interrupt(),
            SignalKind::quit(),
            SignalKind::hangup(),
        ];
        for kind in all {
            let number = kind.as_raw_value();
            if ignored & (1 << (number - 1)) != 0 {
                continue;
            }
            let mut stream = signal(kind)?;
            let sender = sender.clone();
            tokio::spawn(async move {
                while stream.recv().await.is_some() && sender.send(number).is_ok() {}
            });
        }
        Ok(Self(receiver))
    }

    /// The next signal.
    pub(super) async fn next(&mut self) -> i32 {
        match self.0.recv().await {
            Some(signal) => signal,
            // All signals are ignored.
            None => std::future::pending().await,
        }
    }

    /// A signal that has arrived already.
    pub(super) fn try_next(&mut self) -> Option<i32> {
        self.0.try_recv().ok()
    }
}

/// The mask of ignored signals; zero outside Linux.
fn ignored() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}
