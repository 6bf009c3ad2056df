//! nginx, with a configuration of the benchmark's own.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;

use hapax_testkit::{find_binary, free_port};

use crate::process::Server;

/// Starts it in this folder, as `command` makes one of its binary, with what `configuration` says for
/// its address. `None` where nginx is not installed.
pub(crate) fn start(
    folder: &Path,
    command: impl FnOnce(&Path) -> Command,
    configuration: impl FnOnce(SocketAddr) -> String,
) -> anyhow::Result<Option<Server>> {
    let Ok(binary) = find_binary("nginx") else { return Ok(None) };
    let address = SocketAddr::from(([127, 0, 0, 1], free_port()));
    let config = folder.join("nginx.conf");
    let own = format!(
        "daemon off;\nworker_processes 1;\npid {0}/nginx.pid;\nerror_log {0}/error.log;\n{1}",
        folder.display(),
        configuration(address)
    );
    fs::write(&config, own)?;
    let mut command = command(&binary);
    command.arg("-p").arg(folder).arg("-c").arg(config).arg("-e").arg(folder.join("error.log"));
    Server::that_listens_at(address, &mut command).map(Some)
}

/// What it is, as it says itself.
pub(crate) fn version() -> Option<String> {
    let output = Command::new(find_binary("nginx").ok()?).arg("-v").output().ok()?;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    Some(said.trim().rsplit_once('/')?.1.to_owned())
}
