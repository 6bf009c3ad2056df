//! What is typed is what a user says.

use std::io::IsTerminal;

use tokio::io::{AsyncBufReadExt, BufReader, stdin};

use super::desk::Desk;
use super::{Scenario, place, play};
use crate::client::print_line as line;

const HELP: &str = "\
You can type:
  anything                 a text message
  /postback action=…       a tap on something with data
  /tap 2 action=…          several such taps at the same time
  /location 25.04,121.51   a location message
  /follow  /unfollow  /all  /quit";

/// Until the input ends. A person reads an answer before typing on; what comes from a pipe or a file
/// waits for it all the same, so that one line can build on the one before.
pub(super) async fn run(desk: &mut Desk) {
    line(HELP);
    let typing = std::io::stdin().is_terminal();
    let mut lines = BufReader::new(stdin()).lines();
    while let Ok(Some(typed)) = desk.hearing(lines.next_line()).await {
        desk.complain();
        match scenario(typed.trim()) {
            Said::Nothing => {}
            Said::Quit => break,
            Said::Unclear => line(HELP),
            Said::Scenario(scenario) => {
                desk.count_anew();
                let expected = play(desk, &scenario).await;
                if !typing {
                    desk.listen(Some(expected)).await;
                }
            }
        }
    }
    if typing {
        desk.listen(None).await;
    }
}

enum Said {
    Scenario(Scenario),
    Nothing,
    Quit,
    Unclear,
}

fn scenario(typed: &str) -> Said {
    let Some(order) = typed.strip_prefix('/') else {
        return match typed {
            "" => Said::Nothing,
            text => Said::Scenario(Scenario::Text { text: text.into() }),
        };
    };
    let (order, rest) = order.split_once(' ').unwrap_or((order, ""));
    let rest = rest.trim();
    let scenario = match (order, rest) {
        ("quit" | "q", "") => return Said::Quit,
        ("follow", "") => Some(Scenario::Follow),
        ("unfollow", "") => Some(Scenario::Unfollow),
        ("all", "") => Some(Scenario::All),
        ("postback", data) if !data.is_empty() => Some(Scenario::Postback { data: data.into() }),
        ("location", text) => place(text).ok().map(|place| Scenario::Location { place }),
        ("tap", rest) => taps(rest),
        _ => None,
    };
    scenario.map_or(Said::Unclear, Said::Scenario)
}

fn taps(rest: &str) -> Option<Scenario> {
    let (taps, data) = rest.split_once(' ')?;
    let taps = taps.parse().ok().filter(|taps| (1..=1000).contains(taps))?;
    Some(Scenario::DoubleTap { data: data.trim().into(), taps })
}
