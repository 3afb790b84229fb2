//! Converts points in time to and from the database's form: milliseconds since 1970.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

pub(crate) fn millis(time: SystemTime) -> i64 {
    // A time before 1970 means that the machine has no clock.
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}

pub(crate) fn moment(millis: i64) -> SystemTime {
    UNIX_EPOCH + Duration::from_millis(u64::try_from(millis).unwrap_or(0))
}

pub(crate) fn now() -> i64 {
    millis(SystemTime::now())
}
