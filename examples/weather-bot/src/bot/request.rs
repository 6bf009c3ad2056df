//! The request that an event makes.

use hapax_line::{EventKind, LineEvent};

use crate::place::{Place, Spot};
use crate::texts::{self, typed};

/// Longer texts are not looked up: they are no place names.
const LONGEST_NAME: usize = 100;

/// A user's request.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum WeatherRequest {
    /// The weather at a place, by name.
    Named(String),
    /// The weather at a place on the map.
    Here(Place),
    /// The weather at home or at the office.
    At(Spot),
    /// The weather at the place of a recent query, by the query's id.
    Again(i64),
    /// A button that sends the user's location.
    AskLocation,
    /// The list of recent queries.
    Recent,
    /// The user's settings.
    Settings,
    /// Make the place with this name the home or the office.
    Set(Spot, String),
    /// Make the place of a recent query the home or the office, by the query's id.
    SetRecent(Spot, i64),
    /// Instructions for setting the home or the office.
    HowToSet(Spot),
    /// The help text.
    Help,
    /// An impossible place: an overlong name, or coordinates out of range.
    ImpossiblePlace,
    /// A postback of another bot, or of another version of this one.
    UnknownButton,
}

impl WeatherRequest {
    /// `None` if the event asks for nothing.
    pub(super) fn of(event: &LineEvent) -> Option<Self> {
        match event.kind() {
            EventKind::TEXT => Some(typed(&event.addressed_text(typed::BOT)?)),
            // Only in one-to-one chats: members of a group send locations and pictures to each other.
            EventKind::LOCATION if event.is_one_to_one() => {
                Some(here(event).map_or(Self::ImpossiblePlace, Self::Here))
            }
            EventKind::POSTBACK => Some(tapped(event).unwrap_or(Self::UnknownButton)),
            kind if is_chatter(kind) && event.is_one_to_one() => Some(Self::Help),
            _ => None,
        }
    }
}

fn is_chatter(kind: EventKind) -> bool {
    matches!(kind.as_str(), "sticker" | "image" | "video" | "audio" | "file")
}

fn typed(text: &str) -> WeatherRequest {
    let text = text.trim();
    for (command, spot) in [(typed::SET_HOME, Spot::Home), (typed::SET_OFFICE, Spot::Office)] {
        if let Some(name) = text.strip_prefix(command) {
            return match named(name) {
                WeatherRequest::Named(name) => WeatherRequest::Set(spot, name),
                WeatherRequest::Help => WeatherRequest::HowToSet(spot),
                other => other,
            };
        }
    }
    match typed::HELP.iter().any(|word| text.eq_ignore_ascii_case(word)) {
        true => WeatherRequest::Help,
        false => named(text),
    }
}

fn named(name: &str) -> WeatherRequest {
    let name = name.trim();
    match name.chars().count() {
        0 => WeatherRequest::Help,
        1..=LONGEST_NAME => WeatherRequest::Named(name.to_owned()),
        _ => WeatherRequest::ImpossiblePlace,
    }
}

fn here(event: &LineEvent) -> Option<Place> {
    let (latitude, longitude) = event.location()?;
    let text = |name: &str| event.json().pointer(name)?.as_str().filter(|text| !text.is_empty());
    let name = text("/message/title").or_else(|| text("/message/address"));
    let place = |name| Place::new(name, latitude, longitude);
    name.and_then(place).or_else(|| place(texts::HERE))
}

