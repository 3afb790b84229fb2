//! Points in time as text: RFC 3339, UTC.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Formats a time with milliseconds, for history rows.
#[must_use]
pub fn rfc3339_millis(time: SystemTime) -> String {
    let since = since_epoch(time);
    let (date, clock) = split(since.as_secs());
    format!("{date}T{clock}.{:03}Z", since.subsec_millis())
}

/// Formats a time without a fraction, for sentences.
pub(crate) fn rfc3339(time: SystemTime) -> String {
    let (date, clock) = split(since_epoch(time).as_secs());
    format!("{date}T{clock}Z")
}

fn since_epoch(time: SystemTime) -> Duration {
    // A clock before 1970 belongs to a machine without a clock. Its times mean nothing.
    time.duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO)
}

fn split(seconds: u64) -> (String, String) {
    let (days, rest) = (seconds / 86_400, seconds % 86_400);
    let (year, month, day) = civil(days);
    (
        format!("{year:04}-{month:02}-{day:02}"),
        format!("{:02}:{:02}:{:02}", rest / 3600, rest / 60 % 60, rest % 60),
    )
}

/// Converts days since 1970-01-01 to year, month and day: Howard Hinnant's `civil_from_days`, for days after 1970 only.
fn civil(days: u64) -> (u64, u64, u64) {
    let shifted = days + 719_468;
    let era = shifted / 146_097;
    let of_era = shifted % 146_097;
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let from_march = (5 * of_year + 2) / 153;
    let day = of_year - (153 * from_march + 2) / 5 + 1;
    let month = if from_march < 10 {
        from_march + 3
    } else {
        from_march - 9
    };
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    (year, month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_times_are_formatted_correctly() {
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_399, "2000-02-28T23:59:59Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (1_735_689_599, "2024-12-31T23:59:59Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
        ] {
            assert_eq!(rfc3339(UNIX_EPOCH + Duration::from_secs(seconds)), text);
        }
    }

    #[test]
    fn milliseconds_have_three_digits() {
        assert_eq!(
            rfc3339_millis(UNIX_EPOCH + Duration::from_millis(1007)),
            "1970-01-01T00:00:01.007Z"
        );
    }

    #[test]
    fn a_time_before_1970_does_not_panic() {
        assert_eq!(rfc3339(UNIX_EPOCH - Duration::from_secs(5)), "1970-01-01T00:00:00Z");
    }
}
