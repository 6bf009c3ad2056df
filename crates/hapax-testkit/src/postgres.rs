//! A PostgreSQL server.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::Duration;

use nix::unistd::{User, geteuid};
use tempfile::TempDir;

use crate::certificates::Certificates;
use crate::command::{CLIENT_TIMEOUT, must_succeed, output_within, text};
use crate::ports::{PortTaken, with_free_port};
use crate::process::{Process, server_methods};
use crate::wait::{START_TIMEOUT, wait_for};
use crate::{binary, cleanup};

/// A PostgreSQL server of one's own, killed when dropped.
///
/// Every client on the loopback interface may log in as the superuser `postgres`. `stop`, `cont` and `kill` act on the
/// server and all its workers. A kill is like a power cut, except that the kernel keeps what was written: commits
/// survive [`kill`](Self::kill) and [`restart`](Self::restart).
pub struct Postgres {
    process: Process,
    port: u16,
    settings: Vec<(String, String)>,
    certificates: Option<Certificates>,
    folder: TempDir,
}

impl Postgres {
    server_methods!(stop_family, cont_family, kill_family);

    /// Starts the newest PostgreSQL on the machine.
    pub fn start() -> Self {
        Self::with(&[])
    }

    /// Starts it with settings as in `postgresql.conf`, which win over the defaults:
    /// `&[("max_connections", "50")]`.
    pub fn with(settings: &[(&str, &str)]) -> Self {
        Self::launch(false, settings, copy_template)
    }

    /// Starts a hot standby of the server on that port, with a copy of its data.
    pub(crate) fn standby_of(primary: u16, settings: &[(&str, &str)]) -> Self {
        Self::launch(false, settings, |data| copy_primary(primary, data))
    }

    /// Kills it if it runs, and starts it again as a standby of the server on that port, with a copy of its data.
    pub(crate) fn restart_as_standby_of(&self, primary: u16) {
        self.kill();
        self.remove_memory_segment();
        let data = data_folder(&self.folder);
        fs::remove_dir_all(&data).expect("cannot remove the old data");
        copy_primary(primary, &data);
        self.restart();
    }

    /// Starts it so that it takes TLS connections only, with a certificate for `127.0.0.1` and
    /// `localhost` that the authority in [`ca_path`](Self::ca_path) has signed.
    pub fn tls() -> Self {
        Self::tls_with(&[])
    }

    /// Like [`tls`](Self::tls), with further settings.
    pub fn tls_with(settings: &[(&str, &str)]) -> Self {
        Self::launch(true, settings, copy_template)
    }

    fn launch(tls: bool, settings: &[(&str, &str)], fill: impl Fn(&Path)) -> Self {
        with_free_port(|port| {
            let folder = cleanup::temp_folder("postgres-");
            let socket_folder = folder.path().display().to_string();
            let mut all_settings = vec![
                ("listen_addresses", "127.0.0.1"),
                ("unix_socket_directories", &*socket_folder),
                // The default keeps files in /dev/shm, where a killed server would leave them.
                ("dynamic_shared_memory_type", "mmap"),
            ];
            give_to_server_user(folder.path());
            fill(&data_folder(&folder));
            let certificates = tls.then(|| make_certificates(&data_folder(&folder)));
            if tls {
                all_settings.extend([
                    ("ssl", "on"),
                    ("ssl_cert_file", "server.pem"),
                    ("ssl_key_file", "server.key"),
                ]);
            }
            all_settings.extend(settings);
            let owned = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
            let name = format!("PostgreSQL on port {port}");
            let postgres = Self {
                process: Process::new(name, folder.path().join("log")),
                port,
                settings: all_settings.iter().map(owned).collect(),
                certificates,
                folder,
            };
            postgres.run()?;
            Ok(postgres)
        })
    }

    fn run(&self) -> Result<(), PortTaken> {
        self.remove_pid_files();
        let mut command = as_server_user("postgres");
        command
            .current_dir(self.folder.path())
            .arg("-D")
            .arg(data_folder(&self.folder))
            .args(["-p", &self.port.to_string()]);
        for (name, value) in &self.settings {
            command.arg("-c").arg(format!("{name}={value}"));
        }
        self.process.spawn(&mut command);
        self.process.wait_until_ready(|| {
            self.try_psql("postgres", "SELECT 1", Duration::from_secs(5))
                .is_ok_and(|answer| answer == "1")
        })
    }

    /// `postgres://postgres@127.0.0.1:PORT/postgres`. For TLS the caller adds the options in its
    /// client's dialect.
    pub fn url(&self) -> String {
        self.url_of("postgres")
    }

    fn url_of(&self, database: &str) -> String {
        format!("postgres://postgres@127.0.0.1:{}/{database}", self.port)
    }