fn tapped(event: &LineEvent) -> Option<WeatherRequest> {
    let field = |name| event.postback_field(name);
    let number = || field("query")?.parse().ok();
    match (field("action")?.as_str(), field("type").as_deref()) {
        ("weather", Some("current")) => Some(WeatherRequest::AskLocation),
        ("weather", Some("recent")) => number().map(WeatherRequest::Again),
        ("weather", Some(spot)) => Spot::named(spot).map(WeatherRequest::At),
        ("set", Some(spot)) => {
            let spot = Spot::named(spot)?;
            Some(number().map_or(WeatherRequest::HowToSet(spot), |query| {
                WeatherRequest::SetRecent(spot, query)
            }))
        }
        ("recent_queries", _) => Some(WeatherRequest::Recent),
        ("settings", _) => Some(WeatherRequest::Settings),
        ("other", _) => Some(WeatherRequest::Help),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use hapax_line::simulator::events;
    use serde_json::{Value, json};

    use super::*;

    const USER: &str = "Uf00d0000000000000000000000000001";

    fn request(event: &Value) -> Option<WeatherRequest> {
        WeatherRequest::of(
            &LineEvent::parse(&"Uf00db07".into(), &event.to_string()).expect("an event"),
        )
    }

    fn said(text: &str) -> WeatherRequest {
        request(&events::text(USER, text)).expect("a request")
    }

    fn tapped(data: &str) -> WeatherRequest {
        request(&events::postback(USER, data)).expect("a request")
    }

    #[test]
    fn a_text_is_a_place_name_unless_it_is_a_command() {
        assert_eq!(said(" 台北 🥚\n"), WeatherRequest::Named("台北 🥚".into()));
        assert_eq!(said("設定住家 台北"), WeatherRequest::Set(Spot::Home, "台北".into()));
        assert_eq!(said("設定公司　新竹"), WeatherRequest::Set(Spot::Office, "新竹".into()));
        assert_eq!(said("設定住家台北"), WeatherRequest::Set(Spot::Home, "台北".into()));
        assert_eq!(said("設定公司"), WeatherRequest::HowToSet(Spot::Office));
        for help in ["說明", "幫助", "HELP", "  ", ""] {
            assert_eq!(said(help), WeatherRequest::Help, "{help:?}");
        }
        assert_eq!(said(&"長".repeat(101)), WeatherRequest::ImpossiblePlace);
        assert_eq!(
            said(&format!("設定住家 {}", "長".repeat(101))),
            WeatherRequest::ImpossiblePlace
        );
    }

    #[test]
    fn a_postback_is_routed_by_action_and_type() {
        assert_eq!(tapped("action=weather&type=home"), WeatherRequest::At(Spot::Home));
        assert_eq!(tapped("type=office&action=weather"), WeatherRequest::At(Spot::Office));
        assert_eq!(tapped("action=weather&type=current"), WeatherRequest::AskLocation);
        assert_eq!(tapped("action=weather&type=recent&query=7"), WeatherRequest::Again(7));
        assert_eq!(tapped("action=recent_queries"), WeatherRequest::Recent);
        assert_eq!(tapped("action=settings"), WeatherRequest::Settings);
        assert_eq!(tapped("action=other"), WeatherRequest::Help);
        assert_eq!(
            tapped("action=set&type=home&query=7"),
            WeatherRequest::SetRecent(Spot::Home, 7)
        );
        assert_eq!(tapped("action=set&type=office"), WeatherRequest::HowToSet(Spot::Office));
        for unknown in
            ["", "action=", "action=weather", "action=weather&type=moon", "action=dance", "{}"]
        {
            assert_eq!(tapped(unknown), WeatherRequest::UnknownButton, "{unknown}");
        }
    }

    #[test]
    fn a_location_has_the_name_that_its_sender_gave_it() {
        let mut event = events::location(USER, "老家 🥚", 25.05, 121.53);
        let name = |event: &Value| match request(event) {
            Some(WeatherRequest::Here(place)) => place.name,
            other => panic!("{other:?}"),
        };
        assert_eq!(name(&event), "老家 🥚");
        event["message"]["title"] = json!("");
        assert_eq!(name(&event), "100 臺北市中正區");
        event["message"]["address"] = Value::Null;
        assert_eq!(name(&event), texts::HERE);
        event["message"]["latitude"] = json!(123.4);
        assert_eq!(request(&event), Some(WeatherRequest::ImpossiblePlace));
        event["message"]["latitude"] = json!("north");
        assert_eq!(request(&event), Some(WeatherRequest::ImpossiblePlace));
    }

    #[test]
    fn fault_23_group_chat_asks_only_when_it_addresses_the_bot() {
        let in_group = |event| events::in_group(event, "Cf00d1");
        let text = |text| in_group(events::text(USER, text));
        let taipei = Some(WeatherRequest::Named("台北".into()));
        assert_eq!(request(&text("台北")), None);
        assert_eq!(request(&text("天氣台北")), None);
        assert_eq!(request(&text("天氣 台北")), taipei);
        assert_eq!(request(&text("/weather 台北")), taipei);
        assert_eq!(request(&text("天氣")), Some(WeatherRequest::Help));
        assert_eq!(request(&events::mentioning(text("台北"), "bot", "Uf00db07", true)), taipei);
        assert_eq!(request(&events::mentioning(text("台北"), "other", "Uf00d2", false)), None);
        assert_eq!(request(&in_group(events::location(USER, "老家", 25.05, 121.53))), None);
        let tap = in_group(events::postback(USER, "action=settings"));
        assert_eq!(request(&tap), Some(WeatherRequest::Settings));
    }

    #[test]
    fn chatter_is_helped_and_other_events_ask_for_nothing() {
        for event in events::every_kind(USER) {
            let kind = event["message"]["type"].as_str().or(event["type"].as_str()).unwrap();
            let asks = matches!(
                kind,
                "text" | "location" | "postback" | "sticker" | "image" | "video" | "audio" | "file"
            );
            assert_eq!(request(&event).is_some(), asks, "{kind}");
        }
        assert_eq!(request(&events::sticker(USER)), Some(WeatherRequest::Help));
        assert_eq!(request(&events::without_user(events::sticker(USER))), None);
    }
}
