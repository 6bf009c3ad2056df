//! nginx as a plain reverse proxy: what passing a request on costs at the least.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;

use crate::nginx;
use crate::process::Server;

/// `None` where nginx is not installed.
pub(super) fn start(folder: &Path, upstream: SocketAddr) -> anyhow::Result<Option<Server>> {
    nginx::start(
        folder,
        |binary| Command::new(binary),
        |address| configuration(folder, address, upstream),
    )
}

fn configuration(folder: &Path, address: SocketAddr, upstream: SocketAddr) -> String {
    let folder = folder.display();
    format!(
        "events {{ worker_connections 1024; }}
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
