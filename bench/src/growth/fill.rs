//! Fills a store with settled commands quickly: hapax writes one of them, and the engine copies its row
//! under other names. Some are then claimed through hapax, which must answer with their value. A plain table of the raw
//! engine can be filled with the same rows.

use std::fs::File;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use hapax_core::Store;
use hapax_sqlite::rusqlite::{Connection, params};
use hapax_workload::ProcessGroup;
use tokio::task::JoinSet;
use tokio_postgres::NoTls;

use super::keys::{KeyStage, command_key};
use super::raw_read::{RAW_TABLE, RawReads};
use super::work::{RETENTION, check_filled, settle};
use crate::raw::redis::connect;
use crate::store_server::{Engine, StoreServer};
use crate::{note, show_progress};

/// The name of the key whose row is copied.
const TEMPLATE: &str = "template";
/// How many rows are copied in one step.
const BATCH: u64 = 200_000;
/// How many tasks fill the memory store.
const MEMORY_TASKS: u64 = 8;
/// How many filled keys are claimed as a check.
const CHECKED: u64 = 16;
/// Expired rows are as if their retention had ended this long ago.
const EXPIRED_FOR: Duration = Duration::from_secs(10);

/// When the filled rows expire.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum FillExpiry {
    /// Within an hour, a day from now.
    Later,
    /// Keys that have expired, or that expire after this time where the engine deletes expired keys by itself.
    Past(Duration),
}

/// A store that can be filled.
pub(crate) struct FilledStore<'a> {
    pub(crate) server: &'a StoreServer,
    pub(crate) store: Arc<dyn Store>,
    url: String,
    /// The template's key on Redis.
    redis_key: Option<String>,
    /// How many keys of the current stage were filled in.
    done: Arc<AtomicU64>,
}

/// Whose rows are filled in.
#[derive(Clone, Copy, PartialEq, Eq)]
enum FillTarget {
    Hapax,
    /// The plain table of the raw engine.
    Raw,
}

impl FillTarget {
    const fn table(self) -> &'static str {
        match self {
            Self::Hapax => "hapax_claims",
            Self::Raw => RAW_TABLE,
        }
    }
}

impl<'a> FilledStore<'a> {
    pub(crate) async fn open(server: &'a StoreServer, name: &str) -> anyhow::Result<Self> {
        let url = server.url(name);
        let store = server.store_at(&url).await?;
        settle(&*store, &command_key(TEMPLATE)?, RETENTION).await?;
        let redis_key = match server.engine() {
            Engine::Redis => Some(redis_template(&url).await?),
            _ => None,
        };
        Ok(Self { server, store, url, redis_key, done: Arc::default() })
    }

    /// Fills a stage of keys.
    pub(crate) async fn fill(&self, stage: KeyStage, expiry: FillExpiry) -> anyhow::Result<()> {
        let begun = Instant::now();
        self.done.store(0, Relaxed);
        let target = FillTarget::Hapax;
        match self.server.engine() {
            Engine::Memory => self.fill_memory(stage, expiry).await?,
            Engine::Sqlite => self.fill_sqlite(stage, expiry, target)?,
            Engine::Redis => self.fill_redis(stage, expiry, target).await?,
            Engine::Postgres => self.fill_postgres(stage, expiry, target).await?,
        }
        note(format_args!("filled {} keys in {:.0?}", stage.count, begun.elapsed()));
        for nth in 0..CHECKED.min(stage.count) {
            if expiry == FillExpiry::Later {
                let nth = nth * (stage.count - 1) / CHECKED;
                check_filled(&*self.store, &stage.key(nth)?).await?;
            }
        }
        Ok(())
    }

