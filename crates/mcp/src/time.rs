//! Spans as people say them.

use std::time::Duration;

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
    fn durations_are_formatted_for_people() {
        assert_eq!(span(Duration::from_micros(12_900)), "12 ms");
        assert_eq!(span(Duration::from_millis(3449)), "3.4 s");
        assert_eq!(span(Duration::from_secs(125)), "125 s");
        assert_eq!(rough(Duration::from_secs(1800)), "30 min");
    }
}
