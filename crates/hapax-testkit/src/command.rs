//! Runs helper programs with a timeout.

use std::io::Write;
use std::process::{Command, Output, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// Long enough for a client of a busy server.
pub(crate) const CLIENT_TIMEOUT: Duration = Duration::from_secs(60);

/// Runs a command without input; kills it and returns `None` after the timeout, because a client of a paused server
/// would hang.
pub(crate) fn output_within(command: &mut Command, timeout: Duration) -> Option<Output> {
    output_with_input(command, String::new(), timeout)
}

/// Like [`output_within`], with input for the command.
pub(crate) fn output_with_input(
    command: &mut Command,
    input: String,
    timeout: Duration,
) -> Option<Output> {
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap_or_else(|error| panic!("cannot run {command:?}: {error}"));
    let pid = Pid::from_raw(child.id().cast_signed());
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || {
        if let Some(mut stdin) = child.stdin.take() {
            // Fails if the command ended without reading its input.
            let _ = stdin.write_all(input.as_bytes());
        }
        sender.send(child.wait_with_output())
    });
    match receiver.recv_timeout(timeout) {
        Ok(output) => {
            Some(output.unwrap_or_else(|error| panic!("cannot wait for {command:?}: {error}")))
        }
        Err(_) => {
            let _ = kill(pid, Signal::SIGKILL);
            None
        }
    }
}

/// Runs a command that has to succeed, and returns its output.
pub(crate) fn must_succeed(command: &mut Command, timeout: Duration) -> String {
    let Some(output) = output_within(command, timeout) else {
        panic!("{command:?} did not end within {timeout:?}");
    };
    let (status, printed) = (output.status, text(&output.stdout));
    assert!(status.success(), "{command:?}: {status}\n{printed}\n{}", text(&output.stderr));
    printed
}

/// Output as text without the final line break.
pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).trim_end().to_owned()
}