    /// Fills the raw engine's table with the same rows, and returns its reads.
    pub(super) async fn fill_raw(&self, stage: KeyStage) -> anyhow::Result<Arc<RawReads>> {
        let begun = Instant::now();
        self.done.store(0, Relaxed);
        let (expiry, target) = (FillExpiry::Later, FillTarget::Raw);
        match self.server.engine() {
            Engine::Memory => {}
            Engine::Sqlite => self.fill_sqlite(stage, expiry, target)?,
            Engine::Redis => self.fill_redis(stage, expiry, target).await?,
            Engine::Postgres => self.fill_postgres(stage, expiry, target).await?,
        }
        note(format_args!("filled {} raw keys in {:.0?}", stage.count, begun.elapsed()));
        let template = self.redis_key.as_deref().and_then(|key| key.split_once(TEMPLATE));
        let url = self.raw_url();
        Ok(Arc::new(RawReads::open(self.server, &url, template, stage).await?))
    }

    /// Where the raw engine's table is: in a file of its own on SQLite, as a claim's readers see no other file; in
    /// another logical database on Redis, so that hapax's scans do not meet its keys; beside hapax's on PostgreSQL.
    pub(super) fn raw_url(&self) -> String {
        match self.server.engine() {
            Engine::Memory | Engine::Postgres => self.url.clone(),
            Engine::Sqlite => format!("{}.raw", self.url),
            Engine::Redis => format!("{}/1", self.url.trim_end_matches("/0")),
        }
    }

    /// Notes that so many more keys of a stage are there, and shows it.
    fn count_filled(&self, keys: u64, stage: KeyStage) {
        let done = self.done.fetch_add(keys, Relaxed) + keys;
        let engine = self.server.engine().name();
        show_progress(format_args!("filling {engine}: {done} of {}", stage.count));
    }

    async fn fill_memory(&self, stage: KeyStage, expiry: FillExpiry) -> anyhow::Result<()> {
        let retention = match expiry {
            FillExpiry::Later => RETENTION,
            FillExpiry::Past(_) => Duration::from_millis(1),
        };
        for from in (0..stage.count).step_by(BATCH as usize) {
            let end = stage.count.min(from + BATCH);
            let mut tasks = JoinSet::new();
            for task in 0..MEMORY_TASKS {
                let store = self.store.clone();
                tasks.spawn(async move {
                    for nth in (from + task..end).step_by(MEMORY_TASKS as usize) {
                        settle(&*store, &stage.key(nth)?, retention).await?;
                    }
                    anyhow::Ok(())
                });
            }
            while let Some(task) = tasks.join_next().await {
                task??;
            }
            self.count_filled(end - from, stage);
        }
        Ok(())
    }

