//! The bot: handles one event and sends the answer.

mod buttons;
mod request;

use std::time::Duration;

use async_trait::async_trait;
use example_common::database::DatabaseError;
use hapax_line::{
    EventContext, EventHandlerError, EventKind, LineEvent, LineEventHandler, LineMessage,
    QuickReplyAction, SendError,
};
use request::WeatherRequest;
use tokio::time::timeout;

use crate::place::{Place, Spot};
use crate::texts;
use crate::users::{Users, Visitor};
use crate::weather::{LookupError, Weather, WeatherService};

/// How long LINE shows the loading animation unless the answer comes first.
const LOADING_SECONDS: u8 = 5;
/// Timeout of the request that shows the animation; the animation is optional.
const LOADING_TIMEOUT: Duration = Duration::from_millis(500);

pub(crate) struct WeatherBot {
    users: Users,
    weather: WeatherService,
}

impl WeatherBot {
    pub(crate) fn new(users: Users, weather: WeatherService) -> Self {
        Self { users, weather }
    }

    /// Records a follow or unfollow before anything is answered, and asks for a retry on failure.
    async fn follow_or_unfollow(
        &self,
        event: &LineEvent,
        context: &EventContext,
    ) -> Result<(), EventHandlerError> {
        let Some(who) = visitor(event) else { return Ok(()) };
        let follows = event.kind() == EventKind::FOLLOW;
        let written = match follows {
            true => self.users.follow(&who).await,
            false => self.users.unfollow(&who).await,
        };
        if let Err(error) = written {
            log_database_error(context, &error);
            return Err(EventHandlerError::retry("the users' database gives no answer"));
        }
        if follows { say(context, (texts::WELCOME.into(), buttons::menu())).await } else { Ok(()) }
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
            return self.follow_or_unfollow(event, context).await;
        }
        // In standby another module of the channel answers, so a lookup would be wasted.
        let request = WeatherRequest::of(event).filter(|_| !event.is_standby());
        let Some(request) = request else { return Ok(()) };
        let who = visitor(event);
        let Self { users, weather } = self;
        let answer = Answering { users, weather, who: who.as_ref(), context }.answer(request).await;
        say(context, answer).await
    }
}

/// The text of an answer, and its quick reply buttons.
type Answer = (String, Vec<QuickReplyAction>);

/// Answers the request of one event.
struct Answering<'a> {
    users: &'a Users,
    weather: &'a WeatherService,
    /// `None` in a chat where LINE does not tell who wrote.
    who: Option<&'a Visitor>,
    context: &'a EventContext,
}

