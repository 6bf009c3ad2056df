//! Where options are said: flags, environment, file.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use clap::{ArgMatches, Command, FromArgMatches};

use super::file::{File, Section};
use super::{Setting, TABLE, Value};

const CONFIG_ENV: &str = "HAPAX_CONFIG";
const CONFIG_FILE: &str = "hapax.toml";
/// Variables of other commands, which are no mistake either.
const ELSEWHERE: &[&str] = &[CONFIG_ENV, "HAPAX_SERVER", "HAPAX_TOKEN"];

const EXAMPLES: &str = "\
Examples:
  hapax proxy --upstream http://127.0.0.1:3000
      in front of any service; then, twice, and the service sees one request:
      curl -i -H 'Idempotency-Key: tea-1' -d cups=2 http://127.0.0.1:8788/orders
  hapax proxy --upstream http://127.0.0.1:3000 --store redis://10.0.0.5/0 --listen 0.0.0.0:8788
      on several machines that share their keys
  hapax proxy --config hapax.toml
      with routes of their own upstream and policy:
          [[proxy.route]]
          path = \"/payments/*\"
          upstream = \"http://127.0.0.1:4000\"
          require_key = true
          statuses = { 404 = \"give-back\" }

A problem document's `retryable` says whether the same request may be sent again. What every status
means, and what to do about an unknown outcome, is in docs/proxy.md.";

/// The flags, made from the table.
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
        let command = TABLE.iter().fold(command, |command, setting| command.arg(argument(setting)));
        command.arg(config).after_help(EXAMPLES)
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
    argument.value_name(setting.value)
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

/// Everything that was said about the options.
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

    /// What only the file can say.
    pub(super) fn section(&self) -> &Section {
        &self.file.section
    }

    /// Reads one option from where it is said first.
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

    /// Variables that look like options and are none; orchestrators inject some, so they are no
    /// error.
    pub(crate) fn unknown_variables(&self) -> Vec<&str> {
        let known = |name: &str| {
            let tables = TABLE.iter().chain(crate::settings::TABLE);
            ELSEWHERE.contains(&name) || tables.into_iter().any(|setting| setting.env == name)
        };
        let names = self.environment.keys().map(String::as_str);
        names.filter(|name| name.starts_with("HAPAX_") && !known(name)).collect()
    }
}
