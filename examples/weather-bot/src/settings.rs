//! Command-line flags, and environment variables for secrets and for the original bot's settings.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context;
use clap::Parser;
use hapax_line::{ChannelSecrets, LINE_API_BASE, LineClient, LockRules};

use crate::weather::WeatherService;

const FORECAST: &str = "https://api.open-meteo.com";
const GEOCODING: &str = "https://geocoding-api.open-meteo.com";

/// The default rules: lock the taps that users repeat.
pub(crate) const RULES: &str = include_str!("../rules.toml");

const ENVIRONMENT: &str = "\
Environment:
  LINE_CHANNEL_SECRET              checks signatures; two as NEW,OLD while it is changed
  LINE_CHANNEL_ACCESS_TOKEN        lets the bot answer
  LINE_API_BASE                    where LINE's Messaging API is [https://api.line.me]
  WEATHER_API_BASE                 an Open-Meteo-compatible service [https://api.open-meteo.com]
  WEATHER_GEOCODING_BASE           where its places are found [WEATHER_API_BASE, or Open-Meteo's]
  WEATHER_TIMEOUT_MS               how long it may take for one answer [3000]
  DATABASE_TIMEOUT_MS              how long the users' database may take for one answer [2000]
  STORE_TIMEOUT_MS                 what the store may cost one event; then it passes unlocked [500]
  REDIS_URL                        the store, where --store does not say another
  PROCESSING_LOCK_ENABLED          whether taps are locked at all [true]
  PROCESSING_LOCK_TIMEOUT_SECONDS  how long, where the rules do not say [5]";

/// A LINE bot that tells the weather.
#[derive(Parser)]
#[command(after_help = ENVIRONMENT)]
pub(crate) struct WeatherBotArgs {
    /// Address to listen on.
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:8791")]
    listen: String,
    /// Store for hapax's events and locks [default: REDIS_URL, or sqlite:hapax.db]
    #[arg(long, value_name = "URL")]
    store: Option<String>,
    /// Database of the bot's users: sqlite:FILE or postgres://…
    #[arg(long, value_name = "URL", default_value = "sqlite:weather.db")]
    database: String,
    /// Rules for locking events (TOML) [default: those in examples/weather-bot/rules.toml]
    #[arg(long, value_name = "FILE")]
    rules: Option<PathBuf>,
    /// Use fixed data instead of a weather service: no network needed.
    #[arg(long)]
    pub(crate) fixed_weather: bool,
    /// Talk to a simulated LINE and a simulated weather service, print the conversation, and exit.
    #[arg(long)]
    pub(crate) demo: bool,
}

/// The settings of the bot, from flags and environment.
pub(crate) struct WeatherBotSettings {
    pub(crate) listen: String,
    pub(crate) store: String,
    pub(crate) store_timeout: Duration,
    pub(crate) database: String,
    pub(crate) database_timeout: Duration,
    pub(crate) rules: LockRules,
    pub(crate) secrets: ChannelSecrets,
    pub(crate) line: LineClient,
    pub(crate) weather: WeatherService,
}

impl WeatherBotSettings {
    /// Flags win over the environment; an empty variable counts as unset.
    pub(crate) fn read(
        args: WeatherBotArgs,
        environment: impl Fn(&str) -> Option<String>,
    ) -> anyhow::Result<Self> {
        let variables = Variables(environment);
        let store = args.store.or_else(|| variables.get("REDIS_URL"));
        let secrets = ChannelSecrets::new(&variables.needed("LINE_CHANNEL_SECRET")?)?;
        let base = variables.get("LINE_API_BASE").unwrap_or_else(|| LINE_API_BASE.into());
        let line = LineClient::new(&base, &variables.needed("LINE_CHANNEL_ACCESS_TOKEN")?);
        Ok(Self {
            listen: args.listen,
            store: store.unwrap_or_else(|| "sqlite:hapax.db".into()),
            store_timeout: variables.milliseconds("STORE_TIMEOUT_MS", 500)?,
            database: args.database,
            database_timeout: variables.milliseconds("DATABASE_TIMEOUT_MS", 2000)?,
            rules: variables.rules(args.rules)?,
            secrets,
            line: line.context("LINE_API_BASE")?,
            weather: variables.weather()?,
        })
    }
}

/// The environment, by the names of its variables.
struct Variables<F>(F);

impl<F: Fn(&str) -> Option<String>> Variables<F> {
    fn get(&self, name: &str) -> Option<String> {
        (self.0)(name).filter(|value| !value.is_empty())
    }

    fn needed(&self, name: &str) -> anyhow::Result<String> {
        let hint = "from the LINE Developers Console (a try-out without LINE: --demo)";
        self.get(name).with_context(|| format!("{name} is needed, {hint}"))
    }

    fn milliseconds(&self, name: &str, default: u64) -> anyhow::Result<Duration> {
        Ok(Duration::from_millis(self.number(name, default, 60_000)?))
    }

    fn number(&self, name: &str, default: u64, max: u64) -> anyhow::Result<u64> {
        let Some(text) = self.get(name) else { return Ok(default) };
        let number = text.parse().ok().filter(|number| (1..=max).contains(number));
        number.with_context(|| format!("{name}: a whole number from 1 to {max} is expected"))
    }

    /// A custom `WEATHER_API_BASE` also serves geocoding, unless `WEATHER_GEOCODING_BASE` is set.
    fn weather(&self) -> anyhow::Result<WeatherService> {
        let own = self.get("WEATHER_API_BASE");
        let geocoding = self.get("WEATHER_GEOCODING_BASE").or_else(|| own.clone());
        let timeout = self.milliseconds("WEATHER_TIMEOUT_MS", 3000)?;
        let geocoding = geocoding.as_deref().unwrap_or(GEOCODING);
        WeatherService::new(own.as_deref().unwrap_or(FORECAST), geocoding, timeout)
            .context("WEATHER_API_BASE, WEATHER_GEOCODING_BASE")
    }

    /// Parses the rules even if locks are disabled, so that a mistake in the file is always
    /// reported.
    fn rules(&self, file: Option<PathBuf>) -> anyhow::Result<LockRules> {
        let rules = match file {
            Some(path) => {
                let name = path.display();
                let text = fs::read_to_string(&path);
                let text = text.with_context(|| format!("--rules: cannot read {name}"))?;
                LockRules::parse(&text).with_context(|| format!("--rules: in {name}"))?
            }
            None => LockRules::parse(RULES).context("rules.toml")?,
        };
        let seconds = self.number("PROCESSING_LOCK_TIMEOUT_SECONDS", 5, 3600)?;
        let rules = rules.with_default_ttl(Duration::from_secs(seconds));
        let enabled = self.get("PROCESSING_LOCK_ENABLED").unwrap_or_else(|| "true".into());
        match enabled.to_ascii_lowercase().as_str() {
            "true" | "1" | "yes" | "on" | "t" | "y" => Ok(rules),
            "false" | "0" | "no" | "off" | "f" | "n" => Ok(LockRules::unlocked()),
            _ => anyhow::bail!("PROCESSING_LOCK_ENABLED: true or false is expected"),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use hapax_line::simulator::events;
    use hapax_line::{LineEvent, LockRule};

    use super::*;

    fn read(flags: &[&str], variables: &[(&str, &str)]) -> anyhow::Result<WeatherBotSettings> {
        let args = WeatherBotArgs::try_parse_from([&["weather-bot"], flags].concat())?;
        let mut all = HashMap::from([
            ("LINE_CHANNEL_SECRET", "secret"),
            ("LINE_CHANNEL_ACCESS_TOKEN", "token"),
        ]);
        all.extend(variables.iter().copied());
        WeatherBotSettings::read(args, |name| all.get(name).map(|value| (*value).to_owned()))
    }

    fn guarding(settings: &WeatherBotSettings, data: &str) -> LockRule {
        let event = events::postback("Uf00d1", data).to_string();
        settings.rules.rule_for(&LineEvent::parse(&"Uf00db07".into(), &event).unwrap())
    }

    #[test]
    fn flags_win_over_the_environment_and_that_over_defaults() {
        let settings = read(&[], &[]).unwrap();
        assert_eq!(settings.listen, "127.0.0.1:8791");
        assert_eq!(
            (&*settings.store, &*settings.database),
            ("sqlite:hapax.db", "sqlite:weather.db")
        );
        let redis = [("REDIS_URL", "redis://redis:6379/0")];
        assert_eq!(read(&[], &redis).unwrap().store, "redis://redis:6379/0");
        assert_eq!(read(&["--store", "memory:"], &redis).unwrap().store, "memory:");
        assert_eq!(read(&[], &[("REDIS_URL", "")]).unwrap().store, "sqlite:hapax.db");
    }

    #[test]
    fn the_lock_follows_the_original_variables() {
        let home = "action=weather&type=home";
        let mutex = |seconds| LockRule::Mutex { ttl: Duration::from_secs(seconds), renew: false };
        assert_eq!(guarding(&read(&[], &[]).unwrap(), home), mutex(5));
        let longer = [("PROCESSING_LOCK_TIMEOUT_SECONDS", "7")];
        assert_eq!(guarding(&read(&[], &longer).unwrap(), home), mutex(7));
        let off = [("PROCESSING_LOCK_ENABLED", "False")];
        assert_eq!(guarding(&read(&[], &off).unwrap(), home), LockRule::None);
    }

    #[test]
    fn what_is_wrong_is_said_without_secrets() {
        for wrong in [
            ("LINE_CHANNEL_SECRET", ""),
            ("LINE_CHANNEL_SECRET", "a,hush,c"),
            ("LINE_CHANNEL_ACCESS_TOKEN", ""),
            ("LINE_API_BASE", "hush"),
            ("WEATHER_API_BASE", "hush"),
            ("WEATHER_GEOCODING_BASE", "hush"),
            ("WEATHER_TIMEOUT_MS", "0"),
            ("WEATHER_TIMEOUT_MS", "soon"),
            ("PROCESSING_LOCK_TIMEOUT_SECONDS", "-1"),
            ("PROCESSING_LOCK_ENABLED", "perhaps"),
        ] {
            let error = read(&[], &[wrong]).err().unwrap_or_else(|| panic!("{wrong:?} passes"));
            assert!(!format!("{error:#}").contains("hush"), "{error:#}");
        }
        assert!(read(&["--rules", "/nowhere/rules.toml"], &[]).is_err());
        assert!(read(&["--unknown"], &[]).is_err());
    }
}
