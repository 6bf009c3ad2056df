//! `reveal`: whether a call shows keys, payloads and answers, which may identify a person.

use super::ApiRequest;
use super::auth::Credentials;
use crate::api::app::AppState;
use crate::problem::{Problem, ProblemKind};
use crate::settings::ConsoleReveal;

/// Whether keys, payloads and answers are shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reveal {
    /// They are null.
    Masked,
    /// They are shown, as always to an `admin` token.
    Shown,
    /// They are shown because the caller asked for it; that is audited.
    Requested,
}

impl Reveal {
    pub(crate) fn is_masked(self) -> bool {
        self == Self::Masked
    }

    /// The value, unless it is masked.
    pub(crate) fn show<T>(self, value: T) -> Option<T> {
        (!self.is_masked()).then_some(value)
    }
}

impl ApiRequest {
    /// Reads the query parameter `reveal`, and refuses callers that may not reveal.
    pub(crate) fn reveal(
        &self,
        app: &AppState,
        parameter: Option<&str>,
    ) -> Result<Reveal, Problem> {
        let refused = |text| Err(Problem::new(ProblemKind::Forbidden, text));
        match parameter {
            Some("false") => Ok(Reveal::Masked),
            Some("true") if !self.is_admin => {
                refused("`reveal=true` needs the scope `admin`; leave it out to get masked rows")
            }
            Some("true") if !may_reveal(app, self.credentials) => refused(
                "`reveal=true` is switched off for the console (`--console-reveal never`); use \
                 the API with an `admin` token",
            ),
            Some("true") => Ok(Reveal::Requested),
            Some(_) => Err(Problem::invalid("query parameter `reveal` takes true or false")),
            None if self.is_admin && self.credentials != Credentials::ConsoleSession => {
                Ok(Reveal::Shown)
            }
            None => Ok(Reveal::Masked),
        }
    }
}

/// Whether `--console-reveal` lets these credentials ask for a reveal. The console of a server without
/// tokens has no session, so that its requests cannot be told from others.
pub(crate) fn may_reveal(app: &AppState, credentials: Credentials) -> bool {
    let is_console = [Credentials::ConsoleSession, Credentials::Loopback].contains(&credentials);
    !is_console || app.settings.console_reveal == ConsoleReveal::Allowed
}
