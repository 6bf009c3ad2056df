//! PgBouncer before a PostgreSQL server.

use std::fmt::Write as _;
use std::fs;
use std::time::Duration;

use tempfile::TempDir;

use crate::cleanup;
use crate::ports::{PortTaken, with_free_port};
use crate::postgres::{Postgres, as_server_user, give_to_server_user};
use crate::process::{Process, server_methods};

/// PgBouncer before a [`Postgres`], killed when dropped. Every user may log in as `postgres`.
pub struct PgBouncer {
    // Fields are dropped in this order: the program ends before its folder is removed.
    process: Process,
    port: u16,
    folder: TempDir,
}

impl PgBouncer {
    server_methods!(stop, cont, kill);

    /// Starts it with settings as in `pgbouncer.ini`, which win over the defaults: `&[("pool_mode", "transaction")]`.
    pub fn before(postgres: &Postgres, settings: &[(&str, &str)]) -> Self {
        with_free_port(|port| {
            let folder = cleanup::temp_folder("pgbouncer-");
            give_to_server_user(folder.path());
            let (server, place) = (postgres.port(), folder.path().display());
            let mut file = format!(
                "[databases]\n\
                 * = host=127.0.0.1 port={server} user=postgres\n\
                 [pgbouncer]\n\
                 listen_addr = 127.0.0.1\n\
                 listen_port = {port}\n\
                 unix_socket_dir =\n\
                 auth_type = any\n\
                 max_client_conn = 1000\n\
                 default_pool_size = 10\n\
                 server_login_retry = 1\n\
                 pidfile = {place}/pid\n"
            );
            for (name, value) in settings {
                let _ = writeln!(file, "{name} = {value}");
            }
            fs::write(folder.path().join("pgbouncer.ini"), file).expect("cannot write a file");
            let name = format!("PgBouncer on port {port}");
            let process = Process::new(name, folder.path().join("log"));
            let pooler = Self { process, port, folder };
            pooler.run()?;
            Ok(pooler)
        })
    }

    fn run(&self) -> Result<(), PortTaken> {
        let _ = fs::remove_file(self.folder.path().join("pid"));
        let mut command = as_server_user("pgbouncer");
        command.arg(self.folder.path().join("pgbouncer.ini"));
        self.process.spawn(&mut command);
        let address = (std::net::Ipv4Addr::LOCALHOST, self.port).into();
        self.process.wait_until_ready(|| {
            std::net::TcpStream::connect_timeout(&address, Duration::from_secs(1)).is_ok()
        })
    }

    /// `postgres://postgres@127.0.0.1:PORT/postgres`.
    pub fn url(&self) -> String {
        self.url_of("postgres")
    }

    /// The URL of another database of its server.
    pub fn url_of(&self, database: &str) -> String {
        format!("postgres://postgres@127.0.0.1:{}/{database}", self.port)
    }
}
