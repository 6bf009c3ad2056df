//! Room on the disk that is kept for calls which free room: a file beside the database that is removed
//! when the disk is full. Until it can be made again, only such calls are served.

use std::path::PathBuf;

use hapax_core::StoreError;
use rustix::fs::{FallocateFlags, Mode, OFlags};
use rustix::io::Errno;

use crate::SqliteConfig;
use crate::files::beside;

/// The reserve file of a store, and whether it is in use.
pub(crate) struct DiskReserve {
    path: PathBuf,
    bytes: u64,
    released: bool,
}

impl DiskReserve {
    pub(crate) fn new(config: &SqliteConfig) -> Self {
        Self { path: beside(&config.path, "-reserve"), bytes: config.reserve, released: false }
    }

    /// Makes the file if it is missing. On a disk that is full already, only calls that free room are
    /// served from now on.
    pub(crate) fn ensure(&mut self) {
        self.released = !self.make(self.bytes);
    }

    /// Gives the room of the file to the database.
    pub(crate) fn release(&mut self) {
        if self.bytes > 0 {
            let _ = std::fs::remove_file(&self.path);
            self.released = true;
        }
    }

    /// Whether the disk has room for calls that need some. After a full disk there must be room for
    /// two reserves, so that the store does not change between full and not full with every call.
    pub(crate) fn is_whole(&mut self) -> bool {
        self.released = self.released && !self.make(2 * self.bytes);
        !self.released
    }

    /// Makes the file with its size, if the disk has `room` bytes. `false` if the disk is full; a file
    /// system that cannot reserve room counts as never full.
    fn make(&self, room: u64) -> bool {
        if self.bytes == 0 || self.has_its_size() {
            return true;
        }
        let flags = OFlags::CREATE | OFlags::WRONLY | OFlags::CLOEXEC;
        let made = rustix::fs::open(&self.path, flags, Mode::RUSR | Mode::WUSR).and_then(|file| {
            rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, room)?;
            rustix::fs::ftruncate(&file, self.bytes)
        });
        match made {
            Ok(()) => true,
            Err(error) => {
                let _ = std::fs::remove_file(&self.path);
                !matches!(error, Errno::NOSPC | Errno::DQUOT)
            }
        }
    }

    fn has_its_size(&self) -> bool {
        std::fs::metadata(&self.path).is_ok_and(|file| file.len() >= self.bytes)
    }
}

/// The answer to calls that need room while the reserve is in use.
pub(crate) fn no_room() -> StoreError {
    let reason = "only calls that free room are served until the disk has room again";
    StoreError::Full { reason: reason.into() }
}