    fn fill_sqlite(
        &self,
        stage: KeyStage,
        expiry: FillExpiry,
        target: FillTarget,
    ) -> anyhow::Result<()> {
        let connection = match target {
            FillTarget::Hapax => self.sqlite()?,
            FillTarget::Raw => self.raw_sqlite()?,
        };
        // A crash while filling costs nothing but the benchmark.
        connection.execute_batch("PRAGMA synchronous = OFF; PRAGMA cache_size = -500000")?;
        let columns = |row: &hapax_sqlite::rusqlite::Row<'_>| row.get::<_, String>(0);
        let columns: Vec<String> = connection
            .prepare("SELECT name FROM pragma_table_info('hapax_claims')")?
            .query_map([], columns)?
            .collect::<Result<_, _>>()?;
        let (step, number) = (stage.step(), stage.number);
        let expires_at = match expiry {
            FillExpiry::Later => "t.expires_at + n % 3600000".to_owned(),
            FillExpiry::Past(_) => format!("t.expires_at - {} - n % 1000", past_ms()),
        };
        let copied = columns.iter().map(|column| match column.as_str() {
            "name" => format!("printf('%012x-{number}', n * {step})"),
            "token" => "lower(hex(randomblob(16)))".to_owned(),
            "expires_at" => expires_at.clone(),
            column => format!("t.{column}"),
        });
        let sql = format!(
            "WITH RECURSIVE numbers (n) AS (SELECT ?1 UNION ALL SELECT n + 1 FROM numbers WHERE n + 1 < ?2) \
             INSERT INTO {} ({}) SELECT {} FROM numbers, hapax_claims t WHERE t.name = '{TEMPLATE}'",
            target.table(),
            columns.join(", "),
            copied.collect::<Vec<_>>().join(", ")
        );
        for from in (0..stage.count).step_by(BATCH as usize) {
            let end = stage.count.min(from + BATCH);
            connection.execute(&sql, params![from as i64, end as i64])?;
            connection.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |_| Ok(()))?;
            self.count_filled(end - from, stage);
        }
        connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()))?;
        // The filled file is synced, because the kernel would write it during the measurement otherwise.
        File::open(connection.path().context("no file")?)?.sync_all()?;
        Ok(())
    }

    /// The file of the raw table, with hapax's attached.
    fn raw_sqlite(&self) -> anyhow::Result<Connection> {
        let path = format!("{}.raw", self.sqlite_path()?);
        let connection = Connection::open(path)?;
        connection.busy_timeout(Duration::from_secs(60))?;
        connection.pragma_update(None, "journal_mode", "WAL")?;
        connection.execute("ATTACH ?1 AS hapax", [self.sqlite_path()?])?;
        let create: String = connection.query_row(
            "SELECT sql FROM hapax.sqlite_schema WHERE type = 'table' AND name = 'hapax_claims'",
            [],
            |row| row.get(0),
        )?;
        let create = create.replacen("CREATE TABLE", "CREATE TABLE IF NOT EXISTS", 1).replacen(
            "hapax_claims",
            RAW_TABLE,
            1,
        );
        connection.execute_batch(&create)?;
        Ok(connection)
    }

    async fn fill_redis(
        &self,
        stage: KeyStage,
        expiry: FillExpiry,
        target: FillTarget,
    ) -> anyhow::Result<()> {
        // Few enough for the server to answer other calls meanwhile.
        const PIECE: u64 = 20_000;
        let mut connection = connect(&self.url).await?;
        let template = self.redis_key.as_deref().context("no key of the template")?;
        let (before, after) = template.split_once(TEMPLATE).context("no name in the key")?;
        if target == FillTarget::Raw {
            let value: Vec<u8> =
                redis::cmd("GET").arg(template).query_async(&mut connection).await?;
            connection = connect(&self.raw_url()).await?;
            let mut set = redis::cmd("SET");
            let () = set.arg(template).arg(value).query_async(&mut connection).await?;
        }
        let script = "local value = redis.call('GET', KEYS[1])\n\
             for n = ARGV[1] + 0, ARGV[2] - 1 do\n\
               redis.call('SET', ARGV[3] .. string.format('%012x', n * ARGV[4]) .. ARGV[5], value,\n\
                 'PXAT', string.format('%.0f', ARGV[6] + n % ARGV[7]))\n\
             end";
        let (seconds, _): (u64, u64) = redis::cmd("TIME").query_async(&mut connection).await?;
        let (expires_at, spread) = match expiry {
            FillExpiry::Later => (seconds * 1000 + RETENTION.as_millis() as u64, 3_600_000),
            FillExpiry::Past(after) => (seconds * 1000 + after.as_millis() as u64, 1),
        };
        for from in (0..stage.count).step_by(PIECE as usize) {
            let end = stage.count.min(from + PIECE);
            let mut call = redis::cmd("EVAL");
            call.arg(script).arg(1).arg(template).arg(from).arg(end).arg(before).arg(stage.step());
            call.arg(format!("-{}{after}", stage.number)).arg(expires_at).arg(spread);
            let () = call.query_async(&mut connection).await?;
            self.count_filled(end - from, stage);
        }
        Ok(())
    }

    async fn fill_postgres(
        &self,
        stage: KeyStage,
        expiry: FillExpiry,
        target: FillTarget,
    ) -> anyhow::Result<()> {
        let (client, second) = tokio::try_join!(self.postgres(), self.postgres())?;
        for client in [&client, &second] {
            client.batch_execute("SET synchronous_commit = off").await?;
        }
        let table = target.table();
        if target == FillTarget::Raw {
            let create = format!(
                "CREATE TABLE IF NOT EXISTS {table} \
                 (LIKE hapax_claims, PRIMARY KEY (tenant, kind, scope, name))"
            );
            client.batch_execute(&create).await?;
        }
        let columns = client
            .query(
                "SELECT attname::text FROM pg_attribute WHERE attrelid = 'hapax_claims'::regclass \
                 AND attnum > 0 AND NOT attisdropped AND attgenerated = '' ORDER BY attnum",
                &[],
            )
            .await?;
        let columns: Vec<String> = columns.iter().map(|row| row.get(0)).collect();
        let (step, number) = (stage.step(), stage.number);
        let expires_at = match expiry {
            FillExpiry::Later => "t.expires_at + n % 3600000".to_owned(),
            FillExpiry::Past(_) => format!("t.expires_at - {} - n % 1000", past_ms()),
        };
        let copied = columns.iter().map(|column| match column.as_str() {
            "name" => format!("lpad(to_hex(n * {step}), 12, '0') || '-{number}'"),
            "token" => "convert_to(md5(n::text), 'UTF8')".to_owned(),
            "fence" => "nextval('hapax_fence')".to_owned(),
            "expires_at" => expires_at.clone(),
            column => format!("t.{column}"),
        });
        let sql = format!(
            "INSERT INTO {table} ({}) SELECT {} FROM hapax_claims t \
             CROSS JOIN generate_series($1::bigint, $2::bigint) n WHERE t.name = '{TEMPLATE}'",
            columns.join(", "),
            copied.collect::<Vec<_>>().join(", ")
        );
        // Two at once, for two cores; each in the order of the names.
        let half = stage.count / 2;
        tokio::try_join!(
            self.copy_rows(&client, &sql, 0..half, stage),
            self.copy_rows(&second, &sql, half..stage.count, stage),
        )?;
        if expiry == FillExpiry::Later {
            // As autovacuum has left a table that grew slowly.
            client.batch_execute(&format!("VACUUM (ANALYZE) {table}")).await?;
            client.batch_execute("CHECKPOINT").await?;
        }
        Ok(())
    }

    async fn copy_rows(
        &self,
        client: &tokio_postgres::Client,
        sql: &str,
        rows: std::ops::Range<u64>,
        stage: KeyStage,
    ) -> anyhow::Result<()> {
        for from in rows.clone().step_by(BATCH as usize) {
            let end = rows.end.min(from + BATCH);
            client.execute(sql, &[&(from as i64), &(end as i64 - 1)]).await?;
            self.count_filled(end - from, stage);
        }
        Ok(())
    }

    /// The bytes that the claims take: resident memory, the database file, or the table with its indexes.
    pub(super) async fn size(&self) -> anyhow::Result<u64> {
        Ok(match self.server.engine() {
            Engine::Memory => ProcessGroup::new([std::process::id()]).resident_bytes(),
            Engine::Sqlite => std::fs::metadata(self.sqlite_path()?)?.len(),
            Engine::Redis => {
                let mut connection = connect(&self.url).await?;
                let info: String =
                    redis::cmd("INFO").arg("memory").query_async(&mut connection).await?;
                let used = info.lines().find_map(|line| line.strip_prefix("used_memory:"));
                used.context("no used_memory")?.trim().parse()?
            }
            Engine::Postgres => {
                let size = "SELECT pg_total_relation_size('hapax_claims')";
                self.postgres().await?.query_one(size, &[]).await?.get::<_, i64>(0).cast_unsigned()
            }
        })
    }

    fn sqlite_path(&self) -> anyhow::Result<&str> {
        self.url.strip_prefix("sqlite:").context("no SQLite file")
    }

    fn sqlite(&self) -> anyhow::Result<Connection> {
        let connection = Connection::open(self.sqlite_path()?)?;
        connection.busy_timeout(Duration::from_secs(60))?;
        Ok(connection)
    }

    pub(super) async fn postgres(&self) -> anyhow::Result<tokio_postgres::Client> {
        let (client, connection) = tokio_postgres::connect(&self.url, NoTls).await?;
        // Ends with its client.
        tokio::spawn(connection);
        Ok(client)
    }
}

