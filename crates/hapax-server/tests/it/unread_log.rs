//! Daemons whose standard error nobody reads: a supervisor that hangs, a pipe whose reader stands still.

use std::io::Write;
use std::process::Stdio;
use std::time::{Duration, Instant};

use crate::cli_support::Server;
use crate::proxy_support::Upstream;
use crate::proxy_support::process::command;
use crate::support::http::HttpRequest;
use crate::support::{HapaxProcess, KillOnDrop, WAIT_TIMEOUT, hapax};
use hapax_testkit::wait_for;
use rustix::process::Signal;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;

/// How long a daemon without open requests may take to end: it waits two seconds for the reader of its log.
const STOP_TIMEOUT: Duration = Duration::from_secs(20);
/// A pipe takes 64 KiB. A line of the log has more than 64 bytes.
const MORE_THAN_A_PIPE: usize = 3000;
/// The log keeps 5 MiB for its reader. A line of `--log json` has more than 150 bytes.
const MORE_THAN_THE_BUFFER: usize = 40_000;

/// Sends so many requests, which are logged, over one connection, and waits for the answers.
async fn send_requests(address: &str, path: &str, count: usize) {
    let answers = async {
        let (from, mut to) = TcpStream::connect(address).await.unwrap().into_split();
        let request = format!("GET {path} HTTP/1.1\r\nhost: x\r\n\r\n");
        let mut lines = BufReader::new(from).lines();
        for part in [100].repeat(count / 100) {
            to.write_all(request.repeat(part).as_bytes()).await.unwrap();
            let mut answered = 0;
            while answered < part {
                let line = lines.next_line().await.unwrap().expect("the connection stays");
                // The head of the next answer may follow a body without a line feed.
                answered += usize::from(line.contains("HTTP/1.1 "));
            }
        }
    };
    tokio::time::timeout(2 * WAIT_TIMEOUT, answers).await.expect("every request is answered");
}

/// Ends a process by a signal while nobody reads its log.
fn assert_stops(process: &mut HapaxProcess) {
    let started = Instant::now();
    process.signal(Signal::TERM);
    let status = wait_for("hapax ends", WAIT_TIMEOUT, || process.status());
    assert_eq!(status.code(), Some(0));
    assert!(started.elapsed() < STOP_TIMEOUT, "{:?}", started.elapsed());
}

fn serve(flags: &[&str]) -> HapaxProcess {
    let mut command = hapax();
    command.args(["serve", "--listen", "127.0.0.1:0", "--store", "memory:"]).args(flags);
    HapaxProcess::start_unread(command.current_dir("/"))
}

#[tokio::test(flavor = "multi_thread")]
async fn proxy_answers_and_stops_while_nobody_reads_its_log() {
    let upstream = Upstream::start().await;
    let flags = ["--upstream", &upstream.url(), "--store", "memory:", "--listen", "127.0.0.1:0"];
    let mut proxy = HapaxProcess::start_unread(&mut command(&flags));
    send_requests(&proxy.address(), "/orders", MORE_THAN_A_PIPE).await;
    assert_stops(&mut proxy);
}

#[tokio::test(flavor = "multi_thread")]
async fn serve_answers_and_stops_while_nobody_reads_its_log() {
    let mut server = serve(&[]);
    send_requests(&server.address(), "/v1/records/r", MORE_THAN_A_PIPE).await;
    assert_stops(&mut server);
}

/// The lines that fit are all written, in order, before the process ends.
#[tokio::test(flavor = "multi_thread")]
async fn log_that_is_read_late_is_whole() {
    let mut server = serve(&[]);
    send_requests(&server.address(), "/v1/records/r", MORE_THAN_A_PIPE).await;
    server.read_log();
    let all_read = || server.log().matches("/v1/records/").count() >= MORE_THAN_A_PIPE;
    wait_for("the log is read", WAIT_TIMEOUT, || all_read().then_some(()));
    let log = server.stop();
    assert_eq!(log.matches("/v1/records/").count(), MORE_THAN_A_PIPE);
    assert!(log.trim_end().ends_with("every request was answered"), "{}", log.len());
}

