//! Points in time as RFC 3339 text, and spans as people say them.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// UTC with seconds, such as `2026-11-21T00:35:07Z`. Times before 1970 are shown as 1970.
pub(crate) fn rfc3339(time: SystemTime) -> String {
    let seconds = time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let (days, rest) = (seconds / 86_400, seconds % 86_400);
    let (year, month, day) = civil(days);
    let (hour, minute, second) = (rest / 3600, rest / 60 % 60, rest % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

/// The same from milliseconds since 1970.
pub(crate) fn rfc3339_ms(ms: i64) -> String {
    rfc3339(UNIX_EPOCH + Duration::from_millis(u64::try_from(ms).unwrap_or(0)))
}

/// Year, month and day of a day since 1970-01-01 in the Gregorian calendar (Hinnant's algorithm for days >= 0).
fn civil(days: u64) -> (u64, u64, u64) {
    let shifted = days + 719_468;
    let era = shifted / 146_097;
    let day_of_era = shifted % 146_097;
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_index = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_index + 2) / 5 + 1;
    let month = if month_index < 10 {
        month_index + 3
    } else {
        month_index - 9
    };
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    (year, month, day)
}

/// `12 ms`, `3.4 s`, `125 s`.
pub(crate) fn span(duration: Duration) -> String {
    let ms = duration.as_millis();
    match ms {
        0..1000 => format!("{ms} ms"),
        1000..100_000 => format!("{}.{} s", ms / 1000, ms / 100 % 10),
        _ => format!("{} s", ms / 1000),
    }
}

/// `45 s`, `30 min`, `5 h`, for settings and waits where the exact number matters less.
pub(crate) fn rough(duration: Duration) -> String {
    match duration.as_secs() {
        seconds @ 0..120 => format!("{seconds} s"),
        seconds @ 120..7200 => format!("{} min", seconds / 60),
        seconds => format!("{} h", seconds / 3600),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_right_across_leap_years_and_centuries() {
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (1_709_251_199, "2024-02-29T23:59:59Z"),
            (1_795_221_307, "2026-11-21T00:35:07Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
        ] {
            assert_eq!(rfc3339(UNIX_EPOCH + Duration::from_secs(seconds)), text);
        }
        assert_eq!(rfc3339_ms(-5), "1970-01-01T00:00:00Z");
    }

    #[test]
    fn durations_are_formatted_for_people() {
        assert_eq!(span(Duration::from_micros(12_900)), "12 ms");
        assert_eq!(span(Duration::from_millis(3449)), "3.4 s");
        assert_eq!(span(Duration::from_secs(125)), "125 s");
        assert_eq!(rough(Duration::from_secs(1800)), "30 min");
    }
}
