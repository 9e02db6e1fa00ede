//! `strftime_now` of Hugging Face templates: a moment, in UTC, written by a format of Python's strftime.
//!
//! Takes the moment as a number and never reads a clock.

/// Writes `unix_seconds` by `format`; a directive that is not known stays as it is.
pub(super) fn strftime(format: &str, unix_seconds: i64) -> String {
    let (days, second_of_day) = (unix_seconds.div_euclid(86_400), unix_seconds.rem_euclid(86_400));
    let (year, month, day) = civil_from_days(days);
    let weekday = (days + 4).rem_euclid(7) as usize;
    let (hour, minute, second) = (second_of_day / 3600, second_of_day / 60 % 60, second_of_day % 60);
    let day_of_year = days - days_from_civil(year, 1, 1) + 1;
    let hour_of_12 = (hour + 11) % 12 + 1;

    let mut out = String::new();
    let mut chars = format.chars();
    while let Some(c) = chars.next() {
        if c != '%' {
            out.push(c);
            continue;
        }
        let mut directive = chars.next();
        let unpadded = directive == Some('-');
        if unpadded {
            directive = chars.next();
        }
        let pad = |number: i64, width: usize| {
            if unpadded { number.to_string() } else { format!("{number:0width$}") }
        };
        let text = match directive {
            Some('Y') => year.to_string(),
            Some('y') => pad(year.rem_euclid(100), 2),
            Some('m') => pad(month, 2),
            Some('d') => pad(day, 2),
            Some('j') => pad(day_of_year, 3),
            Some('H') => pad(hour, 2),
            Some('I') => pad(hour_of_12, 2),
            Some('M') => pad(minute, 2),
            Some('S') => pad(second, 2),
            Some('p') => if hour < 12 { "AM" } else { "PM" }.to_owned(),
            Some('B') => MONTHS[month as usize - 1].to_owned(),
            Some('b') => MONTHS[month as usize - 1][..3].to_owned(),
            Some('A') => WEEKDAYS[weekday].to_owned(),
            Some('a') => WEEKDAYS[weekday][..3].to_owned(),
            Some('F') => format!("{year}-{month:02}-{day:02}"),
            Some('T') => format!("{hour:02}:{minute:02}:{second:02}"),
            Some('Z') => "UTC".to_owned(),
            Some('z') => "+0000".to_owned(),
            Some('%') => "%".to_owned(),
            Some(other) => format!("%{other}"),
            None => "%".to_owned(),
        };
        out.push_str(&text);
    }
    out
}

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
const WEEKDAYS: [&str; 7] = ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];

/// Days since 1970-01-01 of a date, by counting the leap days before it.
fn days_from_civil(year: i64, month: i64, day: i64) -> i64 {
    let before = year - 1;
    let leap_days = before.div_euclid(4) - before.div_euclid(100) + before.div_euclid(400);
    let of_year: i64 = (1..month).map(|m| month_days(year, m)).sum();
    before * 365 + leap_days + of_year + day - 1 - 719_162
}

fn civil_from_days(days: i64) -> (i64, i64, i64) {
    // The guess is at most one year late or early.
    let mut year = 1970 + days.div_euclid(365) - days.div_euclid(365) / 1460;
    while days_from_civil(year, 1, 1) > days {
        year -= 1;
    }
    while days_from_civil(year + 1, 1, 1) <= days {
        year += 1;
    }
    let mut rest = days - days_from_civil(year, 1, 1);
    let mut month = 1;
    while rest >= month_days(year, month) {
        rest -= month_days(year, month);
        month += 1;
    }
    (year, month, rest + 1)
}

fn month_days(year: i64, month: i64) -> i64 {
    let leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    match month {
        2 if leap => 29,
        2 => 28,
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_moments() {
        assert_eq!(strftime("%Y-%m-%d %H:%M:%S %A %j", 0), "1970-01-01 00:00:00 Thursday 001");
        assert_eq!(strftime("%d %b %Y, %-d %B %I %p %%", 1_709_210_096), "29 Feb 2024, 29 February 12 PM %");
        assert_eq!(strftime("%F %T %a", 1_798_761_599), "2026-12-31 23:59:59 Thu");
        assert_eq!(strftime("%F", -1), "1969-12-31");
    }
}
