//! Where the values of settings come from: flags, environment, file.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::marker::PhantomData;
use std::path::{Path, PathBuf};

use anyhow::bail;
use clap::{ArgMatches, Command, FromArgMatches};

use super::declare::{CommandSettings, Declaration, Setting};
use super::file::SettingsFile;
use super::tables;
use super::values::SettingValue;

const CONFIG_ENV: &str = "HAPAX_CONFIG";
const CONFIG_FILE: &str = "hapax.toml";
/// Variables that other commands read.
const OTHER_VARIABLES: &[&str] = &[CONFIG_ENV, "HAPAX_SERVER", "HAPAX_TOKEN", "HAPAX_TICKET"];

/// The flags of a command, made from its settings.
pub(crate) struct SettingFlags<S> {
    config: Option<PathBuf>,
    given: BTreeMap<&'static str, String>,
    command: PhantomData<S>,
}

impl<S> Default for SettingFlags<S> {
    fn default() -> Self {
        Self { config: None, given: BTreeMap::new(), command: PhantomData }
    }
}

impl<S: CommandSettings> clap::Args for SettingFlags<S> {
    fn augment_args(command: Command) -> Command {
        let config = clap::Arg::new("config")
            .long("config")
            .value_name("FILE")
            .value_parser(clap::value_parser!(PathBuf))
            .help(format!(
                "The settings file [env: {CONFIG_ENV}] [default: {CONFIG_FILE}, if there]"
            ));
        let flags = S::table().iter().map(argument);
        command.arg(config).args(flags).after_help(S::EXAMPLES)
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

fn argument(setting: &'static Setting) -> clap::Arg {
    let Declaration { help, default, value, .. } = setting.declared;
    let (flag, env, key) = (&*setting.names.flag, &setting.names.env, &setting.names.key);
    let seed =
        setting.declared.seed.map(|(variable, _)| format!(", {variable}")).unwrap_or_default();
    let default = match default {
        "" | "false" => String::new(),
        default => format!(" [default: {default}]"),
    };
    let help = format!("{help} [env: {env}{seed}] [file: {key}]{default}");
    let aliases = setting.aliases.iter().map(|names| &*names.flag);
    let argument = clap::Arg::new(flag).long(flag).aliases(aliases).help(help);
    if value.is_empty() {
        return argument.num_args(0..=1).require_equals(true).default_missing_value("true");
    }
    match value.strip_suffix('…') {
        // Repeated flags are joined with commas, as one flag could hold them.
        Some(value) => argument.value_name(value).action(clap::ArgAction::Append),
        None => argument.value_name(value),
    }
}

impl<S: CommandSettings> FromArgMatches for SettingFlags<S> {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let given = |setting: &'static Setting| {
            let flag = &*setting.names.flag;
            let values = matches.get_many::<String>(flag)?;
            Some((flag, values.map(String::as_str).collect::<Vec<_>>().join(",")))
        };
        Ok(Self {
            config: matches.get_one::<PathBuf>("config").cloned(),
            given: S::table().iter().filter_map(given).collect(),
            command: PhantomData,
        })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

/// The flags, the environment and the file together.
pub(crate) struct SettingSources<S: CommandSettings> {
    flags: SettingFlags<S>,
    environment: BTreeMap<String, String>,
    file: SettingsFile<S>,
}

impl<S: CommandSettings> SettingSources<S> {
    /// Gathers the flags, this process's environment, and the file.
    pub(crate) fn gather(flags: SettingFlags<S>) -> anyhow::Result<Self> {
        let environment = read_environment::<S>(std::env::vars_os())?;
        Self::new(flags, environment, Path::new(CONFIG_FILE))
    }

    /// No source at all: every setting has its default.
    pub(crate) fn defaults() -> anyhow::Result<Self> {
        Self::new(SettingFlags::default(), BTreeMap::new(), Path::new(""))
    }

    fn new(
        flags: SettingFlags<S>,
        environment: BTreeMap<String, String>,
        usual_file: &Path,
    ) -> anyhow::Result<Self> {
        let named = flags.config.clone().or_else(|| environment.get(CONFIG_ENV).map(PathBuf::from));
        let file = match named {
            Some(path) if path.as_os_str().is_empty() => {
                bail!("--config or {CONFIG_ENV} is empty; a file is expected")
            }
            Some(path) => SettingsFile::open(&path)?,
            None if usual_file.exists() => SettingsFile::open(usual_file)?,
            None => SettingsFile::default(),
        };
        Ok(Self { flags, environment, file })
    }

    pub(crate) fn read<T: SettingValue>(&self, setting: &Setting) -> anyhow::Result<T> {
        let (origin, text) = self.find(setting);
        T::parse(&text).map_err(|error| anyhow::anyhow!("{origin}: {error}"))
    }

    fn find(&self, setting: &Setting) -> (String, String) {
        let flag = &setting.names.flag;
        if let Some(text) = self.flags.given.get(flag.as_str()) {
            return (format!("--{flag}"), text.clone());
        }
        for names in setting.all_names() {
            if let Some(text) = self.environment.get(&names.env) {
                return (names.env.clone(), text.clone());
            }
        }
        if let Some((key, text)) = self.file.values.get(flag.as_str()) {
            return (format!("`{key}` in the settings file"), text.clone());
        }
        if let Some((variable, unit)) = setting.declared.seed
            && let Some(text) = self.environment.get(variable)
        {
            return (variable.into(), format!("{text}{unit}"));
        }
        (format!("the default of --{flag}"), setting.declared.default.into())
    }

    /// Which source a setting's value came from, in words.
    pub(crate) fn origin(&self, flag: &str) -> Option<String> {
        let setting = S::table().iter().find(|setting| setting.names.flag == flag);
        setting.map(|setting| self.find(setting).0)
    }

    /// The part of the file that no flag can express.
    pub(crate) fn file_only(&self) -> S::FileOnly {
        self.file.file_only.clone()
    }

    /// Warns of `HAPAX_…` variables that are no setting; orchestrators may inject some.
    pub(crate) fn warn_of_unknown_variables(&self) {
        let known = |name: &str| {
            let mut settings = tables().into_iter().flatten();
            OTHER_VARIABLES.contains(&name)
                || settings.any(|setting| setting.all_names().any(|names| names.env == name))
        };
        for name in self.environment.keys() {
            if name.starts_with("HAPAX_") && !known(name) {
                tracing::warn!("the environment variable {name} is no setting of hapax");
            }
        }
    }
}

/// The environment as texts. A variable of this command that is not UTF-8 is an error, and an empty one
/// is kept for the setting to judge: without them, another source or a default would be used in silence.
/// Empty variables of the original programs are theirs, and count as not set.
fn read_environment<S: CommandSettings>(
    variables: impl Iterator<Item = (OsString, OsString)>,
) -> anyhow::Result<BTreeMap<String, String>> {
    let is_setting = |name: &str| {
        let mut names = S::table().iter().flat_map(Setting::all_names);
        name == CONFIG_ENV || names.any(|names| names.env == name)
    };
    let is_seed = |name: &str| {
        let mut seeds = S::table().iter().filter_map(|setting| setting.declared.seed);
        seeds.any(|(variable, _)| variable == name)
    };
    let mut environment = BTreeMap::new();
    for (name, value) in variables {
        let Ok(name) = name.into_string() else { continue };
        match value.into_string() {
            Ok(value) if value.is_empty() && !is_setting(&name) => {}
            Ok(value) => {
                environment.insert(name, value);
            }
            Err(_) if is_setting(&name) || is_seed(&name) => {
                bail!("the environment variable {name} is not UTF-8")
            }
            Err(_) => {}
        }
    }
    Ok(environment)
}

#[cfg(test)]
pub(crate) mod testing {
    use super::*;

    /// The settings from these flags, variables and file.
    pub(crate) fn read<S: CommandSettings>(
        flags: &[&str],
        environment: &[(&str, &str)],
        file: &str,
    ) -> anyhow::Result<S> {
        let folder = tempfile::tempdir()?;
        let path = folder.path().join(CONFIG_FILE);
        std::fs::write(&path, file)?;
        let command = Command::new("hapax").no_binary_name(true);
        let command = <SettingFlags<S> as clap::Args>::augment_args(command);
        let flags = SettingFlags::from_arg_matches(&command.try_get_matches_from(flags)?)?;
        let owned = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        S::read(&SettingSources::new(flags, environment.iter().map(owned).collect(), &path)?)
    }

    /// The error of settings that are refused.
    pub(crate) fn refused<S: CommandSettings>(
        flags: &[&str],
        environment: &[(&str, &str)],
        file: &str,
    ) -> String {
        let error = read::<S>(flags, environment, file).err().expect("refused");
        format!("{error:#}")
    }
}
