//! Servers that are killed and started again at the same place.

use std::io::{Read, Write};
use std::net::TcpStream;
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
        node.serves();
        node
    }

    /// `SIGKILL`, and up again.
    pub(crate) fn kill_and_restart(&mut self) {
        self.child.kill().expect("it runs");
        self.child.wait().expect("it ends");
        self.child = run(&self.address, &self.flags, &self.folder);
        self.serves();
    }

    /// A node that were killed before it serves would never get anywhere on a slow machine: it
    /// listens earlier than that.
    fn serves(&self) {
        wait_for("the node serves", Duration::from_secs(60), || self.healthz().ok());
    }

    fn healthz(&self) -> std::io::Result<()> {
        let mut stream = TcpStream::connect(&self.address)?;
        stream.set_read_timeout(Some(Duration::from_secs(60)))?;
        write!(stream, "GET /healthz HTTP/1.1\r\nHost: {}\r\n\r\n", self.address)?;
        stream.read_exact(&mut [0])
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
