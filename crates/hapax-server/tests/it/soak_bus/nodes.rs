//! Servers that are killed and started again at the same address.

use std::fs::File;
use std::process::Command;

use hapax_testkit::free_port;

use crate::support::HapaxProcess;

pub(crate) struct Node {
    pub(crate) address: String,
    flags: Vec<String>,
    folder: tempfile::TempDir,
    process: HapaxProcess,
}

impl Node {
    pub(crate) fn start(flags: &[&str]) -> Self {
        let address = format!("127.0.0.1:{}", free_port());
        let flags = flags.iter().map(|flag| (*flag).to_owned()).collect::<Vec<_>>();
        let folder = tempfile::tempdir().expect("a folder");
        let process = run(&address, &flags, &folder);
        Self { address, flags, folder, process }
    }

    /// `SIGKILL`, and up again.
    pub(crate) fn kill_and_restart(&mut self) {
        self.process.kill();
        self.process = run(&self.address, &self.flags, &self.folder);
    }
}

fn run(address: &str, flags: &[String], folder: &tempfile::TempDir) -> HapaxProcess {
    let mut command = Command::new(env!("CARGO_BIN_EXE_hapax"));
    command.args(["serve", "--listen", address]).args(flags);
    command.current_dir(folder.path()).env_clear();
    HapaxProcess::start_with_log(&mut command, File::create("/dev/null").expect("/dev/null"))
}
