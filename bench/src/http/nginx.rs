//! nginx as a plain reverse proxy: what passing a request on costs at the least.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;

use hapax_testkit::{find_binary, free_port};

use super::process::Server;

/// `None` where nginx is not installed.
pub(super) fn start(folder: &Path, upstream: SocketAddr) -> anyhow::Result<Option<Server>> {
    let Ok(binary) = find_binary("nginx") else { return Ok(None) };
    let address = SocketAddr::from(([127, 0, 0, 1], free_port()));
    let config = folder.join("nginx.conf");
    fs::write(&config, configuration(folder, address, upstream))?;
    let mut command = Command::new(binary);
    command.arg("-p").arg(folder).arg("-c").arg(config).arg("-e").arg(folder.join("error.log"));
    Server::that_listens_at(address, &mut command).map(Some)
}

/// What it is, as it says itself.
pub(super) fn version() -> Option<String> {
    let output = Command::new(find_binary("nginx").ok()?).arg("-v").output().ok()?;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    Some(said.trim().rsplit_once('/')?.1.to_owned())
}

fn configuration(folder: &Path, address: SocketAddr, upstream: SocketAddr) -> String {
    let folder = folder.display();
    format!(
        "daemon off;
worker_processes 1;
pid {folder}/nginx.pid;
error_log {folder}/error.log;
events {{ worker_connections 1024; }}
http {{
    access_log off;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    # Connections last as long as the measurement, on both sides.
    keepalive_requests 1000000000;
    upstream handler {{
        server {upstream};
        keepalive 64;
        keepalive_requests 1000000000;
    }}
    server {{
        listen {address};
        location / {{
            proxy_pass http://handler;
            proxy_http_version 1.1;
            proxy_set_header Connection \"\";
            proxy_set_header Host $host;
            proxy_set_header X-Forwarded-For $remote_addr;
            proxy_set_header X-Forwarded-Proto $scheme;
        }}
    }}
}}
"
    )
}
