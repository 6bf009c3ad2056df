//! Where settings are said: flags, environment, file.

use std::collections::BTreeMap;
use std::marker::PhantomData;
use std::path::{Path, PathBuf};

use clap::{ArgMatches, Command, FromArgMatches};

use super::file::File;
use super::value::Value;
use super::{Section, Setting, TABLES};

const CONFIG_ENV: &str = "HAPAX_CONFIG";
const CONFIG_FILE: &str = "hapax.toml";
/// Variables of other commands, which are no mistake either.
const ELSEWHERE: &[&str] = &[CONFIG_ENV, "HAPAX_SERVER", "HAPAX_TOKEN", "HAPAX_TICKET"];

/// The flags of a command, made from its table.
#[derive(Default)]
pub(crate) struct Args<S> {
    config: Option<PathBuf>,
    given: BTreeMap<&'static str, String>,
    section: PhantomData<S>,
}

impl<S: Section> clap::Args for Args<S> {
    fn augment_args(command: Command) -> Command {
        let config = clap::Arg::new("config")
            .long("config")
            .value_name("FILE")
            .value_parser(clap::value_parser!(PathBuf))
            .help(format!(
                "The settings file [env: {CONFIG_ENV}] [default: {CONFIG_FILE}, if there]"
            ));
        let flags = S::TABLE.iter().map(argument);
        command.arg(config).args(flags).after_help(S::EXAMPLES)
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

fn argument(setting: &Setting) -> clap::Arg {
    let Setting { help, env, key, default, .. } = setting;
    let seed = setting.seed.map(|(variable, _)| format!(", {variable}")).unwrap_or_default();
    let default = match *default {
        "" | "false" => String::new(),
        default => format!(" [default: {default}]"),
    };
    let help = format!("{help} [env: {env}{seed}] [file: {key}]{default}");
    let argument = clap::Arg::new(setting.flag).long(setting.flag).help(help);
    if setting.value.is_empty() {
        return argument.num_args(0..=1).require_equals(true).default_missing_value("true");
    }
    match setting.value.strip_suffix('…') {
        // What is given by several flags is a list, as if it were given with commas.
        Some(value) => argument.value_name(value).action(clap::ArgAction::Append),
        None => argument.value_name(setting.value),
    }
}

impl<S: Section> FromArgMatches for Args<S> {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let text = |setting: &Setting| {
            let given = matches.get_many::<String>(setting.flag)?;
            Some(given.map(String::as_str).collect::<Vec<_>>().join(","))
        };
        Ok(Self {
            config: matches.get_one::<PathBuf>("config").cloned(),
            given: S::TABLE.iter().filter_map(|s| Some((s.flag, text(s)?))).collect(),
            section: PhantomData,
        })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

/// Everything that was said about the settings.
pub(crate) struct Sources<S> {
    args: Args<S>,
    environment: BTreeMap<String, String>,
    file: File<S>,
}

impl<S: Section> Sources<S> {
    /// Gathers flags, this process's environment, and the file.
    pub(crate) fn gather(args: Args<S>) -> anyhow::Result<Self> {
        let environment = std::env::vars_os()
            .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
            .filter(|(_, value)| !value.is_empty())
            .collect();
        Self::new(args, environment, Path::new(CONFIG_FILE))
    }

    /// Where nobody says anything.
    pub(crate) fn nothing() -> anyhow::Result<Self> {
        Self::new(Args::default(), BTreeMap::new(), Path::new(""))
    }

    fn new(
        args: Args<S>,
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
    pub(crate) fn read<T: Value>(&self, setting: &Setting) -> anyhow::Result<T> {
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
        S::TABLE.iter().find(|setting| setting.flag == flag).map(|setting| self.find(setting).0)
    }

    /// What only the file can say.
    pub(crate) fn section(&self) -> S {
        self.file.section.clone()
    }

    /// Warns of variables that look like settings and are none; orchestrators inject some, so they
    /// are no error.
    pub(crate) fn warn_of_unknown_variables(&self) {
        let known = |name: &str| {
            let mut settings = TABLES.iter().copied().flatten();
            ELSEWHERE.contains(&name) || settings.any(|setting| setting.env == name)
        };
        for name in self.environment.keys() {
            if name.starts_with("HAPAX_") && !known(name) {
                tracing::warn!("the environment variable {name} is no setting of hapax");
            }
        }
    }
}

#[cfg(test)]
impl<S: Section> Sources<S> {
    /// What these flags, variables and file say.
    pub(crate) fn say(
        flags: &[&str],
        environment: &[(&str, &str)],
        file: &str,
    ) -> anyhow::Result<Self> {
        let folder = tempfile::tempdir()?;
        let path = folder.path().join(CONFIG_FILE);
        std::fs::write(&path, file)?;
        let command = Command::new("hapax").no_binary_name(true);
        let command = <Args<S> as clap::Args>::augment_args(command);
        let args = Args::from_arg_matches(&command.try_get_matches_from(flags)?)?;
        let owned = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        Self::new(args, environment.iter().map(owned).collect(), &path)
    }
}
