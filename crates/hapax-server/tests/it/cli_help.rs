//! `--help` and completions.

use crate::cli_support::{hapax, run};
use crate::support::has;

/// Each command, and after its colon its subcommands.
const COMMANDS: &str = "
    relay: demo: doctor: check: migrate: bench: publish: follow: completions: audit: overview: suppressed:
    line: simulate
    lock: take renew release show list force-release run
    record: get put patch delete
    command: begin renew complete fail run show list settle release sweep
    inbox: begin renew settle give-back run
    queue: list show dead requeue discard pause resume
    dead: list reasons requeue discard
    task: list show stop
    tenant: list
    token: new
";

#[test]
fn help_of_every_command_has_examples() {
    let mut parent = "";
    for word in COMMANDS.split_whitespace() {
        let command = match word.strip_suffix(':') {
            Some(command) => {
                parent = command;
                command.to_owned()
            }
            None => format!("{parent} {word}"),
        };
        let help = run(hapax().args(command.split(' ')).arg("--help")).ok();
        has(&help, &["Examples:\n", &format!("  hapax {command}")]);
    }
}

#[test]
fn help_of_client_commands_explains_exit_codes() {
    for command in
        ["lock", "record", "command", "publish", "follow", "inbox", "queue", "dead", "task"]
    {
        has(&run(hapax().args([command, "--help"])).ok(), &["Exit codes:", "75"]);
    }
    for command in ["lock", "command", "inbox"] {
        has(&run(hapax().args([command, "run", "--help"])).ok(), &["76", "HAPAX_FENCE"]);
    }
}

#[test]
fn completions_know_the_commands() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = run(hapax().args(["completions", shell])).ok();
        has(&script, &["lock", "record", "doctor", "renew"]);
    }
    run(hapax().args(["completions", "cmd.exe"])).failed(2);
}

#[test]
fn fault_36_errors_hide_internal_commands() {
    let mut texts = vec![
        run(hapax().args(["lock", "--help"])).ok(),
        run(hapax().arg("lock")).failed(2),
        run(hapax().args(["lock", "nonsense"])).failed(2),
        run(hapax().args(["lock", "tie"])).failed(2),
    ];
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        texts.push(run(hapax().args(["completions", shell])).ok());
    }
    for text in texts {
        assert!(!text.contains("tied") && !text.contains("__hapax"), "{text}");
    }
}
