//! The servers that deliver events: hapax, nginx with nchan, and one that only writes to sockets.

use std::io::Write;
use std::net::SocketAddr;
use std::path::Path;

use clap::ValueEnum;

use super::limits::CorePinning;
use crate::process::{ServerProcess, hapax_command, nginx_version, start_nginx};

/// The path of nginx's modules on Debian and most other systems.
const NCHAN: &str = "/usr/lib/nginx/modules/ngx_nchan_module.so";
/// The size of an event in the stream's `data:`.
pub(super) const EVENT_SIZE: usize = 200;
/// The field that hapax adds to an event; for nchan it is part of the published text.
const TIMESTAMP: &str = ",\"timestamp\":\"2026-01-01T00:00:00.000Z\"";
/// Open files of a server beside its clients.
pub(super) const OTHER_FILES: usize = 200;

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum FanoutServer {
    Hapax,
    Nchan,
    /// One `send` for each delivery and nothing else.
    BareSend,
}

impl FanoutServer {
    /// All of them; nchan if it is installed.
    pub(super) fn installed() -> Vec<Self> {
        let nchan = nginx_version().is_some() && Path::new(NCHAN).exists();
        let all = [Self::Hapax, Self::Nchan, Self::BareSend];
        all.into_iter().filter(|kind| nchan || *kind != Self::Nchan).collect()
    }

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Hapax => "hapax",
            Self::Nchan => "nchan",
            Self::BareSend => "bare-send",
        }
    }

    /// Starts the server for this many clients.
    pub(super) fn start(
        self,
        hapax: &Path,
        folder: &Path,
        clients: usize,
        cores: &CorePinning,
    ) -> anyhow::Result<ServerProcess> {
        match self {
            Self::Hapax => {
                let room = (clients + OTHER_FILES).to_string();
                let mut command = hapax_command(cores.server(hapax), "serve", "memory:", folder);
                command.args(["--sse-connections", &room, "--max-connections", &room]);
                ServerProcess::start_announced(&mut command)
            }
            Self::Nchan => {
                let configure = |address| configuration(folder, address, clients);
                start_nginx(folder, |binary| cores.server(binary), configure)
            }
            Self::BareSend => {
                let mut command = cores.server(&std::env::current_exe()?);
                ServerProcess::start_announced(command.arg("fanout-bare-send"))
            }
        }
    }

    /// The request of a client that subscribes.
    pub(super) fn subscribe(self, address: SocketAddr) -> String {
        let path = match self {
            Self::Hapax => "/v1/jobs/scan/job-1/events",
            Self::Nchan | Self::BareSend => "/sub",
        };
        format!("GET {path} HTTP/1.1\r\nHost: {address}\r\nAccept: text/event-stream\r\n\r\n")
    }

    /// The request that publishes an event: of hapax what it makes the event of, of the others, which
    /// pass on what they get, the event as hapax would deliver it.
    pub(super) fn publish(
        self,
        number: u64,
        stamp: impl FnOnce(&mut Vec<u8>),
        request: &mut Vec<u8>,
    ) {
        let offset = format!("\"offset\":{number},");
        let (path, before, after) = match self {
            Self::Hapax => ("/v1/events", "", ""),
            Self::Nchan | Self::BareSend => ("/pub", offset.as_str(), TIMESTAMP),
        };
        let mut body = format!(
            "{{{before}\"domain\":\"scan\",\"job_id\":\"job-1\",\"stage\":\"vision\",\
             \"seq\":{number},\"data\":\""
        )
        .into_bytes();
        stamp(&mut body);
        let whole = body.len() - before.len() + offset.len() + TIMESTAMP.len() + "\"}".len();
        body.extend(std::iter::repeat_n(b'.', EVENT_SIZE.saturating_sub(whole)));
        let _ = write!(body, "\"{after}}}");
        let length = body.len();
        // Writing to memory cannot fail.
        let _ = write!(
            request,
            "POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n\
             Content-Length: {length}\r\n\r\n"
        );
        request.extend(body);
    }
}

/// As in hapax, a keep-alive every 15 s and ten thousand events kept in memory.
fn configuration(folder: &Path, address: SocketAddr, clients: usize) -> String {
    let folder = folder.display();
    // nginx begins to close connections when a sixteenth of its room is left.
    let room = 2 * (clients + OTHER_FILES);
    format!(
        "load_module {NCHAN};
events {{ worker_connections {room}; }}
http {{
    access_log off;
    client_body_temp_path {folder}/body;
    keepalive_requests 1000000000;
    nchan_shared_memory_size 256M;
    server {{
        listen {address} backlog=4096;
        location = /sub {{
            nchan_subscriber eventsource;
            nchan_channel_id job-1;
            nchan_eventsource_ping_interval 15;
        }}
        location = /pub {{
            nchan_publisher;
            nchan_channel_id job-1;
            nchan_message_buffer_length 10000;
            nchan_message_timeout 2h;
        }}
    }}
}}
"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fanout_event_has_the_declared_size() {
        for number in [1, 17, 123_456] {
            let mut request = Vec::new();
            let stamp = |text: &mut Vec<u8>| text.extend(b"#0000000017@0000001234567890");
            FanoutServer::Nchan.publish(number, stamp, &mut request);
            let text = String::from_utf8(request).unwrap();
            let (_, body) = text.split_once("\r\n\r\n").unwrap();
            assert_eq!(body.len(), EVENT_SIZE);
            assert!(serde_json::from_str::<serde_json::Value>(body).is_ok(), "{body}");
        }
    }
}
