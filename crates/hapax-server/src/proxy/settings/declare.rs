//! The macro that turns the table of options into types.

/// Makes `Options` and `TABLE` from the declarations.
macro_rules! options {
    ($($name:ident: $type:ty = $setting:expr;)+) => {
        /// What flags, environment and file say about the proxy as a whole.
        #[derive(Debug)]
        pub(crate) struct Options {
            $(pub(crate) $name: $type,)+
        }

        /// Every option, in the order of the help.
        pub(crate) static TABLE: &[Setting] = &[$($setting),+];

        impl Options {
            fn read(sources: &Sources) -> anyhow::Result<Self> {
                let mut table = TABLE.iter();
                Ok(Self { $($name: sources.read(table.next().expect("one per field"))?,)+ })
            }
        }
    };
}
pub(super) use options;
