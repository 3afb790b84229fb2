//! The types that fields of settings may have.

use std::path::PathBuf;
use std::time::Duration;

use sandcell_sandbox::{ByteSize, Cpus, Degree, Level, Mount, Secret};

use crate::Value;

/// A type that a field of settings may have. A time or a size takes its unit from the end of the setting's name: `_s`,
/// `_days`, `_kb`, `_mb`.
pub trait SettingType: Sized {
    /// Converts a value. None if its kind, its range or the unit in the name does not fit.
    fn from_value(key: &str, value: &Value) -> Option<Self>;
}

impl SettingType for bool {
    fn from_value(_key: &str, value: &Value) -> Option<Self> {
        match value {
            Value::Flag(flag) => Some(*flag),
            _ => None,
        }
    }
}

impl SettingType for u64 {
    fn from_value(_key: &str, value: &Value) -> Option<Self> {
        match value {
            Value::Integer(number) => Some(*number),
            _ => None,
        }
    }
}

impl SettingType for u32 {
    fn from_value(key: &str, value: &Value) -> Option<Self> {
        Self::try_from(u64::from_value(key, value)?).ok()
    }
}

impl SettingType for usize {
    fn from_value(key: &str, value: &Value) -> Option<Self> {
        Self::try_from(u64::from_value(key, value)?).ok()
    }
}

impl SettingType for Duration {
    fn from_value(key: &str, value: &Value) -> Option<Self> {
        match value {
            Value::Integer(number) if key.ends_with("_s") => Some(Self::from_secs(*number)),
            Value::Integer(number) if key.ends_with("_days") => Some(Self::from_secs(number.checked_mul(86_400)?)),
            Value::Number(seconds) if key.ends_with("_s") => Self::try_from_secs_f64(*seconds).ok(),
            _ => None,
        }
    }
}

impl SettingType for ByteSize {
    fn from_value(key: &str, value: &Value) -> Option<Self> {
        let number = u64::from_value(key, value)?;
        match key.rsplit('_').next()? {
            "kb" => Some(Self::kib(number)),
            "mb" => Some(Self::mib(number)),
            _ => None,
        }
    }
}

/// Processor cores, to a thousandth.
impl SettingType for Cpus {
    fn from_value(_key: &str, value: &Value) -> Option<Self> {
        let Value::Number(cores) = value else { return None };
        // The conversion to a duration refuses negative and endless numbers, and rounds 0.29 to 290 thousandths.
        let milli = Duration::try_from_secs_f64(*cores).ok()?.as_millis();
        Some(Self::milli(u32::try_from(milli).ok()?))
    }
}

impl SettingType for String {
    fn from_value(_key: &str, value: &Value) -> Option<Self> {
        match value {
            Value::Word(text) => Some(text.clone()),
            Value::Text(text) => Some(text.clone().unwrap_or_default()),
            _ => None,
        }
    }
}

impl SettingType for toml::Table {
    fn from_value(_key: &str, value: &Value) -> Option<Self> {
        match value {
            Value::Tables(table, _) => Some(table.clone()),
            _ => None,
        }
    }
}

impl SettingType for Level {
    fn from_value(_key: &str, value: &Value) -> Option<Self> {
        let Value::Word(word) = value else { return None };
        let mut levels = [
            Self::Microvm,
            Self::Gvisor,
            Self::Container,
            Self::Namespace,
            Self::Process,
            Self::None,
        ]
        .into_iter();
        levels.find(|level| level.as_str() == word)
    }
}

impl SettingType for Degree {
    fn from_value(_key: &str, value: &Value) -> Option<Self> {
        match value {
            Value::Word(word) if word == "enforced" => Some(Self::Enforced),
            Value::Word(word) if word == "watched" => Some(Self::Watched),
            _ => None,
        }
    }
}

impl SettingType for Vec<String> {
    fn from_value(_key: &str, value: &Value) -> Option<Self> {
        match value {
            Value::Words(list) | Value::Texts(list) | Value::Requirements(list) => Some(list.clone()),
            _ => None,
        }
    }
}

impl SettingType for Vec<PathBuf> {
    fn from_value(_key: &str, value: &Value) -> Option<Self> {
        match value {
            Value::Paths(paths) => Some(paths.clone()),
            _ => None,
        }
    }
}

