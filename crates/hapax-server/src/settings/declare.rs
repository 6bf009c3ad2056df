//! How a setting is declared, and the macro that turns declarations into a type.

use super::SettingSources;

/// A setting as its command declares it. Its names follow from the field's name: the relay's
/// `max_attempts` is `--max-attempts`, `HAPAX_MAX_ATTEMPTS` and `relay.max_attempts`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Declaration {
    /// The placeholder of the value in the help; empty for a switch. `…` marks a repeatable flag.
    pub(super) value: &'static str,
    pub(super) default: &'static str,
    pub(crate) help: &'static str,
    /// A variable of the original programs that replaces the default, and the unit of its value.
    pub(super) seed: Option<(&'static str, &'static str)>,
    env: Option<&'static str>,
    key: KeyPlace,
    aliases: &'static [&'static str],
}

/// Where in the file a setting's key is.
#[derive(Clone, Copy, Debug)]
enum KeyPlace {
    /// In the table of the command.
    Command,
    /// At the top, where all commands read it.
    Top,
    /// In this table, under the name without its first word.
    Table(&'static str),
}

impl Declaration {
    pub(super) const fn new(
        value: &'static str,
        default: &'static str,
        help: &'static str,
    ) -> Self {
        let key = KeyPlace::Command;
        Self { value, default, help, seed: None, env: None, key, aliases: &[] }
    }

    /// A boolean that the flag alone turns on.
    pub(super) const fn switch(help: &'static str) -> Self {
        Self::new("", "false", help)
    }

    pub(super) const fn default(mut self, default: &'static str) -> Self {
        self.default = default;
        self
    }

    pub(super) const fn help(mut self, help: &'static str) -> Self {
        self.help = help;
        self
    }

    pub(super) const fn seed(mut self, variable: &'static str, unit: &'static str) -> Self {
        self.seed = Some((variable, unit));
        self
    }

    /// A variable that does not follow from the name.
    pub(super) const fn env(mut self, env: &'static str) -> Self {
        self.env = Some(env);
        self
    }

    /// One key at the top of the file for all commands.
    pub(super) const fn top_key(mut self) -> Self {
        self.key = KeyPlace::Top;
        self
    }

    /// A key in this table of the file: `event_poll` in `events` is `events.poll`.
    pub(super) const fn table(mut self, table: &'static str) -> Self {
        self.key = KeyPlace::Table(table);
        self
    }

    /// Earlier field names. Their flags, variables and keys still work, and no help shows them.
    pub(super) const fn aliases(mut self, aliases: &'static [&'static str]) -> Self {
        self.aliases = aliases;
        self
    }
}

/// The three names of a setting.
#[derive(Debug)]
pub(crate) struct SettingNames {
    /// `--flag`, without the dashes.
    pub(crate) flag: String,
    /// The environment variable.
    pub(crate) env: String,
    /// The key in the file; a dot separates a table from its key.
    pub(crate) key: String,
}

/// A declared setting with its names.
#[derive(Debug)]
pub(crate) struct Setting {
    pub(crate) names: SettingNames,
    pub(crate) aliases: Vec<SettingNames>,
    pub(crate) declared: Declaration,
}

impl Setting {
    pub(super) fn new(field: &str, command: &str, declared: Declaration) -> Self {
        let names = |field: &str| SettingNames {
            flag: field.replace('_', "-"),
            env: format!("HAPAX_{}", field.to_uppercase()),
            key: match declared.key {
                KeyPlace::Command if command.is_empty() => field.to_owned(),
                KeyPlace::Command => format!("{command}.{field}"),
                KeyPlace::Top => field.to_owned(),
                KeyPlace::Table(table) => {
                    format!("{table}.{}", field.split_once('_').map_or(field, |(_, name)| name))
                }
            },
        };
        let aliases = declared.aliases.iter().map(|alias| names(alias)).collect();
        let mut names = names(field);
        if let Some(env) = declared.env {
            names.env = env.to_owned();
        }
        Self { names, aliases, declared }
    }

    /// The current names, then the earlier ones.
    pub(crate) fn all_names(&self) -> impl Iterator<Item = &SettingNames> {
        std::iter::once(&self.names).chain(&self.aliases)
    }

    /// Whether this is the setting's key in the file, or was.
    pub(crate) fn has_key(&self, key: &str) -> bool {
        self.all_names().any(|names| names.key == key)
    }
}

/// The settings of one command.
pub(crate) trait CommandSettings: Sized + 'static {
    /// The part of the file that no flag can express.
    type FileOnly: FileOnly;
    /// The text below the flags in the help.
    const EXAMPLES: Option<&'static str>;

    /// Every setting, in the order of the help.
    fn table() -> &'static [Setting];

    /// Reads every setting from the first source that has it, and checks them together.
    fn read(sources: &SettingSources<Self>) -> anyhow::Result<Self>;
}

/// The part of the file that no flag can express.
pub(crate) trait FileOnly: Clone + Default {
    /// The names of its keys, for the error about an unknown one.
    const KEYS: &'static str;

    /// Takes this part out of the file.
    fn take(file: &mut toml::Table) -> anyhow::Result<Self>;
}

impl FileOnly for () {
    const KEYS: &'static str = "no others";

    fn take(_: &mut toml::Table) -> anyhow::Result<Self> {
        Ok(())
    }
}

/// Makes the type of a command's settings. Its method `check` compares values with each other.
macro_rules! settings {
    (
        $(#[$doc:meta])* $group:ident, $command:literal, $examples:expr $(, $file:ident: $kind:ty)?;
        $($name:ident: $type:ty = $declaration:expr;)+
    ) => {
        $(#[$doc])*
        #[derive(Clone, Debug)]
        pub(crate) struct $group {
            $(pub(crate) $name: $type,)+
            $(pub(crate) $file: $kind,)?
        }

        impl $crate::settings::CommandSettings for $group {
            #[allow(unused_parens, reason = "one type or none")]
            type FileOnly = ($($kind)?);
            const EXAMPLES: Option<&'static str> = $examples;

            fn table() -> &'static [$crate::settings::Setting] {
                static TABLE: std::sync::LazyLock<Vec<$crate::settings::Setting>> =
                    std::sync::LazyLock::new(|| vec![
                        $($crate::settings::Setting::new(stringify!($name), $command, $declaration)),+
                    ]);
                &TABLE
            }

            fn read(sources: &$crate::settings::SettingSources<Self>) -> anyhow::Result<Self> {
                let mut table = Self::table().iter();
                let settings = Self {
                    $($name: sources.read(table.next().expect("one per field"))?,)+
                    $($file: sources.file_only(),)?
                };
                settings.check()?;
                Ok(settings)
            }
        }
    };
}
pub(super) use settings;
