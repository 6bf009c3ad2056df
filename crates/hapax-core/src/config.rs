//! Macros that declare configurations, so that a setting is written once: name, type and documentation.

/// Writes a builder method for each of these fields of `Self`.
#[doc(hidden)]
#[macro_export]
macro_rules! builder_methods {
    ($($(#[$doc:meta])+ $field:ident: $type:ty;)+) => {
        $($(#[$doc])+
        #[must_use]
        pub fn $field(mut self, $field: $type) -> Self {
            self.$field = $field;
            self
        })+
    };
}

/// Declares a configuration: a struct, its defaults, and a builder method for each field, which has the
/// field's documentation.
#[doc(hidden)]
#[macro_export]
macro_rules! config {
    (
        $(#[$about:meta])+
        pub struct $name:ident {
            $($(#[$doc:meta])+ $field:ident: $type:ty = $default:expr,)+
        }
    ) => {
        $(#[$about])+
        pub struct $name {
            $(pub(crate) $field: $type,)+
        }

        impl Default for $name {
            fn default() -> Self {
                Self { $($field: $default,)+ }
            }
        }

        impl $name {
            $crate::builder_methods! { $($(#[$doc])+ $field: $type;)+ }
        }
    };
}
