//! Amounts on the command line: a number, with or without a unit.

use std::time::Duration;

use sandcell_sandbox::{ByteSize, MAX_TIMEOUT};

/// The minimum memory of a sandbox, in MiB.
const MIN_MB: f64 = 16.0;
/// The maximum memory of a request, in MiB.
const MAX_MB: f64 = 1_048_576.0;

/// Memory: MiB without a unit. `MB` and `MiB` mean the same, as in the settings.
pub(super) fn memory(text: &str) -> Result<ByteSize, String> {
    let (number, unit) = split(text).ok_or("give MiB, such as 512, or a unit: 512MB, 2GB")?;
    let mib = match unit.to_ascii_lowercase().as_str() {
        "" | "m" | "mb" | "mib" => number,
        "g" | "gb" | "gib" => number * 1024.0,
        "k" | "kb" | "kib" => number / 1024.0,
        "b" => number / 1_048_576.0,
        _ => return Err(format!("{unit:?} is no unit of memory: use MB or GB")),
    };
    if !(MIN_MB..=MAX_MB).contains(&mib) {
        return Err(format!("must be {MIN_MB} to {MAX_MB} MiB, and is {mib}"));
    }
    // The number is converted as seconds, since those convert without a cast: 1 MiB is 1 s. 2^20 nanoseconds are fine
    // enough.
    let parts = Duration::try_from_secs_f64(mib).map_err(|error| error.to_string())?;
    let kib = u64::try_from(parts.as_millis().saturating_mul(1024) / 1000).map_err(|error| error.to_string())?;
    Ok(ByteSize::kib(kib))
}

/// Reads a time: seconds without a unit.
pub(super) fn duration(text: &str) -> Result<Duration, String> {
    let (number, unit) = split(text).ok_or("give seconds, such as 30, or a unit: 500ms, 30s, 2m")?;
    let seconds = match unit.to_ascii_lowercase().as_str() {
        "" | "s" | "sec" | "secs" | "second" | "seconds" => number,
        "ms" => number / 1000.0,
        "m" | "min" | "mins" | "minute" | "minutes" => number * 60.0,
        "h" | "hour" | "hours" => number * 3600.0,
        _ => return Err(format!("{unit:?} is no unit of time: use ms, s, m or h")),
    };
    match Duration::try_from_secs_f64(seconds) {
        Ok(timeout) if !timeout.is_zero() && timeout <= MAX_TIMEOUT => Ok(timeout),
        _ => Err(format!(
            "must be more than 0 and at most {} seconds",
            MAX_TIMEOUT.as_secs()
        )),
    }
}

/// Splits a text into the number and the unit after it.
fn split(text: &str) -> Option<(f64, &str)> {
    let text = text.trim();
    let end = text
        .find(|c: char| !(c.is_ascii_digit() || c == '.'))
        .unwrap_or(text.len());
    let (number, unit) = text.split_at_checked(end)?;
    Some((number.parse().ok()?, unit.trim()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_mib_or_has_a_unit() {
        for (text, mib) in [
            ("512", 512),
            ("512MB", 512),
            ("512 MiB", 512),
            ("512m", 512),
            ("1GB", 1024),
            ("1g", 1024),
            ("1.5GiB", 1536),
            ("65536k", 64),
            ("67108864b", 64),
        ] {
            assert_eq!(memory(text), Ok(ByteSize::mib(mib)), "{text}");
        }
        for bad in [
            "",
            "0",
            "8",
            "-1",
            "1TB",
            "GB",
            "1e9",
            "nan",
            "99999999999",
            "1 2",
            "1.2.3",
        ] {
            assert!(memory(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_time_is_seconds_or_has_a_unit() {
        for (text, ms) in [
            ("5", 5000),
            ("5s", 5000),
            ("0.5", 500),
            ("500ms", 500),
            ("2m", 120_000),
            ("1h", 3_600_000),
            ("90 sec", 90_000),
        ] {
            assert_eq!(duration(text), Ok(Duration::from_millis(ms)), "{text}");
        }
        for bad in ["", "0", "0s", "-1", "3601", "2h", "5x", "nan", "inf", "s", "1e3"] {
            assert!(duration(bad).is_err(), "{bad}");
        }
    }
}
