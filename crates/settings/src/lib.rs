//! Declares settings. A struct describes one table of `config.toml`. Each field describes one setting: its name, type,
//! accepted values, default and purpose.
//!
//! ```
//! use std::time::Duration;
//!
//! use sandcell_settings::{project, whole};
//!
//! sandcell_settings::settings! {
//!     /// How long a tea is brewed.
//!     #[derive(Debug, Clone)]
//!     pub struct TeaSettings in "tea." {
//!         /// The time in hot water, in seconds.
//!         "brew_s" => brew: Duration = project(whole(1, 600), "180"),
//!     }
//! }
//!
//! assert_eq!(TeaSettings::SETTINGS[0].key, "tea.brew_s");
//! assert_eq!(TeaSettings::SETTINGS[0].doc, "The time in hot water, in seconds.");
//! let value = whole(1, 600).read_text("60").unwrap();
//! let tea = TeaSettings::read(|_| Some(&value)).unwrap();
//! assert_eq!(tea.brew, Duration::from_secs(60));
//! ```

#![forbid(unsafe_code)]

mod field;
pub mod mount;
mod setting;
mod value;

pub use field::SettingType;
pub use setting::{Declaration, OtherName, Setting, WrongType, operator, project};
pub use value::{Kind, Value, shown, whole};
