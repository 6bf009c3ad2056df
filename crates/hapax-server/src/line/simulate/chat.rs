//! Sends what is typed as messages of a user.

use std::io::IsTerminal;

use tokio::io::{AsyncBufReadExt, BufReader, stdin};

use super::session::SimulatorSession;
use super::{Scenario, parse_coordinates, send_scenario};
use crate::client::print_line as line;

const HELP: &str = "\
You can type:
  anything                 a text message
  /postback action=…       a tap on something with data
  /tap 2 action=…          several such taps at the same time
  /location 25.04,121.51   a location message
  /follow  /unfollow  /all  /quit";

/// Runs until the input ends. A person reads a reply before typing on; a line from a pipe or a file
/// waits for the reply to the one before, so that it can build on it.
pub(super) async fn run(session: &mut SimulatorSession) {
    line(HELP);
    let typing = std::io::stdin().is_terminal();
    let mut lines = BufReader::new(stdin()).lines();
    while let Ok(Some(typed)) = session.show_calls_during(lines.next_line()).await {
        session.report_violations();
        let scenario = match typed.trim() {
            "" => continue,
            "/quit" | "/q" => break,
            typed => parse_input(typed),
        };
        let Some(scenario) = scenario else {
            line(HELP);
            continue;
        };
        session.reset_counts();
        let expected = send_scenario(session, &scenario).await;
        if !typing {
            session.wait_for_replies(Some(expected)).await;
        }
    }
    if typing {
        session.wait_for_replies(None).await;
    }
}

fn parse_input(typed: &str) -> Option<Scenario> {
    let Some(command) = typed.strip_prefix('/') else {
        return Some(Scenario::Text { text: typed.into() });
    };
    let (command, rest) = command.split_once(' ').unwrap_or((command, ""));
    match (command, rest.trim()) {
        ("follow", "") => Some(Scenario::Follow),
        ("unfollow", "") => Some(Scenario::Unfollow),
        ("all", "") => Some(Scenario::All),
        ("postback", data) if !data.is_empty() => Some(Scenario::Postback { data: data.into() }),
        ("location", text) => {
            parse_coordinates(text).ok().map(|place| Scenario::Location { place })
        }
        ("tap", rest) => parse_taps(rest),
        _ => None,
    }
}

fn parse_taps(rest: &str) -> Option<Scenario> {
    let (taps, data) = rest.split_once(' ')?;
    let taps = taps.parse().ok().filter(|taps| (1..=1000).contains(taps))?;
    Some(Scenario::DoubleTap { data: data.trim().into(), taps })
}