    /// Makes a new database, and returns its URL. The name is taken as it is, so it should be a
    /// plain lower-case word.
    pub fn database(&self, name: &str) -> String {
        self.psql(&format!("CREATE DATABASE \"{name}\""));
        self.url_of(name)
    }

    /// The certificate of the authority that has signed the server's, as a PEM file.
    ///
    /// # Panics
    ///
    /// When the server was not started by [`tls`](Self::tls).
    pub fn ca_path(&self) -> &Path {
        let certificates = self.certificates.as_ref();
        &certificates.expect("this PostgreSQL does not speak TLS").authority
    }

    /// Waits until no client is connected: the server may still execute the last statement of a killed client, and
    /// its outcome is known only when the session has ended.
    pub fn wait_until_alone(&self) {
        let others = "SELECT count(*) FROM pg_stat_activity \
                      WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()";
        wait_for("the end of all sessions", START_TIMEOUT, || {
            (self.psql(others) == "0").then_some(())
        });
    }

    /// Runs SQL in the database `postgres`, and returns the rows, a line each, with `|` between
    /// the columns.
    ///
    /// # Panics
    ///
    /// When the server cannot be reached or refuses the SQL.
    pub fn psql(&self, sql: &str) -> String {
        self.psql_in("postgres", sql)
    }

    /// Like [`psql`](Self::psql), in another database.
    pub fn psql_in(&self, database: &str, sql: &str) -> String {
        self.try_psql(database, sql, CLIENT_TIMEOUT)
            .unwrap_or_else(|problem| panic!("psql {sql:?}: {problem}\n{}", self.log_tail()))
    }

    pub(crate) fn try_psql(
        &self,
        database: &str,
        sql: &str,
        timeout: Duration,
    ) -> Result<String, String> {
        let mut command = Command::new(binary::require_postgres("psql"));
        without_client_settings(&mut command);
        if let Some(certificates) = &self.certificates {
            command.env("PGSSLMODE", "verify-ca").env("PGSSLROOTCERT", &certificates.authority);
        }
        command
            .args(["--no-psqlrc", "--no-align", "--tuples-only", "--quiet"])
            .args(["--set", "ON_ERROR_STOP=1", "--no-password"])
            .args(["--dbname", &self.url_of(database), "--command", sql]);
        let output = output_within(&mut command, timeout)
            .ok_or_else(|| format!("no answer within {timeout:?}"))?;
        if output.status.success() { Ok(text(&output.stdout)) } else { Err(text(&output.stderr)) }
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        self.kill();
        self.remove_memory_segment();
    }
}

impl Postgres {
    /// Removes the two files in which a killed server leaves its process number. If another process has that number
    /// by now, the next start would take it for a running server and refuse.
    fn remove_pid_files(&self) {
        let socket_lock = format!(".s.PGSQL.{}.lock", self.port);
        let _ = fs::remove_file(self.folder.path().join(socket_lock));
        let _ = fs::remove_file(pid_file(&self.folder));
    }

    /// Removes the System V segment of a killed server; a machine has room for four thousand. The seventh line of the
    /// pid file contains "KEY ID".
    fn remove_memory_segment(&self) {
        let Ok(content) = fs::read_to_string(pid_file(&self.folder)) else {
            return;
        };
        let segment = content.lines().nth(6).and_then(|line| line.split_ascii_whitespace().nth(1));
        if let (Some(segment), Ok(ipcrm)) = (segment, crate::find_binary("ipcrm")) {
            let _ = output_within(Command::new(ipcrm).args(["-m", segment]), CLIENT_TIMEOUT);
        }
    }
}

fn data_folder(folder: &TempDir) -> PathBuf {
    folder.path().join("data")
}

fn pid_file(folder: &TempDir) -> PathBuf {
    data_folder(folder).join("postmaster.pid")
}

/// PostgreSQL refuses to run as root; the Debian package makes a user for it.
fn server_user() -> Option<&'static User> {
    static USER: OnceLock<Option<User>> = OnceLock::new();
    USER.get_or_init(|| {
        geteuid().is_root().then(|| {
            let user = User::from_name("postgres").ok().flatten();
            user.expect("there is no user `postgres`; run ./test.sh, which installs PostgreSQL")
        })
    })
    .as_ref()
}

/// The command for a PostgreSQL program under the right user. `setpriv` executes the program in its own process;
/// `runuser` may remain as its parent and would take the signals.
pub(crate) fn as_server_user(program: &str) -> Command {
    let program = binary::require_postgres(program);
    let mut command = match server_user() {
        None => Command::new(program),
        Some(user) => {
            let mut command = Command::new(binary::require("setpriv"));
            command
                .arg(format!("--reuid={}", user.uid))
                .arg(format!("--regid={}", user.gid))
                .args(["--init-groups", "--"])
                .arg(program)
                .env("HOME", &user.dir);
            command
        }
    };
    // English, because the log is searched for "Address already in use".
    command.env("LC_ALL", "C");
    without_client_settings(&mut command);
    command
}

