//! Running helper programs to their end, but never for longer than allowed.

use std::io::Write;
use std::process::{Command, Output, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// Generous, for a client that talks to a busy server.
pub(crate) const CLIENT: Duration = Duration::from_secs(60);

/// Runs a command without input; `None` when it did not end in time (it is killed then). A client of a
/// stopped server would otherwise hang for ever.
pub(crate) fn output_within(command: &mut Command, limit: Duration) -> Option<Output> {
    output_for(command, String::new(), limit)
}

/// Like [`output_within`], with something for the command to read.
pub(crate) fn output_for(command: &mut Command, input: String, limit: Duration) -> Option<Output> {
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
            // A command that does not care for its input may be gone already.
            let _ = stdin.write_all(input.as_bytes());
        }
        sender.send(child.wait_with_output())
    });
    match receiver.recv_timeout(limit) {
        Ok(output) => {
            Some(output.unwrap_or_else(|error| panic!("cannot wait for {command:?}: {error}")))
        }
        Err(_) => {
            let _ = kill(pid, Signal::SIGKILL);
            None
        }
    }
}

/// Runs a set-up command that has to succeed, and returns what it printed.
pub(crate) fn must_succeed(command: &mut Command, limit: Duration) -> String {
    let Some(output) = output_within(command, limit) else {
        panic!("{command:?} did not end within {limit:?}");
    };
    assert!(
        output.status.success(),
        "{command:?} failed with {}\n{}\n{}",
        output.status,
        text(&output.stdout),
        text(&output.stderr)
    );
    text(&output.stdout)
}

/// Output as text without the final line break.
pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).trim_end().to_owned()
}
