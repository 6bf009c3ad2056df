//! What a setting is, and the macro that turns a table of them into a type.

/// One setting: everything that is ever said about it.
#[derive(Debug)]
pub(crate) struct Setting {
    /// `--flag`.
    pub(crate) flag: &'static str,
    /// The environment variable.
    pub(crate) env: &'static str,
    /// The key in the file; a dot stands for a table.
    pub(crate) key: &'static str,
    /// What kind of value it takes, for the help; empty where the flag alone says it.
    pub(crate) value: &'static str,
    /// What it is where nobody says.
    pub(crate) default: &'static str,
    /// A seed's variable that stands in for the default, and the unit that its value lacks.
    pub(crate) seed: Option<(&'static str, &'static str)>,
    /// What it does.
    pub(crate) help: &'static str,
}

/// What only the file can say to a command, and its table of what can be said elsewhere too.
pub(crate) trait Section: Clone + Default {
    /// Every setting, in the order of the help.
    const TABLE: &'static [Setting];
    /// The names of what only the file can say.
    const KEYS: &'static str;
    /// What stands below the flags in the help.
    const EXAMPLES: Option<&'static str>;

    /// Takes it out of the file.
    fn take(file: &mut toml::Table) -> anyhow::Result<Self>;
}

/// Makes a type and its `TABLE` from the declarations; one more field has what only the file says.
macro_rules! settings {
    (
        $(#[$doc:meta])* $group:ident, $section:ident: $kind:ty;
        $($name:ident: $type:ty = $setting:expr;)+
    ) => {
        $(#[$doc])*
        #[derive(Clone, Debug)]
        pub(crate) struct $group {
            $(pub(crate) $name: $type,)+
            pub(crate) $section: $kind,
        }

        /// Every setting, in the order of the help.
        pub(crate) static TABLE: &[$crate::settings::Setting] = &[$($setting),+];

        impl $group {
            /// Reads every setting from where it is said first.
            pub(crate) fn read(sources: &Sources) -> anyhow::Result<Self> {
                let mut table = TABLE.iter();
                let settings = Self {
                    $($name: sources.read(table.next().expect("one per field"))?,)+
                    $section: sources.section(),
                };
                settings.check()?;
                Ok(settings)
            }
        }
    };
}
pub(crate) use settings;
