//! The side of hapax, which every program of the table shares.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use hapax::lock::{LockConfig, Locks};
use hapax::queue::{LeaseRequest, QueueName};
use hapax::{Expect, Key, Store, StoreConfig, Tenant};

pub type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// The statements that the program runs in one transaction of its own stack: a row of its own, and an item
/// of hapax's outbox.
#[allow(dead_code)]
pub const TRANSACTION: [&str; 2] = [
    "INSERT INTO orders (item) VALUES ('bento')",
    "INSERT INTO hapax_outbox (topic, key, payload) VALUES ('orders', 'order-1', 'bento')",
];

pub const CREATE: &str = "CREATE TABLE orders (id INTEGER PRIMARY KEY, item TEXT)";

pub struct SharedFile {
    folder: PathBuf,
    store: Arc<dyn Store>,
}

impl SharedFile {
    /// Opens a store on a new file, which the program's own stack opens, too.
    pub fn open() -> Result<Self> {
        let folder = std::env::temp_dir().join(format!("hapax-compat-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(&folder)?;
        let url = format!("sqlite:{}", folder.join("shop.db").display());
        let store = hapax::open(&url, &StoreConfig::default().timeout(Duration::from_secs(60)))?;
        Ok(Self { folder, store })
    }

    pub fn path(&self) -> String {
        self.folder.join("shop.db").display().to_string()
    }

    /// The write-ahead log stays short, whoever copies it in this version.
    async fn check_wal(&self) -> Result<()> {
        let key = Key::record(&Tenant::default(), "large")?;
        for round in 0..96_u8 {
            let value = vec![round; 1 << 20].into();
            let _ = self.store.put(&key, value, &Expect::Any, None).await?;
        }
        let length = std::fs::metadata(self.folder.join("shop.db-wal"))?.len();
        if length > 64 << 20 {
            return Err(format!("a write-ahead log of {length} bytes").into());
        }
        Ok(())
    }

    /// The store takes a lock, and finds the item that the other stack has committed.
    pub async fn check(self) -> Result<()> {
        let locks = Locks::new(self.store.clone());
        let guard =
            locks.try_acquire("shop", &LockConfig::default()).await?.ok_or("the lock is taken")?;
        guard.release().await?;
        let take = LeaseRequest::new(10, Duration::from_secs(60));
        let leased = self.store.lease(&QueueName::outbox(), &take).await?;
        let payloads: Vec<_> = leased.iter().map(|leased| &leased.item.payload[..]).collect();
        if payloads != [b"bento"] {
            return Err(format!("found {payloads:?} in the outbox").into());
        }
        self.check_wal().await?;
        for finding in self.store.examine().await? {
            if finding.check == "sqlite.version" {
                println!("ok, {:?}: {}", finding.severity, finding.detail);
            }
        }
        std::fs::remove_dir_all(&self.folder)?;
        Ok(())
    }
}