impl SettingType for Vec<Mount> {
    fn from_value(_key: &str, value: &Value) -> Option<Self> {
        match value {
            Value::Mounts(mounts) => Some(mounts.clone()),
            _ => None,
        }
    }
}

/// Empty means none.
impl SettingType for Option<String> {
    fn from_value(_key: &str, value: &Value) -> Option<Self> {
        match value {
            Value::Text(text) | Value::Name(text) => Some(text.clone()),
            _ => None,
        }
    }
}

/// Empty means none.
impl SettingType for Option<PathBuf> {
    fn from_value(_key: &str, value: &Value) -> Option<Self> {
        match value {
            Value::Path(path) => Some(path.clone()),
            _ => None,
        }
    }
}

/// Empty means none.
impl SettingType for Option<Secret> {
    fn from_value(_key: &str, value: &Value) -> Option<Self> {
        match value {
            Value::Secret(secret) => Some(secret.clone()),
            _ => None,
        }
    }
}

/// `auto` means none.
impl SettingType for Option<Level> {
    fn from_value(key: &str, value: &Value) -> Option<Self> {
        match value {
            Value::Word(word) if word == "auto" => Some(None),
            _ => Level::from_value(key, value).map(Some),
        }
    }
}

/// An empty `Demand` means none, and 0 is a number there. For whole numbers, 0 means none.
impl SettingType for Option<usize> {
    fn from_value(key: &str, value: &Value) -> Option<Self> {
        match value {
            Value::Demand(None) => Some(None),
            Value::Demand(Some(number)) => Some(Some(usize::try_from(*number).ok()?)),
            _ => Some(Some(usize::from_value(key, value)?).filter(|number| *number > 0)),
        }
    }
}

/// 0 means none.
impl SettingType for Option<ByteSize> {
    fn from_value(key: &str, value: &Value) -> Option<Self> {
        Some(Some(ByteSize::from_value(key, value)?).filter(|size| size.as_bytes() > 0))
    }
}

/// 0 means none.
impl SettingType for Option<Duration> {
    fn from_value(key: &str, value: &Value) -> Option<Self> {
        Some(Some(Duration::from_value(key, value)?).filter(|time| !time.is_zero()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_and_sizes_have_the_unit_of_the_name() {
        let five = Value::Integer(5);
        assert_eq!(Duration::from_value("a.wait_s", &five), Some(Duration::from_secs(5)));
        assert_eq!(
            Duration::from_value("a.age_days", &five),
            Some(Duration::from_secs(5 * 86_400))
        );
        assert_eq!(Duration::from_value("a.wait", &five), None);
        assert_eq!(ByteSize::from_value("a.kept_kb", &five), Some(ByteSize::kib(5)));
        assert_eq!(ByteSize::from_value("a.kept_mb", &five), Some(ByteSize::mib(5)));
        assert_eq!(ByteSize::from_value("a.kept", &five), None);
    }

    #[test]
    fn nothing_and_zero_are_none_where_a_setting_is_optional() {
        assert_eq!(Option::<String>::from_value("a", &Value::Text(None)), Some(None));
        assert_eq!(Option::<ByteSize>::from_value("a_mb", &Value::Integer(0)), Some(None));
        assert_eq!(Option::<usize>::from_value("a", &Value::Integer(0)), Some(None));
        assert_eq!(Option::<usize>::from_value("a", &Value::Demand(Some(0))), Some(Some(0)));
        let auto = Value::Word("auto".to_owned());
        assert_eq!(Option::<Level>::from_value("a", &auto), Some(None));
    }

    #[test]
    fn a_value_of_another_kind_is_refused() {
        assert_eq!(bool::from_value("a", &Value::Integer(1)), None);
        assert_eq!(u32::from_value("a", &Value::Integer(1 << 40)), None);
        assert_eq!(Level::from_value("a", &Value::Word("low".to_owned())), None);
    }

    #[test]
    fn cores_become_thousandths() {
        assert_eq!(Cpus::from_value("a", &Value::Number(0.05)), Some(Cpus::milli(50)));
        assert_eq!(Cpus::from_value("a", &Value::Number(1.5)), Some(Cpus::milli(1500)));
        assert_eq!(
            Cpus::from_value("a", &Value::Number(1024.0)),
            Some(Cpus::milli(1_024_000))
        );
    }
}