impl Answering<'_> {
    async fn answer(&self, request: WeatherRequest) -> Answer {
        match request {
            WeatherRequest::Named(name) => self.weather_of(&name).await,
            WeatherRequest::Here(place) => self.weather_at(&place).await,
            WeatherRequest::AskLocation => (texts::ASK_LOCATION.into(), buttons::location()),
            WeatherRequest::Help => (texts::HELP.into(), buttons::menu()),
            WeatherRequest::ImpossiblePlace => plain(texts::UNKNOWN_PLACE),
            WeatherRequest::UnknownButton => plain(texts::UNKNOWN_BUTTON),
            // The remaining requests need a user id.
            request => match self.who {
                Some(who) => self.answer_user(request, who).await.unwrap_or_else(|error| {
                    log_database_error(self.context, &error);
                    plain(texts::USERS_AWAY)
                }),
                None => plain(texts::NOBODY),
            },
        }
    }

    async fn answer_user(&self, request: WeatherRequest, who: &Visitor) -> anyhow::Result<Answer> {
        Ok(match request {
            WeatherRequest::At(spot) => match self.users.place(&who.id, spot).await? {
                Some(place) => self.weather_at(&place).await,
                None => self.how_to_set(spot, who).await?,
            },
            WeatherRequest::Again(query) => match self.recent_place(query, who).await? {
                Some(place) => self.weather_at(&place).await,
                None => plain(texts::FORGOTTEN),
            },
            WeatherRequest::Recent => match &*self.users.recent(&who.id).await? {
                [] => plain(texts::NO_RECENT),
                queries => (texts::recent(queries), buttons::again(queries)),
            },
            WeatherRequest::Settings => {
                let home = self.users.place(&who.id, Spot::Home).await?;
                let office = self.users.place(&who.id, Spot::Office).await?;
                (texts::settings(home.as_ref(), office.as_ref()), buttons::menu())
            }
            WeatherRequest::HowToSet(spot) => self.how_to_set(spot, who).await?,
            WeatherRequest::Set(spot, name) => {
                match self.while_loading(self.weather.find(&name)).await {
                    Ok(Some(place)) => self.set(spot, &place, who).await,
                    Ok(None) => plain(texts::UNKNOWN_PLACE),
                    Err(error) => self.no_weather(error),
                }
            }
            WeatherRequest::SetRecent(spot, query) => match self.recent_place(query, who).await? {
                Some(place) => self.set(spot, &place, who).await,
                None => plain(texts::FORGOTTEN),
            },
            _ => plain(texts::HELP),
        })
    }

    async fn weather_of(&self, name: &str) -> Answer {
        match self.while_loading(self.weather.of(name)).await {
            Ok(Some((place, weather))) => self.record_and_tell(&place, &weather).await,
            Ok(None) => plain(texts::UNKNOWN_PLACE),
            Err(error) => self.no_weather(error),
        }
    }

    async fn weather_at(&self, place: &Place) -> Answer {
        match self.while_loading(self.weather.at(place)).await {
            Ok(weather) => self.record_and_tell(place, &weather).await,
            Err(error) => self.no_weather(error),
        }
    }

    /// Records the query and formats the answer. A database error only loses the record: the user
    /// still gets the weather.
    async fn record_and_tell(&self, place: &Place, weather: &Weather) -> Answer {
        let text = texts::weather(place, weather);
        let Some(who) = self.who else { return (text, Vec::new()) };
        let query = self.users.add_recent(who, place).await.unwrap_or_else(|error| {
            log_database_error(self.context, &error);
            None
        });
        (text, query.map(buttons::set_spots).unwrap_or_default())
    }

    async fn recent_place(&self, query: i64, who: &Visitor) -> anyhow::Result<Option<Place>> {
        let mut queries = self.users.recent(&who.id).await?.into_iter();
        Ok(queries.find(|recent| recent.id == query).map(|recent| recent.place))
    }

    async fn how_to_set(&self, spot: Spot, who: &Visitor) -> anyhow::Result<Answer> {
        let queries = self.users.recent(&who.id).await?;
        Ok((texts::not_set(spot), buttons::choose(spot, &queries)))
    }

    async fn set(&self, spot: Spot, place: &Place, who: &Visitor) -> Answer {
        match self.users.set_place(who, spot, place).await {
            Ok(()) => (texts::was_set(spot, place), buttons::menu()),
            Err(error) => {
                log_database_error(self.context, &error);
                plain(texts::NOT_SAVED)
            }
        }
    }

    /// Awaits the lookup while LINE shows the loading animation.
    async fn while_loading<T>(&self, lookup: impl Future<Output = T>) -> T {
        let animation = timeout(LOADING_TIMEOUT, self.context.show_loading(LOADING_SECONDS));
        let (_, answer) = tokio::join!(animation, lookup);
        answer
    }

    fn no_weather(&self, error: LookupError) -> Answer {
        tracing::warn!(correlation = self.context.correlation(), "{error}");
        plain(texts::WEATHER_AWAY)
    }
}

fn visitor(event: &LineEvent) -> Option<Visitor> {
    let at = event.json().get("timestamp").and_then(serde_json::Value::as_i64).unwrap_or(0);
    Some(Visitor { id: event.user_id()?.to_owned(), at })
}

fn plain(text: &str) -> Answer {
    (text.into(), Vec::new())
}

fn log_database_error(context: &EventContext, error: &anyhow::Error) {
    let reason = error.downcast_ref().map_or("data", |error: &DatabaseError| error.reason);
    let correlation = context.correlation();
    tracing::warn!(correlation, reason, "the users' database gives no answer");
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
