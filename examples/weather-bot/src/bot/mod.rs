//! The bot: handles one event and sends the answer.

mod buttons;
mod wish;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use hapax_line::{
    EventContext, EventHandlerError, EventKind, LineEvent, LineEventHandler, LineMessage,
    QuickReplyAction, SendError,
};
use tokio::time::timeout;
use wish::Wish;

use crate::place::{Place, Spot};
use crate::texts;
use crate::users::{Users, Visitor};
use crate::weather::{Trouble, Weather, WeatherService};

/// How long LINE shows the loading animation unless the answer comes first.
const LOADING_SECONDS: u8 = 5;
/// Limit for the request that shows the animation; the animation is optional.
const LOADING_LIMIT: Duration = Duration::from_millis(500);

pub(crate) struct WeatherBot {
    users: Arc<dyn Users>,
    weather: WeatherService,
}

/// The text of an answer, and its quick reply buttons.
type Answer = (String, Vec<QuickReplyAction>);

impl WeatherBot {
    pub(crate) fn new(users: Arc<dyn Users>, weather: WeatherService) -> Self {
        Self { users, weather }
    }

    async fn answer(&self, wish: Wish, who: Option<&Visitor>, context: &EventContext) -> Answer {
        match wish {
            Wish::Named(name) => self.weather_of(&name, who, context).await,
            Wish::Here(place) => self.weather_at(place, who, context).await,
            Wish::AskLocation => (texts::ASK_LOCATION.into(), buttons::location()),
            Wish::Help => (texts::HELP.into(), buttons::menu()),
            Wish::Nowhere => plain(texts::UNKNOWN_PLACE),
            Wish::UnknownButton => plain(texts::UNKNOWN_BUTTON),
            // The remaining wishes need a user id.
            wish => match who {
                Some(who) => self.answer_to(wish, who, context).await,
                None => plain(texts::NOBODY),
            },
        }
    }

    async fn answer_to(&self, wish: Wish, who: &Visitor, context: &EventContext) -> Answer {
        let answer = match wish {
            Wish::At(spot) => self.weather_at_spot(spot, who, context).await,
            Wish::Again(query) => self.weather_again(query, who, context).await,
            Wish::Recent => self.recent(who).await,
            Wish::Settings => self.settings(who).await,
            Wish::HowToSet(spot) => self.how_to_set(spot, who).await,
            Wish::Set(spot, name) => return self.set(spot, &name, who, context).await,
            Wish::SetRecent(spot, query) => self.set_recent(spot, query, who, context).await,
            _ => return plain(texts::HELP),
        };
        answer.unwrap_or_else(|error| {
            complain(context, "the users' database", &error);
            plain(texts::USERS_AWAY)
        })
    }

    async fn weather_of(
        &self,
        name: &str,
        who: Option<&Visitor>,
        context: &EventContext,
    ) -> Answer {
        match shown(context, self.weather.of(name)).await {
            Ok(Some((place, weather))) => self.tell(&place, &weather, who, context).await,
            Ok(None) => plain(texts::UNKNOWN_PLACE),
            Err(trouble) => away(context, trouble),
        }
    }

    async fn weather_at(
        &self,
        place: Place,
        who: Option<&Visitor>,
        context: &EventContext,
    ) -> Answer {
        match shown(context, self.weather.at(&place)).await {
            Ok(weather) => self.tell(&place, &weather, who, context).await,
            Err(trouble) => away(context, trouble),
        }
    }

    async fn weather_at_spot(
        &self,
        spot: Spot,
        who: &Visitor,
        context: &EventContext,
    ) -> anyhow::Result<Answer> {
        match self.users.place(&who.id, spot).await? {
            Some(place) => Ok(self.weather_at(place, Some(who), context).await),
            None => self.how_to_set(spot, who).await,
        }
    }

    async fn weather_again(
        &self,
        query: i64,
        who: &Visitor,
        context: &EventContext,
    ) -> anyhow::Result<Answer> {
        match self.recent_place(query, who).await? {
            Some(place) => Ok(self.weather_at(place, Some(who), context).await),
            None => Ok(plain(texts::FORGOTTEN)),
        }
    }

    /// Records the query and formats the answer. A database error only loses the record: the user
    /// still gets the weather.
    async fn tell(
        &self,
        place: &Place,
        weather: &Weather,
        who: Option<&Visitor>,
        context: &EventContext,
    ) -> Answer {
        let text = texts::weather(place, weather);
        let Some(who) = who else { return (text, Vec::new()) };
        let query = self.users.remember(who, place).await.unwrap_or_else(|error| {
            complain(context, "the users' database", &error);
            None
        });
        (text, query.map(buttons::keep).unwrap_or_default())
    }

    async fn recent(&self, who: &Visitor) -> anyhow::Result<Answer> {
        let queries = self.users.recent(&who.id).await?;
        if queries.is_empty() {
            return Ok(plain(texts::NO_RECENT));
        }
        Ok((texts::recent(&queries), buttons::again(&queries)))
    }

    async fn recent_place(&self, query: i64, who: &Visitor) -> anyhow::Result<Option<Place>> {
        let mut queries = self.users.recent(&who.id).await?.into_iter();
        Ok(queries.find(|recent| recent.id == query).map(|recent| recent.place))
    }

