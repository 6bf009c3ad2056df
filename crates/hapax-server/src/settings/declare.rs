//! What a setting is, and the macro that turns the table into a type.

/// One setting: everything that is ever said about it.
#[derive(Debug)]
pub(crate) struct Setting {
    /// `--flag`.
    pub(crate) flag: &'static str,
    /// The environment variable.
    pub(crate) env: &'static str,
    /// The key in the file; a dot stands for a table.
    pub(crate) key: &'static str,
    /// What kind of value it takes, for the help.
    pub(crate) value: &'static str,
    /// What it is where nobody says.
    pub(crate) default: &'static str,
    /// A seed's variable that stands in for the default, and the unit that its value lacks.
    pub(crate) seed: Option<(&'static str, &'static str)>,
    /// What it does.
    pub(crate) help: &'static str,
}

/// Makes `Settings` and `TABLE` from the declarations.
macro_rules! settings {
    ($($name:ident: $type:ty = $setting:expr;)+) => {
        /// The settings of a server, read and checked.
        #[derive(Clone, Debug)]
        pub(crate) struct Settings {
            $(pub(crate) $name: $type,)+
            /// Who may call, from `[[token]]` in the file.
            pub(crate) tokens: Vec<TokenRule>,
        }

        /// Every setting, in the order of the help.
        pub(crate) static TABLE: &[Setting] = &[$($setting),+];

        impl Settings {
            /// Reads every setting from where it is said first.
            pub(crate) fn read(sources: &Sources) -> anyhow::Result<Self> {
                let mut table = TABLE.iter();
                let settings = Self {
                    $($name: sources.read(table.next().expect("one per field"))?,)+
                    tokens: sources.tokens()?,
                };
                settings.check()?;
                Ok(settings)
            }
        }
    };
}
pub(crate) use settings;
