//! Quick reply buttons.

use example_common::truncate_utf16;
use hapax_line::QuickReplyAction;

use crate::place::Spot;
use crate::texts::labels;
use crate::users::Recent;

/// LINE's limit for a label, in UTF-16 units.
const LONGEST_LABEL: usize = 20;

/// The actions of the rich menu, for clients that show no rich menu.
pub(super) fn menu() -> Vec<QuickReplyAction> {
    vec![
        QuickReplyAction::postback(labels::HOME, "action=weather&type=home"),
        QuickReplyAction::postback(labels::OFFICE, "action=weather&type=office"),
        QuickReplyAction::location(labels::LOCATION),
        QuickReplyAction::postback(labels::RECENT, "action=recent_queries"),
        QuickReplyAction::postback(labels::HELP, "action=other"),
    ]
}

/// A button that sends the user's location.
pub(super) fn location() -> Vec<QuickReplyAction> {
    vec![QuickReplyAction::location(labels::LOCATION)]
}

/// Buttons that show the weather of recent queries.
pub(super) fn again(queries: &[Recent]) -> Vec<QuickReplyAction> {
    recent_buttons(queries, |query| format!("action=weather&type=recent&query={query}"))
}

/// Buttons that make the place of a query the home or the office.
pub(super) fn set_spots(query: i64) -> Vec<QuickReplyAction> {
    let button = |label, spot| QuickReplyAction::postback(label, &set_data(spot, query));
    vec![button(labels::SET_HOME, Spot::Home), button(labels::SET_OFFICE, Spot::Office)]
}

/// Buttons that make the place of a recent query the home or the office.
pub(super) fn choose(spot: Spot, queries: &[Recent]) -> Vec<QuickReplyAction> {
    recent_buttons(queries, |query| set_data(spot, query))
}

fn set_data(spot: Spot, query: i64) -> String {
    format!("action=set&type={}&query={query}", spot.as_str())
}

/// A button for each query, labelled with its place, that sends `data` of the query's id.
fn recent_buttons(queries: &[Recent], data: impl Fn(i64) -> String) -> Vec<QuickReplyAction> {
    let button = |query: &Recent| {
        let label = truncate_utf16(&query.place.name, LONGEST_LABEL);
        QuickReplyAction::postback(&label, &data(query.id))
    };
    queries.iter().map(button).collect()
}
