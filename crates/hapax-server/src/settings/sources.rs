//! Where settings are said: flags, environment, file.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use clap::{ArgMatches, Command, FromArgMatches};

use super::file::File;
use super::value::Value;
use super::{Setting, TABLE, TokenRule};

const CONFIG_ENV: &str = "HAPAX_CONFIG";
const CONFIG_FILE: &str = "hapax.toml";
/// Variables of other commands, which are no mistake either.
const ELSEWHERE: &[&str] = &[CONFIG_ENV, "HAPAX_SERVER", "HAPAX_TOKEN"];

/// The flags of a server, made from the table.
#[derive(Clone, Debug, Default)]
pub(crate) struct Args {
    config: Option<PathBuf>,
    given: BTreeMap<&'static str, String>,
}

impl clap::Args for Args {
    fn augment_args(command: Command) -> Command {
        let config = clap::Arg::new("config")
            .long("config")
            .value_name("FILE")
            .value_parser(clap::value_parser!(PathBuf))
            .help(format!(
                "The settings file [env: {CONFIG_ENV}] [default: {CONFIG_FILE}, if there]"
            ));
        TABLE.iter().fold(command.arg(config), |command, setting| {
            command.arg(
                clap::Arg::new(setting.flag)
                    .long(setting.flag)
                    .value_name(setting.value)
                    .help(help(setting)),
            )
        })
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

fn help(setting: &Setting) -> String {
    let Setting { help, env, key, default, .. } = setting;
    let seed = setting.seed.map(|(variable, _)| format!(", {variable}")).unwrap_or_default();
    format!("{help} [env: {env}{seed}] [file: {key}] [default: {default}]")
}

impl FromArgMatches for Args {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let text = |setting: &Setting| matches.get_one::<String>(setting.flag).cloned();
        Ok(Self {
            config: matches.get_one::<PathBuf>("config").cloned(),
            given: TABLE.iter().filter_map(|s| Some((s.flag, text(s)?))).collect(),
        })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

/// Everything that was said about the settings.
pub(crate) struct Sources {
    args: Args,
    environment: BTreeMap<String, String>,
    file: File,
}

impl Sources {
    /// Gathers flags, this process's environment, and the file.
    pub(crate) fn gather(args: Args) -> anyhow::Result<Self> {
        let environment = std::env::vars_os()
            .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
            .filter(|(_, value)| !value.is_empty())
            .collect();
        Self::new(args, environment, Path::new(CONFIG_FILE))
    }

    pub(super) fn new(
        args: Args,
        environment: BTreeMap<String, String>,
        usual_file: &Path,
    ) -> anyhow::Result<Self> {
        let named = args.config.clone().or_else(|| environment.get(CONFIG_ENV).map(PathBuf::from));
        let file = match named {
            Some(path) => File::open(&path)?,
            None if usual_file.exists() => File::open(usual_file)?,
            None => File::default(),
        };
        Ok(Self { args, environment, file })
    }

    /// Reads one setting from where it is said first.
    pub(super) fn read<T: Value>(&self, setting: &Setting) -> anyhow::Result<T> {
        let (place, text) = self.find(setting);
        T::parse(&text).map_err(|error| anyhow::anyhow!("{place}: {error}"))
    }

    fn find(&self, setting: &Setting) -> (String, String) {
        if let Some(text) = self.args.given.get(setting.flag) {
            return (format!("--{}", setting.flag), text.clone());
        }
        if let Some(text) = self.environment.get(setting.env) {
            return (setting.env.into(), text.clone());
        }
        if let Some(text) = self.file.values.get(setting.key) {
            return (format!("`{}` in the settings file", setting.key), text.clone());
        }
        if let Some((variable, unit)) = setting.seed
            && let Some(text) = self.environment.get(variable)
        {
            return (variable.into(), format!("{text}{unit}"));
        }
        (format!("the default of --{}", setting.flag), setting.default.into())
    }

    /// Where a setting was said; for the banner.
    pub(crate) fn place(&self, flag: &str) -> Option<String> {
        TABLE.iter().find(|setting| setting.flag == flag).map(|setting| self.find(setting).0)
    }

    pub(super) fn tokens(&self) -> anyhow::Result<Vec<TokenRule>> {
        Ok(self.file.tokens.clone())
    }

    /// Variables that look like settings and are none; orchestrators inject some, so they are no
    /// error.
    pub(crate) fn unknown_variables(&self) -> Vec<&str> {
        let known = |name: &str| {
            ELSEWHERE.contains(&name) || TABLE.iter().any(|setting| setting.env == name)
        };
        let names = self.environment.keys().map(String::as_str);
        names.filter(|name| name.starts_with("HAPAX_") && !known(name)).collect()
    }
}