    async fn settings(&self, who: &Visitor) -> anyhow::Result<Answer> {
        let home = self.users.place(&who.id, Spot::Home).await?;
        let office = self.users.place(&who.id, Spot::Office).await?;
        Ok((texts::settings(home.as_ref(), office.as_ref()), buttons::menu()))
    }

    async fn how_to_set(&self, spot: Spot, who: &Visitor) -> anyhow::Result<Answer> {
        let queries = self.users.recent(&who.id).await?;
        Ok((texts::not_set(spot), buttons::choose(spot, &queries)))
    }

    async fn set(&self, spot: Spot, name: &str, who: &Visitor, context: &EventContext) -> Answer {
        match shown(context, self.weather.find(name)).await {
            Ok(Some(place)) => self.keep(spot, &place, who, context).await,
            Ok(None) => plain(texts::UNKNOWN_PLACE),
            Err(trouble) => away(context, trouble),
        }
    }

    async fn set_recent(
        &self,
        spot: Spot,
        query: i64,
        who: &Visitor,
        context: &EventContext,
    ) -> anyhow::Result<Answer> {
        match self.recent_place(query, who).await? {
            Some(place) => Ok(self.keep(spot, &place, who, context).await),
            None => Ok(plain(texts::FORGOTTEN)),
        }
    }

    async fn keep(
        &self,
        spot: Spot,
        place: &Place,
        who: &Visitor,
        context: &EventContext,
    ) -> Answer {
        match self.users.set_place(who, spot, place).await {
            Ok(()) => (texts::was_set(spot, place), buttons::menu()),
            Err(error) => {
                complain(context, "the users' database", &error);
                plain(texts::NOT_SAVED)
            }
        }
    }

    /// Records a follow or unfollow before anything is answered, and asks for a retry on failure.
    async fn came_or_went(
        &self,
        event: &LineEvent,
        context: &EventContext,
    ) -> Result<(), EventHandlerError> {
        let Some(who) = visitor(event) else { return Ok(()) };
        let came = event.kind() == EventKind::FOLLOW;
        let written = match came {
            true => self.users.follow(&who).await,
            false => self.users.unfollow(&who).await,
        };
        if let Err(error) = written {
            complain(context, "the users' database", &error);
            return Err(EventHandlerError::retry("the users' database gives no answer"));
        }
        if came { say(context, (texts::WELCOME.into(), buttons::menu())).await } else { Ok(()) }
    }
}

#[async_trait]
impl LineEventHandler for WeatherBot {
    async fn handle(
        &self,
        event: &LineEvent,
        context: &EventContext,
    ) -> Result<(), EventHandlerError> {
        if matches!(event.kind(), EventKind::FOLLOW | EventKind::UNFOLLOW) {
            return self.came_or_went(event, context).await;
        }
        // In standby another module of the channel answers, so a lookup would be wasted.
        let Some(wish) = Wish::of(event).filter(|_| !event.is_standby()) else { return Ok(()) };
        let answer = self.answer(wish, visitor(event).as_ref(), context).await;
        say(context, answer).await
    }
}

fn visitor(event: &LineEvent) -> Option<Visitor> {
    let at = event.json().get("timestamp").and_then(serde_json::Value::as_i64).unwrap_or(0);
    Some(Visitor { id: event.user_id()?.to_owned(), at })
}

fn plain(text: &str) -> Answer {
    (text.into(), Vec::new())
}

/// Awaits the lookup while LINE shows the loading animation.
async fn shown<T>(context: &EventContext, lookup: impl Future<Output = T>) -> T {
    let animation = timeout(LOADING_LIMIT, context.show_loading(LOADING_SECONDS));
    let (_, answer) = tokio::join!(animation, lookup);
    answer
}

fn away(context: &EventContext, trouble: Trouble) -> Answer {
    tracing::warn!(correlation = context.correlation(), "{trouble}");
    plain(texts::WEATHER_AWAY)
}

/// Logs only the kind of a database error: its message may contain values.
fn complain(context: &EventContext, what: &str, error: &anyhow::Error) {
    let kind = kind(error);
    tracing::warn!(correlation = context.correlation(), kind, "{what} gives no answer");
}

fn kind(error: &anyhow::Error) -> &'static str {
    if error.is::<tokio_postgres::Error>() || error.is::<deadpool_postgres::PoolError>() {
        "postgres"
    } else if error.is::<hapax::sqlite::rusqlite::Error>() {
        "sqlite"
    } else {
        "time limit"
    }
}

async fn say(context: &EventContext, (text, actions): Answer) -> Result<(), EventHandlerError> {
    let message = LineMessage::text(text);
    let message = if actions.is_empty() { message } else { message.quick_reply(actions) };
    match context.reply_or_push(&[message]).await {
        // Do not retry: the message may have arrived, or must not be sent.
        Ok(_)
        | Err(SendError::OutcomeUnknown | SendError::AlreadyTried | SendError::NotAllowed) => {
            Ok(())
        }
        Err(SendError::NotNow) => Err(EventHandlerError::retry("LINE takes nothing now")),
        Err(error) => Err(EventHandlerError::permanent(error.to_string())),
    }
}
