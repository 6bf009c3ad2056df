//! `hapax line simulate`: LINE's side, for the author of a bot.
//!
//! ```text
//!   scenario ─► session ─► signed webhooks ──────► the bot (or `hapax line` before it)
//!                 ◄── LINE's API, on loopback ◄────── replies, pushes, animations
//! ```

mod chat;
mod hints;
mod session;

use std::process::ExitCode;
use std::time::Duration;

use clap::builder::RangedU64ValueParser;
use hapax_line::simulator::events;
use serde_json::Value;

use crate::client::{duration, print_line as line};
use session::SimulatorSession;

#[derive(clap::Args)]
#[command(after_help = "\
The bot is started beside it, so that it answers to the simulated API:
  LINE_CHANNEL_SECRET=simulated-secret LINE_CHANNEL_ACCESS_TOKEN=simulated-token \\
  LINE_API_BASE=http://127.0.0.1:8790  ./your-bot

Where LINE_CHANNEL_SECRET and LINE_CHANNEL_ACCESS_TOKEN are set here, too, those are used instead of
`simulated-secret` and `simulated-token`. Nothing reaches the real LINE.

Examples:
  hapax line simulate                                           a tour of what LINE does to bots
  hapax line simulate text \"台北\"
  hapax line simulate double-tap \"action=weather&type=home\"     two taps at the same time
  hapax line simulate redelivery --copies 20                    one event, 20 times at once
  hapax line simulate --to http://127.0.0.1:3000/callback all   every type of event
  hapax line simulate chat                                      send what you type as a user

Exit codes:
  0  every webhook was answered 200, and LINE would have complained about nothing
  1  otherwise; the hints say what to do")]
pub(crate) struct SimulateArgs {
    /// Where the bot takes webhooks
    #[arg(
        long,
        global = true,
        value_name = "URL",
        default_value = "http://127.0.0.1:8789/line/webhook"
    )]
    to: String,
    /// Where the simulated LINE API listens
    #[arg(long, global = true, value_name = "ADDR", default_value = "127.0.0.1:8790")]
    api: String,
    /// The user who writes and taps
    #[arg(
        long,
        global = true,
        value_name = "ID",
        default_value = "Uf00d0000000000000000000000000001"
    )]
    user: String,
    /// How long to wait for replies after the last webhook
    #[arg(long, global = true, value_name = "TIME", value_parser = parse_wait, default_value = "3s")]
    wait: Duration,
    #[command(subcommand)]
    scenario: Option<Scenario>,
}

#[derive(clap::Subcommand)]
enum Scenario {
    /// Most of these, one after the other; the default
    Tour,
    /// A text message
    Text {
        /// Text of the message
        text: String,
    },
    /// A location message
    Location {
        /// Latitude and longitude: 25.04,121.51
        #[arg(value_name = "LAT,LON", value_parser = parse_coordinates, allow_hyphen_values = true)]
        place: Coordinates,
    },
    /// A tap on something with data
    Postback {
        /// As in action=weather&type=home
        data: String,
    },
    /// A user adds the bot
    Follow,
    /// A user blocks the bot
    Unfollow,
    /// Several taps at the same time, each an event of its own
    DoubleTap {
        /// The data of each
        #[arg(default_value = "action=weather&type=home")]
        data: String,
        /// How many
        #[arg(long, default_value_t = 2, value_parser = copies())]
        taps: usize,
    },
    /// One text message, delivered many times at once
    Redelivery {
        /// Text of the message
        #[arg(default_value = "台北")]
        text: String,
        /// How many times
        #[arg(long, default_value_t = 20, value_parser = copies())]
        copies: usize,
    },
    /// Several events in one webhook: of one user, of another one, and of a type not known yet
    Batch,
    /// Every type of event, and one not known yet
    All,
    /// An event that the bot may not answer
    Standby,
    /// Send what you type as a user's messages; from a pipe, each line after the reply to the last
    Chat,
}

#[derive(Clone, Copy)]
struct Coordinates {
    latitude: f64,
    longitude: f64,
}

/// The events of one webhook, each with its label.
type Webhook = Vec<(String, Value)>;

pub(crate) async fn run(args: SimulateArgs) -> anyhow::Result<ExitCode> {
    let mut session = SimulatorSession::start(&args).await?;
    match args.scenario {
        None | Some(Scenario::Tour) => tour(&mut session).await,
        Some(Scenario::Chat) => chat::run(&mut session).await,
        Some(scenario) => {
            send_scenario(&mut session, &scenario).await;
            session.wait_for_replies(None).await;
        }
    }
    Ok(session.finish())
}