/// Finds the template's key while there is hardly any other.
async fn redis_template(url: &str) -> anyhow::Result<String> {
    let mut connection = connect(url).await?;
    let pattern = format!("*{TEMPLATE}*");
    let found: Vec<String> = redis::cmd("KEYS").arg(pattern).query_async(&mut connection).await?;
    ensure!(found.len() == 1, "the template has {} keys", found.len());
    found.into_iter().next().context("no template")
}

/// From the template's expiry to one that has passed.
fn past_ms() -> u128 {
    (RETENTION + EXPIRED_FOR).as_millis()
}

/// Bytes of a key and of its raw copy, roughly, where the engine has its data: enough to refuse what cannot fit.
const fn rough_bytes(engine: Engine) -> u64 {
    match engine {
        Engine::Memory => 800,
        Engine::Sqlite | Engine::Redis => 900,
        // With the write-ahead log of the filling.
        Engine::Postgres => 1300,
    }
}

/// Refuses to fill what the machine has no room for.
pub(crate) fn ensure_room(engine: Engine, keys: u64) -> anyhow::Result<()> {
    const GIB: f64 = (1_u64 << 30) as f64;
    let needed = keys * rough_bytes(engine);
    let (free, place) = match engine {
        Engine::Memory | Engine::Redis => (free_memory()?, "memory".to_owned()),
        Engine::Sqlite | Engine::Postgres => {
            let folder = std::env::temp_dir();
            let disk = rustix::fs::statvfs(&folder)?;
            (disk.f_bavail * disk.f_frsize, format!("disk in {}", folder.display()))
        }
    };
    ensure!(
        needed < free / 10 * 9,
        "{} with {keys} keys needs about {:.1} GiB of {place}, and {:.1} are free: choose fewer --keys{}",
        engine.name(),
        needed as f64 / GIB,
        free as f64 / GIB,
        if place == "memory" { "" } else { ", or set TMPDIR to another folder" },
    );
    Ok(())
}