#[tokio::test(flavor = "multi_thread")]
async fn log_counts_the_lines_that_nobody_read() {
    let mut server = serve(&["--log", "json"]);
    send_requests(&server.address(), "/v1/records/r", MORE_THAN_THE_BUFFER).await;
    let metrics = HttpRequest::new(&server.address(), "GET", "/metrics").send().text();
    let dropped =
        metrics.lines().find_map(|line| line.strip_prefix("hapax_log_lines_dropped_total "));
    let dropped: usize = dropped.expect("the metric").parse().unwrap();
    assert!(dropped > 0);
    server.read_log();
    let is_reported = || server.log().contains("\"dropped\":");
    wait_for("the log is read", WAIT_TIMEOUT, || is_reported().then_some(()));
    let log = server.stop();
    let reported: usize = log
        .lines()
        .map(|line| serde_json::from_str::<serde_json::Value>(line).expect("whole lines"))
        .filter_map(|line| line["dropped"].as_u64())
        .map(|dropped| dropped as usize)
        .sum();
    assert!(reported >= dropped, "{reported} of {dropped}");
    let requests = log.matches("\"route\":\"/v1/records/").count();
    assert!(requests < MORE_THAN_THE_BUFFER && requests + reported >= MORE_THAN_THE_BUFFER);
}

/// A pipe that is full, and whose other end nobody reads.
fn full_pipe() -> (std::io::PipeReader, std::io::PipeWriter) {
    let (reader, writer) = std::io::pipe().unwrap();
    let (mut filler, (sent, received)) = (writer.try_clone().unwrap(), std::sync::mpsc::channel());
    // Blocks for good once the pipe is full.
    std::thread::spawn(
        move || while filler.write_all(&[b'x'; 1024]).is_ok() && sent.send(()).is_ok() {},
    );
    while received.recv_timeout(Duration::from_millis(500)).is_ok() {}
    (reader, writer)
}

#[test]
fn fatal_error_ends_serve_while_nobody_reads_its_log() {
    let (_reader, writer) = full_pipe();
    let mut command = hapax();
    // The address is of a documentation network, which no machine has.
    command.args(["serve", "--listen", "192.0.2.1:1", "--store", "memory:"]).current_dir("/");
    let child = command.stdout(Stdio::null()).stderr(writer).spawn().unwrap();
    let mut child = KillOnDrop(child);
    let status = wait_for("hapax ends", STOP_TIMEOUT, || child.0.try_wait().unwrap());
    assert_eq!(status.code(), Some(1));
}

/// A supervisor that restarts a daemon gives it the pipes of the one before, which may be full.
#[tokio::test(flavor = "multi_thread")]
async fn serve_starts_while_nobody_reads_its_banner() {
    let (_reader, writer) = full_pipe();
    let port = hapax_testkit::free_port();
    let mut command = hapax();
    command.args(["serve", "--listen", &format!("127.0.0.1:{port}"), "--store", "memory:"]);
    command.current_dir("/").stdout(writer.try_clone().unwrap()).stderr(writer);
    let _child = KillOnDrop(command.spawn().unwrap());
    let address = format!("127.0.0.1:{port}");
    wait_for("hapax listens", WAIT_TIMEOUT, || std::net::TcpStream::connect(&address).ok());
    send_requests(&address, "/v1/records/r", 100).await;
}

/// A command that filled standard error, which it shares with `lock run`, must not outlive its lock by that.
#[test]
fn lock_run_ends_its_command_while_nobody_reads_its_notes() {
    let (server, (_reader, writer)) = (Server::start(), full_pipe());
    let options = ["lock", "run", "job", "--max-hold", "5s", "--grace", "300ms"];
    let mut command = server.command(options.iter().chain(&["--", "sleep", "600"]));
    let mut child = KillOnDrop(command.stderr(writer).spawn().unwrap());
    let status = wait_for("lock run ends", 2 * STOP_TIMEOUT, || child.0.try_wait().unwrap());
    assert_eq!(status.code(), Some(124));
}
