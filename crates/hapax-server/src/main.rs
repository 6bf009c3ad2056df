//! The `hapax` binary: the server, and every feature from the shell.
fn main() {}
