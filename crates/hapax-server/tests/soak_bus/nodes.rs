//! Servers that are killed and started again at the same place.

use std::process::{Child, Command, Stdio};
use std::time::Duration;

use hapax_testkit::{free_port, wait_for};

pub(crate) struct Node {
    pub(crate) address: String,
    flags: Vec<String>,
    folder: tempfile::TempDir,
    child: Child,
}

impl Node {
    pub(crate) fn start(flags: &[&str]) -> Self {
        let address = format!("127.0.0.1:{}", free_port());
        let flags = flags.iter().map(|flag| (*flag).to_owned()).collect::<Vec<_>>();
        let folder = tempfile::tempdir().expect("a folder");
        let child = run(&address, &flags, &folder);
        let node = Self { address, flags, folder, child };
        node.listens();
        node
    }

    /// `SIGKILL`, and up again.
    pub(crate) fn kill_and_restart(&mut self) {
        self.child.kill().expect("it runs");
        self.child.wait().expect("it ends");
        self.child = run(&self.address, &self.flags, &self.folder);
        self.listens();
    }

    fn listens(&self) {
        wait_for("the node listens", Duration::from_secs(60), || {
            std::net::TcpStream::connect(&self.address).ok()
        });
    }
}

fn run(address: &str, flags: &[String], folder: &tempfile::TempDir) -> Child {
    Command::new(env!("CARGO_BIN_EXE_hapax"))
        .args(["serve", "--listen", address])
        .args(flags)
        .current_dir(folder.path())
        .env_clear()
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("hapax starts")
}

impl Drop for Node {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
