//! Which `hapax` is measured.

use std::path::PathBuf;

use anyhow::Context;

/// Where the binary is, as a command line says it.
#[derive(clap::Args)]
pub(crate) struct HapaxBinary {
    /// The `hapax` binary that is measured; the one beside this binary by default.
    #[arg(long, value_name = "PATH")]
    hapax: Option<PathBuf>,
}

impl HapaxBinary {
    pub(crate) fn path(&self) -> anyhow::Result<PathBuf> {
        let path = match &self.hapax {
            Some(path) => path.clone(),
            None => std::env::current_exe()?.with_file_name("hapax"),
        };
        path.canonicalize().with_context(|| {
            let hint = "cargo build --release -p hapax-server, or --hapax PATH";
            format!("no hapax binary at {}: {hint}", path.display())
        })
    }
}
