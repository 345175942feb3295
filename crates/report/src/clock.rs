//! Dates as text, UTC, `2026-11-15T21:40:00Z`: they sort as they happened.

use std::time::{SystemTime, UNIX_EPOCH};

/// Now.
pub fn now() -> String {
    before_now(0)
}

/// `seconds` ago.
pub fn before_now(seconds: u64) -> String {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    date(
        since
            .map_or(0, |since| since.as_secs())
            .saturating_sub(seconds),
    )
}

/// The date `seconds` after the epoch.
pub fn date(seconds: u64) -> String {
    let (days, rest) = (seconds / 86_400, seconds % 86_400);
    let (year, month, day) = civil(days);
    let (hour, minute, second) = (rest / 3600, rest / 60 % 60, rest % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

/// Year, month and day of the day `days` after 1 January 1970. Years are
/// counted from March, so that the leap day is the last of its year.
fn civil(days: u64) -> (u64, u64, u64) {
    const DAYS_IN_400_YEARS: u64 = 146_097;
    let shifted = days + 719_468; // from 1 March of year 0
    let era = shifted / DAYS_IN_400_YEARS;
    let day_of_era = shifted % DAYS_IN_400_YEARS;
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 {
        month_from_march + 3
    } else {
        month_from_march - 9
    };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    (year, month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_dates() {
        assert_eq!(date(0), "1970-01-01T00:00:00Z");
        assert_eq!(date(951_782_400), "2000-02-29T00:00:00Z");
        assert_eq!(date(1_709_251_199), "2024-02-29T23:59:59Z");
        assert_eq!(date(4_102_444_800), "2100-01-01T00:00:00Z");
    }
}
