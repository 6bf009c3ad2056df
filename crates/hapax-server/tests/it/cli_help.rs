//! `--help` and completions.

use crate::cli_support::{hapax, run};

const COMMANDS: &[&[&str]] = &[
    &["relay"],
    &["line"],
    &["line", "simulate"],
    &["doctor"],
    &["bench"],
    &["lock"],
    &["lock", "take"],
    &["lock", "renew"],
    &["lock", "release"],
    &["lock", "show"],
    &["lock", "run"],
    &["record"],
    &["record", "get"],
    &["record", "put"],
    &["record", "patch"],
    &["record", "delete"],
    &["command"],
    &["command", "begin"],
    &["command", "complete"],
    &["command", "fail"],
    &["command", "show"],
    &["command", "list"],
    &["command", "settle"],
    &["command", "release"],
    &["command", "sweep"],
    &["publish"],
    &["follow"],
    &["inbox"],
    &["inbox", "begin"],
    &["inbox", "settle"],
    &["inbox", "give-back"],
    &["queue"],
    &["queue", "show"],
    &["queue", "dead"],
    &["queue", "requeue"],
    &["queue", "discard"],
    &["token"],
    &["token", "new"],
    &["completions"],
];

#[test]
fn help_of_every_command_has_examples() {
    for command in COMMANDS {
        let help = run(hapax().args(*command).arg("--help")).ok();
        let example = format!("  hapax {}", command.join(" "));
        assert!(help.contains("Examples:\n"), "{command:?}: {help}");
        assert!(help.contains(&example), "{command:?}: {help}");
    }
}

#[test]
fn help_of_client_commands_explains_exit_codes() {
    for command in ["lock", "record", "command", "publish", "follow", "inbox", "queue"] {
        let help = run(hapax().args([command, "--help"])).ok();
        assert!(help.contains("Exit codes:") && help.contains("75"), "{help}");
    }
    let help = run(hapax().args(["lock", "run", "--help"])).ok();
    assert!(help.contains("76") && help.contains("HAPAX_FENCE"), "{help}");
}

#[test]
fn completions_know_the_commands() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = run(hapax().args(["completions", shell])).ok();
        for word in ["lock", "record", "doctor", "renew"] {
            assert!(script.contains(word), "{shell}: {word}");
        }
    }
    run(hapax().args(["completions", "cmd.exe"])).failed(2);
}

#[test]
fn help_hides_internal_commands() {
    let help = run(hapax().args(["lock", "--help"])).ok();
    assert!(!help.contains("tied"), "{help}");
}