/// One step after the other; the next one when every expected reply came.
async fn tour(session: &mut SimulatorSession) {
    let steps = [
        ("A user adds the bot.", Scenario::Follow),
        ("A text.", Scenario::Text { text: "台北".into() }),
        ("A place.", Scenario::Location { place: TAIPEI }),
        (
            "A double tap: one lookup is enough.",
            Scenario::DoubleTap { data: "action=weather&type=home".into(), taps: 2 },
        ),
        (
            "LINE delivers an event again, and again: it is handled once.",
            Scenario::Redelivery { text: "台北".into(), copies: 20 },
        ),
        ("Several events in one webhook: none is lost to another.", Scenario::Batch),
        ("Another module of the channel has the chat: nothing may be sent.", Scenario::Standby),
        ("A user blocks the bot.", Scenario::Unfollow),
    ];
    for (nth, (why, step)) in steps.into_iter().enumerate() {
        let gap = if nth == 0 { "" } else { "\n" };
        line(format_args!("{gap}{why}"));
        let expected = send_scenario(session, &step).await;
        session.wait_for_replies(Some(expected)).await;
        if session.cannot_continue() {
            return;
        }
    }
    session.wait_for_replies(None).await;
}

const TAIPEI: Coordinates = Coordinates { latitude: 25.0478, longitude: 121.517 };

/// Sends the webhooks of a scenario, and returns how many replies they may have.
async fn send_scenario(session: &mut SimulatorSession, scenario: &Scenario) -> usize {
    let user = session.user().to_owned();
    let user = user.as_str();
    let one = |name: &str, event: Value| vec![vec![(name.to_owned(), event)]];
    let (what, webhooks) = match scenario {
        Scenario::Text { text } => (format!("text: {text}"), one("text", events::text(user, text))),
        Scenario::Location { place: Coordinates { latitude, longitude } } => {
            let event = events::location(user, "位置", *latitude, *longitude);
            (format!("location {latitude},{longitude}"), one("location", event))
        }
        Scenario::Postback { data } => {
            (format!("postback: {data}"), one("postback", events::postback(user, data)))
        }
        Scenario::Follow => ("follow".into(), one("follow", events::follow(user))),
        Scenario::Unfollow => ("unfollow".into(), one("unfollow", events::unfollow(user))),
        Scenario::DoubleTap { data, taps } => {
            let tap = |nth| vec![(format!("tap {nth}"), events::postback(user, data))];
            (format!("{taps} taps at once: {data}"), (1..=*taps).map(tap).collect())
        }
        Scenario::Redelivery { text, copies } => {
            let event = events::text(user, text);
            let again = vec![("text".to_owned(), events::redelivered(&event))];
            let mut webhooks = one("text", event);
            webhooks.resize(*copies, again);
            (format!("one text, delivered {copies} times at once: {text}"), webhooks)
        }
        Scenario::Batch => ("four events in one webhook".into(), vec![batch(user)]),
        Scenario::Standby => {
            // A user of its own, so that every message to it is about this event.
            let user = format!("{user}3");
            let event = events::standby(events::text(&user, "台北"));
            session.forbid_messages_to(user);
            ("text, in standby".into(), one("text", event))
        }
        Scenario::All => return every_kind(session).await,
        Scenario::Tour | Scenario::Chat => return 0,
    };
    session.send(&what, webhooks).await
}

fn batch(user: &str) -> Webhook {
    let other = format!("{user}2");
    vec![
        ("first text".into(), events::text(user, "台北")),
        ("postback".into(), events::postback(user, "action=weather&type=home")),
        ("unknown event".into(), events::unknown(user)),
        ("other user's text".into(), events::text(&other, "高雄")),
    ]
}

async fn every_kind(session: &mut SimulatorSession) -> usize {
    let mut replies = 0;
    for event in events::every_kind(session.user()) {
        let kind = event["message"]["type"].as_str().or(event["type"].as_str());
        let kind = kind.unwrap_or_default().to_owned();
        replies += session.send(&kind, vec![vec![(kind.clone(), event)]]).await;
        if session.cannot_continue() {
            break;
        }
    }
    replies
}

fn parse_coordinates(text: &str) -> Result<Coordinates, String> {
    let numbers = text.split_once(',').and_then(|(latitude, longitude)| {
        Some((latitude.trim().parse::<f64>().ok()?, longitude.trim().parse::<f64>().ok()?))
    });
    match numbers {
        Some((latitude @ -90.0..=90.0, longitude @ -180.0..=180.0)) => {
            Ok(Coordinates { latitude, longitude })
        }
        _ => Err("latitude and longitude are expected, as in 25.04,121.51".into()),
    }
}

fn parse_wait(text: &str) -> Result<Duration, String> {
    let time = duration(text)?;
    let most = Duration::from_secs(600);
    if time <= most { Ok(time) } else { Err("at most 10m is expected".into()) }
}

/// How many webhooks are sent at once.
fn copies() -> RangedU64ValueParser<usize> {
    RangedU64ValueParser::new().range(1..=1000)
}