fn free_memory() -> anyhow::Result<u64> {
    let text = std::fs::read_to_string("/proc/meminfo")?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    let kilobytes =
        line.and_then(|line| line.trim().strip_suffix("kB")).context("no MemAvailable")?;
    Ok(kilobytes.trim().parse::<u64>()? * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::growth::raw_first_run;

    #[test]
    fn ensure_room_refuses_what_cannot_fit() {
        for engine in Engine::ALL {
            ensure_room(engine, 1000).unwrap();
            let refused = ensure_room(engine, 1 << 40).unwrap_err().to_string();
            assert!(refused.contains("--keys"), "{refused}");
        }
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn raw_reads_find_the_rows_of_each_stage() {
        let server = StoreServer::start(Engine::Sqlite).unwrap();
        let filled = FilledStore::open(&server, "hapax").await.unwrap();
        for stage in [KeyStage { number: 1, count: 300 }, KeyStage { number: 2, count: 500 }] {
            let raw = filled.fill_raw(stage).await.unwrap();
            // Each read checks the value.
            let measured = raw.measure_once(&server, Duration::from_millis(20)).await.unwrap();
            assert!(measured.operations > 0);
            let (url, time) = (filled.raw_url(), Duration::from_millis(20));
            let measured = raw_first_run::measure_once(&server, &url, time).await.unwrap();
            assert!(measured.operations > 0);
        }
        let server = StoreServer::start(Engine::Memory).unwrap();
        let filled = FilledStore::open(&server, "hapax").await.unwrap();
        let raw = filled.fill_raw(KeyStage { number: 1, count: 300 }).await.unwrap();
        raw.measure_once(&server, Duration::from_millis(20)).await.unwrap();
    }

    #[tokio::test]
    async fn fill_writes_what_hapax_reads() {
        for engine in [Engine::Memory, Engine::Sqlite] {
            let server = StoreServer::start(engine).unwrap();
            let filled = FilledStore::open(&server, "hapax").await.unwrap();
            // The check of the fill itself would fail otherwise.
            filled.fill(KeyStage { number: 1, count: 300 }, FillExpiry::Later).await.unwrap();
            let expired = KeyStage { number: 2, count: 200 };
            filled.fill(expired, FillExpiry::Past(Duration::ZERO)).await.unwrap();
            tokio::time::sleep(Duration::from_millis(5)).await;
            assert_eq!(filled.store.sweep(1000).await.unwrap().count, 200, "{}", engine.name());
        }
    }
}
