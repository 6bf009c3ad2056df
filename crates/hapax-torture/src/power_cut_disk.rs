//! A disk that can lose its power, so that what was written and not synced is gone, and that can be full.
//!
//! It is a file system in a file. `EXT4_IOC_SHUTDOWN` makes every further call on it fail, without writing what is in
//! memory; mounting it again shows what a disk would have had.

use std::path::PathBuf;
use std::process::Command;
use std::sync::{RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use tempfile::TempDir;

const SIZE: &str = "2G";
/// How the names of the files begin that take all room.
const BALLOON: &str = "balloon-";
/// A killed process may hold its files open for a moment.
const UNMOUNT_TIMEOUT: Duration = Duration::from_secs(30);
/// The call needs `unsafe` in Rust. 0x8004587d is `EXT4_IOC_SHUTDOWN`, 2 means that not even the journal is flushed.
const SHUTDOWN: &str = "import fcntl, os, struct, sys\n\
    fcntl.ioctl(os.open(sys.argv[1], os.O_RDONLY), 0x8004587d, struct.pack('I', 2))";

/// Mounted until it is dropped.
pub(crate) struct PowerCutDisk {
    folder: TempDir,
    /// Held by this process while it uses files of the disk itself: shared memory of a disk without power would end it.
    users: RwLock<()>,
}

impl PowerCutDisk {
    pub(crate) fn make() -> anyhow::Result<Self> {
        let disk = Self { folder: tempfile::tempdir()?, users: RwLock::new(()) };
        std::fs::create_dir(disk.path())?;
        run(Command::new("truncate").args(["-s", SIZE]).arg(disk.image()))?;
        run(Command::new("mkfs.ext4").args(["-q", "-F"]).arg(disk.image()))?;
        disk.mount().context("power cuts and full disks need the right to mount a file system")?;
        Ok(disk)
    }

    /// The folder whose files the disk has.
    pub(crate) fn path(&self) -> PathBuf {
        self.folder.path().join("disk")
    }

    fn image(&self) -> PathBuf {
        self.folder.path().join("image")
    }

    /// For the time in which this process has files of the disk open.
    pub(crate) fn use_files(&self) -> RwLockReadGuard<'_, ()> {
        self.users.read().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Waits until this process has no files of the disk open, and keeps it from opening any.
    pub(crate) fn wait_for_users(&self) -> RwLockWriteGuard<'_, ()> {
        self.users.write().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// From now on every call fails, and what was not synced is lost.
    pub(crate) fn cut(&self) -> anyhow::Result<()> {
        run(Command::new("python3").args(["-c", SHUTDOWN]).arg(self.path()))
    }

    /// Power is back. All processes that had files open have to be dead.
    pub(crate) fn restore(&self) -> anyhow::Result<()> {
        let deadline = Instant::now() + UNMOUNT_TIMEOUT;
        while let Err(error) = run(Command::new("umount").arg(self.path())) {
            if Instant::now() > deadline {
                return Err(error);
            }
            thread::sleep(Duration::from_millis(20));
        }
        self.mount()
    }

    /// Fills it up, but for a few blocks that may be free for a moment.
    pub(crate) fn fill(&self) -> anyhow::Result<()> {
        let mut size: u64 = 4 << 30;
        // Room that somebody else takes meanwhile is no error: smaller and smaller pieces fill the rest.
        for piece in 0.. {
            let file = self.path().join(format!("{BALLOON}{piece}"));
            while size >= 4096 {
                let mut command = Command::new("fallocate");
                if run(command.args(["-l", &size.to_string()]).arg(&file)).is_ok() {
                    break;
                }
                size /= 2;
            }
            if size < 4096 {
                break;
            }
        }
        Ok(())
    }

    /// Undoes [`fill`](Self::fill).
    pub(crate) fn empty(&self) -> anyhow::Result<()> {
        for entry in std::fs::read_dir(self.path())? {
            let path = entry?.path();
            if path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(BALLOON)) {
                std::fs::remove_file(path)?;
            }
        }
        Ok(())
    }

    fn mount(&self) -> anyhow::Result<()> {
        run(Command::new("mount").args(["-o", "loop"]).arg(self.image()).arg(self.path()))
    }
}

impl Drop for PowerCutDisk {
    fn drop(&mut self) {
        let _ = run(Command::new("umount").args(["--lazy"]).arg(self.path()));
    }
}

fn run(command: &mut Command) -> anyhow::Result<()> {
    let output = command.output().with_context(|| format!("{command:?}"))?;
    if !output.status.success() {
        bail!("{command:?}: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(())
}
