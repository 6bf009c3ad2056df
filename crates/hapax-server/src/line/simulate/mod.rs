//! `hapax line simulate`: LINE at a bot author's desk.
//!
//! ```text
//!   scenario ─► Desk ─► signed webhooks ─────────► the bot (or `hapax line` before it)
//!                 ◄── LINE's API, on loopback ◄────── replies, pushes, animations
//! ```

mod chat;
mod desk;
mod hints;
mod spoken;

use std::process::ExitCode;
use std::time::Duration;

use clap::builder::RangedU64ValueParser;
use hapax_line::simulator::events;
use serde_json::Value;

use crate::client::{duration, print_line as line};
use desk::Desk;

const HELP: &str = "\
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
  hapax line simulate chat                                      what you type is what a user says

Exit codes:
  0  every webhook was answered 200, and LINE would have complained about nothing
  1  a webhook was not, or LINE would have; what to do is said";

/// The arguments of `hapax line simulate`.
#[derive(clap::Args)]
#[command(after_help = HELP)]
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
    /// Who writes and taps
    #[arg(
        long,
        global = true,
        value_name = "ID",
        default_value = "Uf00d0000000000000000000000000001"
    )]
    user: String,
    /// How long to listen for answers after the last webhook
    #[arg(long, global = true, value_name = "TIME", value_parser = patience, default_value = "3s")]
    wait: Duration,
    #[command(subcommand)]
    scenario: Option<Scenario>,
}

#[derive(clap::Subcommand)]
enum Scenario {
    /// Most of these, one after the other; this is what is done unless something else is said
    Tour,
    /// A text message
    Text {
        /// What it says
        text: String,
    },
    /// A location message
    Location {
        /// Latitude and longitude: 25.04,121.51
        #[arg(value_name = "LAT,LON", value_parser = place, allow_hyphen_values = true)]
        place: Place,
    },
    /// A tap on something with data
    Postback {
        /// As in action=weather&type=home
        data: String,
    },
    /// Somebody adds the bot
    Follow,
    /// Somebody blocks the bot
    Unfollow,
    /// Several taps at the same time, each an event of its own
    DoubleTap {
        /// The data of each
        #[arg(default_value = "action=weather&type=home")]
        data: String,
        /// How many
        #[arg(long, default_value_t = 2, value_parser = some())]
        taps: usize,
    },
    /// One text message, delivered many times at once
    Redelivery {
        /// What it says
        #[arg(default_value = "台北")]
        text: String,
        /// How many times
        #[arg(long, default_value_t = 20, value_parser = some())]
        copies: usize,
    },
    /// Several events in one webhook: of one user, of another one, and of a type not known yet
    Batch,
    /// Every type of event, and one not known yet
    All,
    /// An event that the bot may not answer
    Standby,
    /// What you type is what a user says; from a pipe, each line when the one before is answered
    Chat,
}

#[derive(Clone, Copy)]
struct Place {
    latitude: f64,
    longitude: f64,
}

/// Events that one webhook carries, each with what it is called here.
type Webhook = Vec<(String, Value)>;

pub(crate) async fn run(args: SimulateArgs) -> anyhow::Result<ExitCode> {
    let mut desk = Desk::open(&args).await?;
    match args.scenario {
        None | Some(Scenario::Tour) => tour(&mut desk).await,
        Some(Scenario::Chat) => chat::run(&mut desk).await,
        Some(scenario) => {
            play(&mut desk, &scenario).await;
            desk.listen(None).await;
        }
    }
    Ok(desk.sum_up())
}

/// One step after the other; the next one when all that can be answered is.
async fn tour(desk: &mut Desk) {
    let steps = [
        ("Somebody adds the bot.", Scenario::Follow),
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
        ("Somebody blocks the bot.", Scenario::Unfollow),
    ];
    for (nth, (why, step)) in steps.into_iter().enumerate() {
        let gap = if nth == 0 { "" } else { "\n" };
        line(format_args!("{gap}{why}"));
        let expected = play(desk, &step).await;
        desk.listen(Some(expected)).await;
        if desk.is_hopeless() {
            return;
        }
    }
    desk.listen(None).await;
}

const TAIPEI: Place = Place { latitude: 25.0478, longitude: 121.517 };

/// Sends what belongs to a scenario, and says how many answers that may have.
async fn play(desk: &mut Desk, scenario: &Scenario) -> usize {
    let user = desk.user().to_owned();
    let user = user.as_str();
    let one = |name: &str, event: Value| vec![vec![(name.to_owned(), event)]];
    let (what, webhooks) = match scenario {
        Scenario::Text { text } => (format!("text: {text}"), one("text", events::text(user, text))),
        Scenario::Location { place: Place { latitude, longitude } } => {
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
            // Nobody else, so that what is said to him can only be about this.
            let user = format!("{user}3");
            let event = events::standby(events::text(&user, "台北"));
            desk.expect_silence(user);
            ("text, in standby".into(), one("text", event))
        }
        Scenario::All => return every_kind(desk).await,
        Scenario::Tour | Scenario::Chat => return 0,
    };
    desk.send(&what, webhooks).await
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

async fn every_kind(desk: &mut Desk) -> usize {
    let mut answers = 0;
    for event in events::every_kind(desk.user()) {
        let kind = event["message"]["type"].as_str().or(event["type"].as_str());
        let kind = kind.unwrap_or_default().to_owned();
        answers += desk.send(&kind, vec![vec![(kind.clone(), event)]]).await;
        if desk.is_hopeless() {
            break;
        }
    }
    answers
}

fn place(text: &str) -> Result<Place, String> {
    let numbers = text.split_once(',').and_then(|(latitude, longitude)| {
        Some((latitude.trim().parse::<f64>().ok()?, longitude.trim().parse::<f64>().ok()?))
    });
    match numbers {
        Some((latitude @ -90.0..=90.0, longitude @ -180.0..=180.0)) => {
            Ok(Place { latitude, longitude })
        }
        _ => Err("latitude and longitude are expected, as in 25.04,121.51".into()),
    }
}

fn patience(text: &str) -> Result<Duration, String> {
    let time = duration(text)?;
    let most = Duration::from_secs(600);
    if time <= most { Ok(time) } else { Err("at most 10m is expected".into()) }
}

/// As many as a desk can bear.
fn some() -> RangedU64ValueParser<usize> {
    RangedU64ValueParser::new().range(1..=1000)
}