/// Removes the developer's own `PGHOST`, `PGOPTIONS` and similar variables.
fn without_client_settings(command: &mut Command) {
    for (name, _) in std::env::vars_os() {
        if name.to_str().is_some_and(|name| name.starts_with("PG")) {
            command.env_remove(name);
        }
    }
}

pub(crate) fn give_to_server_user(path: &Path) {
    if let Some(user) = server_user() {
        chown(path, Some(user.uid.as_raw()), Some(user.gid.as_raw()))
            .unwrap_or_else(|error| panic!("cannot give {path:?} to `postgres`: {error}"));
    }
}

/// Fills a data folder by copying a template, which is several times faster than `initdb`.
fn copy_template(data: &Path) {
    // `cp -a` also keeps the owner.
    must_succeed(Command::new("cp").arg("-a").arg(template()).arg(data), START_TIMEOUT);
}

/// Fills a data folder with a copy of a running server's, so that a server started there becomes its standby. The standby's
/// name is `standby`, which is what `synchronous_standby_names` of the primary may contain.
fn copy_primary(primary: u16, data: &Path) {
    let primary = format!("host=127.0.0.1 port={primary} user=postgres application_name=standby");
    must_succeed(
        as_server_user("pg_basebackup")
            .current_dir("/")
            .args(["--dbname", &primary, "--checkpoint=fast", "--no-sync", "--write-recovery-conf"])
            .arg("-D")
            .arg(data),
        START_TIMEOUT,
    );
}

/// The template's folder, beside the test binaries, so that all test processes share it.
fn template() -> PathBuf {
    let initdb = binary::require_postgres("initdb").display().to_string().replace('/', "-");
    let test_binary = std::env::current_exe().expect("a running test has a path");
    let template = test_binary.with_file_name(format!("postgres-template{initdb}"));
    if template.exists() {
        return template;
    }
    let folder = cleanup::temp_folder("postgres-template-");
    let made = folder.path().join("data");
    fs::create_dir(&made).expect("cannot make a temporary folder");
    give_to_server_user(&made);
    must_succeed(
        as_server_user("initdb")
            .current_dir(&made)
            .args(["--no-sync", "-A", "trust", "-E", "UTF8", "--locale=C"])
            .args(["-U", "postgres", "-D"])
            .arg(&made),
        START_TIMEOUT,
    );
    let copy = template.with_extension(std::process::id().to_string());
    must_succeed(Command::new("cp").arg("-a").arg(&made).arg(&copy), START_TIMEOUT);
    if fs::rename(&copy, &template).is_err() {
        // Another test process made the template first.
        let _ = fs::remove_dir_all(&copy);
    }
    template
}

/// Makes certificates in the data folder, and an access list that permits TLS only, so that a client that falls back
/// to plain text fails.
fn make_certificates(data: &Path) -> Certificates {
    let made_in = cleanup::temp_folder("certificates-");
    let made = Certificates::make_in(made_in.path());
    // Only the server's user may read the data folder, and the tests have to read this file.
    let authority = data.with_file_name("ca.pem");
    fs::copy(&made.authority, &authority).expect("cannot copy ca.pem");
    let certificates = Certificates {
        authority,
        certificate: data.join("server.pem"),
        key: data.join("server.key"),
    };
    for (from, to) in
        [(&made.certificate, &certificates.certificate), (&made.key, &certificates.key)]
    {
        fs::copy(from, to).expect("cannot copy a certificate");
        // PostgreSQL refuses a key that others can read.
        fs::set_permissions(to, fs::Permissions::from_mode(0o600)).expect("cannot close a file");
        give_to_server_user(to);
    }
    let access = "local all all trust\nhostssl all all 127.0.0.1/32 trust\n";
    fs::write(data.join("pg_hba.conf"), access).expect("cannot write pg_hba.conf");
    certificates
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn postgres_restarts_although_its_pid_was_reused() {
        let (killed, other) = (Postgres::start(), Postgres::start());
        killed.psql("CREATE TABLE kept ()");
        let before = killed.pid().expect("it runs").to_string();
        killed.kill();
        let other = other.pid().expect("it runs").to_string();
        let socket_lock = killed.folder.path().join(format!(".s.PGSQL.{}.lock", killed.port));
        for file in [pid_file(&killed.folder), socket_lock] {
            let content = fs::read_to_string(&file).expect("a killed server leaves it");
            fs::write(&file, content.replacen(&before, &other, 1)).expect("it can be changed");
        }
        killed.restart();
        assert_eq!(killed.psql("SELECT count(*) FROM kept"), "0");
    }
}
