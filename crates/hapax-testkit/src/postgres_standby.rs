//! A PostgreSQL primary with a hot standby.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crate::postgres::Postgres;
use crate::wait::{START_TIMEOUT, wait_or_explain};

const QUERY_TIMEOUT: Duration = Duration::from_secs(5);

/// A PostgreSQL primary and a hot standby, which can change places.
pub struct PostgresStandby {
    servers: [Postgres; 2],
    /// The place of the primary among the servers.
    primary: AtomicUsize,
}

impl PostgresStandby {
    /// Starts both, and returns when the standby follows. With `synchronous` a commit is acknowledged when the standby
    /// has it on disk, and waits for as long as there is no standby.
    pub fn start(synchronous: bool) -> Self {
        let names = if synchronous { "standby" } else { "" };
        let settings = [
            ("synchronous_standby_names", names),
            // A standby that was away for a while still finds what it missed.
            ("wal_keep_size", "256MB"),
            // A standby that is restarted reconnects at once, not after five seconds.
            ("wal_retrieve_retry_interval", "100ms"),
        ];
        let primary = Postgres::with(&settings);
        let standby = Postgres::standby_of(primary.port(), &settings);
        let pair = Self { servers: [primary, standby], primary: AtomicUsize::new(0) };
        pair.wait_for_standby();
        pair
    }

    /// `postgres://postgres@127.0.0.1:A,127.0.0.1:B/postgres?target_session_attrs=read-write` with both servers.
    pub fn url(&self) -> String {
        self.url_through(self.ports())
    }

    /// The same URL with other ports, such as those of proxies before the servers.
    pub fn url_through(&self, ports: [u16; 2]) -> String {
        let [one, other] = ports;
        format!(
            "postgres://postgres@127.0.0.1:{one},127.0.0.1:{other}/postgres?target_session_attrs=read-write"
        )
    }

    /// The ports of both servers, whichever is the primary by now.
    pub fn ports(&self) -> [u16; 2] {
        [self.servers[0].port(), self.servers[1].port()]
    }

    /// The server on that port.
    ///
    /// # Panics
    ///
    /// When neither has that port.
    pub fn node(&self, port: u16) -> &Postgres {
        let node = self.servers.iter().find(|server| server.port() == port);
        node.unwrap_or_else(|| panic!("no server has port {port}"))
    }

    /// The server that takes writes.
    pub fn primary(&self) -> &Postgres {
        &self.servers[self.primary.load(Ordering::SeqCst)]
    }

    /// The server that follows the primary.
    pub fn standby(&self) -> &Postgres {
        &self.servers[1 - self.primary.load(Ordering::SeqCst)]
    }

    /// Waits until the standby has all that was committed before it connected, and follows: only then may it be promoted.
    pub fn wait_for_standby(&self) {
        let streaming = "SELECT count(*) FROM pg_stat_replication \
                         WHERE application_name = 'standby' AND state = 'streaming'";
        self.wait("the standby follows", || {
            let answer = self.primary().try_psql("postgres", streaming, QUERY_TIMEOUT);
            (answer.ok()? == "1").then_some(())
        });
    }

    /// Promotes the standby, and returns when it takes writes. The old primary has to be dead or paused by then; it stays
    /// so until [`rejoin`](Self::rejoin).
    pub fn promote_standby(&self) {
        self.wait("the standby can be promoted", || {
            let promote = "SELECT pg_promote(true, 60)";
            let answer = self.standby().try_psql("postgres", promote, Duration::from_secs(70));
            (answer.ok()? == "t").then_some(())
        });
        self.primary.fetch_xor(1, Ordering::SeqCst);
    }

    /// Makes the old primary a standby of the new one, without what only it had, and returns when it follows. Kills it
    /// first: a paused one that goes on would take writes that nobody keeps.
    pub fn rejoin(&self) {
        self.standby().restart_as_standby_of(self.primary().port());
        self.wait_for_standby();
    }

    fn wait<T>(&self, what: &str, probe: impl FnMut() -> Option<T>) -> T {
        wait_or_explain(what, START_TIMEOUT, probe, || self.log_tail())
    }

    /// The ends of both servers' logs, for messages.
    pub fn log_tail(&self) -> String {
        self.servers.iter().map(Postgres::log_tail).collect::<Vec<_>>().join("\n")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn standby_has_what_was_committed_and_can_be_promoted() {
        let pair = PostgresStandby::start(true);
        let first = pair.primary().port();
        pair.primary().psql("CREATE TABLE kept AS SELECT 7 AS number");
        for round in 0..2 {
            pair.primary().kill();
            pair.promote_standby();
            pair.rejoin();
            assert_eq!(pair.primary().port() == first, round == 1);
            assert_eq!(pair.primary().psql("SELECT number FROM kept"), "7");
            pair.primary().psql("UPDATE kept SET number = number");
        }
    }
}
