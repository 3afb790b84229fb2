//! Points in time as text (RFC 3339 in UTC) and as milliseconds since 1970.
//!
//! A time before 1970 belongs to a machine without a clock, and counts as 1970. A time after the year 9999 has no text,
//! and is shown as the last second of that year.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The last second of the year 9999, in seconds since 1970.
const MAX_SECONDS: u64 = 253_402_300_799;

/// Formats a time with seconds, such as `2026-11-21T00:35:07Z`.
#[must_use]
pub fn rfc3339(time: SystemTime) -> String {
    humantime::format_rfc3339_seconds(with_text(time)).to_string()
}

/// Formats a time with milliseconds, such as `2026-11-21T00:35:07.123Z`.
#[must_use]
pub fn rfc3339_millis(time: SystemTime) -> String {
    humantime::format_rfc3339_millis(with_text(time)).to_string()
}

/// Reads a time such as `2026-11-21T00:35:07.53Z` or `2026-11-21T01:35:07+01:00`.
#[must_use]
pub fn parse_rfc3339(text: &str) -> Option<SystemTime> {
    if text.ends_with('Z') {
        return humantime::parse_rfc3339(text).ok();
    }
    let (local, offset) = text.split_at_checked(text.len().checked_sub("+00:00".len())?)?;
    let local = humantime::parse_rfc3339(&format!("{local}Z")).ok()?;
    let (hours, minutes) = offset.get(1..)?.split_once(':')?;
    let (hours, minutes): (u64, u64) = (hours.parse().ok()?, minutes.parse().ok()?);
    if hours > 23 || minutes > 59 {
        return None;
    }
    let offset_length = Duration::from_secs((hours * 60 + minutes) * 60);
    match offset.get(..1)? {
        "+" => local.checked_sub(offset_length),
        "-" => local.checked_add(offset_length),
        _ => None,
    }
}

/// Returns the milliseconds since 1970.
#[must_use]
pub fn unix_millis(time: SystemTime) -> i64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}

/// Returns the time at these milliseconds since 1970. Not every system can express times after the year 9999.
#[must_use]
pub fn from_unix_millis(millis: i64) -> SystemTime {
    let millis = u64::try_from(millis).unwrap_or(0).min(MAX_SECONDS * 1000 + 999);
    UNIX_EPOCH + Duration::from_millis(millis)
}

/// Returns the nearest time that has a text.
fn with_text(time: SystemTime) -> SystemTime {
    time.clamp(UNIX_EPOCH, UNIX_EPOCH + Duration::from_secs(MAX_SECONDS))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_with_an_offset_are_read() {
        let expected = parse_rfc3339("2026-11-21T00:35:07.5Z").unwrap();
        for text in ["2026-11-21T01:35:07.5+01:00", "2026-11-20T19:05:07.5-05:30"] {
            assert_eq!(parse_rfc3339(text), Some(expected), "{text}");
        }
        for text in [
            "",
            "+01:00",
            "2026-11-21T01:35:07",
            "2026-11-21T01:35:07+24:00",
            "2026-11-21T01:35:07*01:00",
            "é:00",
        ] {
            assert_eq!(parse_rfc3339(text), None, "{text}");
        }
    }

    #[test]
    fn dates_are_right_across_leap_years_and_centuries() {
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_399, "2000-02-28T23:59:59Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (1_709_251_199, "2024-02-29T23:59:59Z"),
            (1_735_689_599, "2024-12-31T23:59:59Z"),
            (1_795_221_307, "2026-11-21T00:35:07Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
            (MAX_SECONDS, "9999-12-31T23:59:59Z"),
            (MAX_SECONDS + 1, "9999-12-31T23:59:59Z"),
            (1 << 43, "9999-12-31T23:59:59Z"),
        ] {
            assert_eq!(rfc3339(UNIX_EPOCH + Duration::from_secs(seconds)), text);
        }
    }

    #[test]
    fn milliseconds_have_three_digits() {
        for (millis, text) in [
            (1000, "1970-01-01T00:00:01.000Z"),
            (1007, "1970-01-01T00:00:01.007Z"),
            (1_795_221_307_999, "2026-11-21T00:35:07.999Z"),
        ] {
            assert_eq!(rfc3339_millis(from_unix_millis(millis)), text);
            assert_eq!(unix_millis(from_unix_millis(millis)), millis);
        }
        // A finer time is cut, not rounded.
        assert_eq!(
            rfc3339_millis(UNIX_EPOCH + Duration::from_micros(1_999_999)),
            "1970-01-01T00:00:01.999Z"
        );
    }

    #[test]
    fn a_time_before_1970_is_1970() {
        let before = UNIX_EPOCH - Duration::from_secs(5);
        assert_eq!(rfc3339(before), "1970-01-01T00:00:00Z");
        assert_eq!(rfc3339_millis(before), "1970-01-01T00:00:00.000Z");
        assert_eq!((unix_millis(before), from_unix_millis(-5)), (0, UNIX_EPOCH));
    }

    #[test]
    fn any_milliseconds_have_a_text() {
        assert_eq!(rfc3339(from_unix_millis(i64::MAX)), "9999-12-31T23:59:59Z");
        assert_eq!(rfc3339(from_unix_millis(i64::MIN)), "1970-01-01T00:00:00Z");
    }
}
