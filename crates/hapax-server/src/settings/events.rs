//! How the settings of events and their streams are written.

use std::fmt;

use hapax::bus::Finale;
use hapax::log::MAX_NUMBER;
use hyper::Uri;

use super::Value;

/// The event that closes a job by convention, if any.
#[derive(Clone, Debug)]
pub(crate) struct ClosingEvent(pub(crate) Option<Finale>);

impl Value for ClosingEvent {
    fn parse(text: &str) -> Result<Self, String> {
        if text.is_empty() {
            return Ok(Self(None));
        }
        let expected = "a stage and a seq are expected, such as done:51, or nothing";
        let (stage, seq) = text.rsplit_once(':').ok_or(expected)?;
        let seq = seq.parse().ok().filter(|seq| *seq <= MAX_NUMBER).ok_or(expected)?;
        if stage.is_empty() {
            return Err(expected.into());
        }
        Ok(Self(Some(Finale::new(stage, seq))))
    }
}

/// Web sites, as browsers name them in `Origin`.
#[derive(Clone, Debug)]
pub(crate) struct Origins(Vec<String>);

impl Origins {
    pub(crate) fn allow(&self, origin: &str) -> bool {
        self.0.iter().any(|allowed| allowed == "*" || allowed == origin)
    }
}

impl Value for Origins {
    fn parse(text: &str) -> Result<Self, String> {
        let origins = text.split(',').map(str::trim).filter(|origin| !origin.is_empty());
        let origins: Vec<_> = origins.map(str::to_owned).collect();
        match origins.iter().all(|origin| origin == "*" || is_origin(origin)) {
            true => Ok(Self(origins)),
            false => Err("origins such as https://app.example or http://localhost:3000 are \
                          expected, without a path; or *"
                .into()),
        }
    }
}

fn is_origin(text: &str) -> bool {
    let parsed: Option<Uri> = text.parse().ok();
    parsed.is_some_and(|uri| {
        matches!(uri.scheme_str(), Some("http" | "https"))
            && uri.authority().is_some_and(|authority| text.ends_with(authority.as_str()))
    })
}

/// What nobody may see.
#[derive(Clone)]
pub(crate) struct Secret(String);

impl Secret {
    pub(crate) fn bytes(&self) -> &[u8] {
        self.0.as_bytes()
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(secret)")
    }
}

impl Value for Secret {
    fn parse(text: &str) -> Result<Self, String> {
        if text.len() < 32 {
            return Err("at least 32 bytes are expected, as of `openssl rand -hex 32`".into());
        }
        Ok(Self(text.into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn origins_are_sites_without_a_path() {
        for good in ["", "*", "https://app.example", "http://localhost:3000, https://b.example"] {
            assert!(Origins::parse(good).is_ok(), "{good}");
        }
        for wrong in ["app.example", "https://app.example/", "https://a/b", "ftp://a", "null"] {
            assert!(Origins::parse(wrong).is_err(), "{wrong}");
        }
        let origins = Origins::parse("https://a.example").unwrap();
        assert!(origins.allow("https://a.example") && !origins.allow("https://b.example"));
    }

    #[test]
    fn a_closing_event_is_a_stage_and_a_seq() {
        assert_eq!(ClosingEvent::parse("done:51").unwrap().0, Some(Finale::default()));
        assert_eq!(ClosingEvent::parse("").unwrap().0, None);
        for wrong in ["done", ":51", "done:", "done:-1", "done:99999999999999999"] {
            assert!(ClosingEvent::parse(wrong).is_err(), "{wrong}");
        }
    }
}
