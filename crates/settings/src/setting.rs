//! One setting, and the macro that makes settings of the fields of a struct.

use crate::Kind;

/// One setting.
#[derive(Debug)]
pub struct Setting {
    /// Its name: `key` or `table.key`.
    pub key: &'static str,
    /// The purpose of the setting, as sentences.
    pub doc: &'static str,
    /// The accepted values, the default, and the sources that may set it.
    pub declaration: Declaration,
}

/// The accepted values of a setting, its default, and the sources that may set it.
#[derive(Debug, Clone, Copy)]
pub struct Declaration {
    /// The kind of value.
    pub kind: Kind,
    /// The default value, as an environment variable would hold it.
    pub default: &'static str,
    /// True when a `.env` file of the working folder may set it. A project folder may come from a stranger. A setting
    /// that weakens isolation, runs a program on the host or shows host folders to sandboxes is not read from there.
    pub dotenv: bool,
    /// True when a running server applies a changed value.
    pub live: bool,
    /// The environment variable of another program that means the same.
    pub other_name: Option<OtherName>,
}

/// The environment variable of another program that sets a setting.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OtherName {
    /// The variable.
    pub name: &'static str,
    /// True when every value but `true`, in small or capital letters, means `false`, as in that program.
    pub is_lenient_flag: bool,
}

/// Declares a setting that the `.env` file of a project may set, such as a limit.
#[must_use]
pub const fn project(kind: Kind, default: &'static str) -> Declaration {
    Declaration {
        kind,
        default,
        dotenv: true,
        live: false,
        other_name: None,
    }
}

/// Declares a setting that only the operator may set: no `.env` file, since the project may come from a stranger.
#[must_use]
pub const fn operator(kind: Kind, default: &'static str) -> Declaration {
    Declaration {
        dotenv: false,
        ..project(kind, default)
    }
}

impl Declaration {
    /// Makes a running server apply a changed value.
    #[must_use]
    pub const fn live(self) -> Self {
        Self { live: true, ..self }
    }

    /// Adds another program's variable.
    #[must_use]
    pub const fn also(self, name: &'static str) -> Self {
        Self {
            other_name: Some(OtherName {
                name,
                is_lenient_flag: false,
            }),
            ..self
        }
    }

    /// Adds another program's variable that holds a flag.
    #[must_use]
    pub const fn also_lenient_flag(self, name: &'static str) -> Self {
        Self {
            other_name: Some(OtherName {
                name,
                is_lenient_flag: true,
            }),
            ..self
        }
    }
}

impl Setting {
    /// Returns the environment variable that sets it.
    #[must_use]
    pub fn env_name(&self) -> String {
        format!("SANDCELL_{}", self.key.replace('.', "__").to_uppercase())
    }
}

/// A field cannot hold its setting's value: the declaration and the type of the field disagree, which is a bug.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WrongType {
    /// The setting's name.
    pub key: &'static str,
}

/// Declares a struct of settings: see the head of this crate. The struct gets a constant `SETTINGS`, and a function
/// `read` that takes the values.
#[macro_export]
macro_rules! settings {
    (
        $(#[$meta:meta])*
        $visibility:vis struct $name:ident in $prefix:literal {
            $(
                $(#[doc = $doc:literal])+
                $key:literal => $field:ident: $type:ty = $declaration:expr,
            )*
        }
    ) => {
        $(#[$meta])*
        $visibility struct $name {
            $(
                $(#[doc = $doc])+
                $visibility $field: $type,
            )*
        }

        impl $name {
            /// The settings, in the order of the reference.
            $visibility const SETTINGS: &'static [$crate::Setting] = &[
                $($crate::Setting {
                    key: concat!($prefix, $key),
                    doc: concat!($($doc),+).trim_ascii(),
                    declaration: $declaration,
                },)*
            ];

            /// Builds the struct. `value` returns the value of the setting with this name.
            ///
            /// # Errors
            /// A value is missing, or a field's type does not fit its declaration.
            $visibility fn read<'a>(
                value: impl Fn(&'static str) -> Option<&'a $crate::Value>,
            ) -> Result<Self, $crate::WrongType> {
                Ok(Self {
                    $($field: {
                        let key = concat!($prefix, $key);
                        value(key)
                            .and_then(|value| <$type as $crate::SettingType>::from_value(key, value))
                            .ok_or($crate::WrongType { key })?
                    },)*
                })
            }
        }
    };
}
