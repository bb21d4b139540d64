//! Numbers with their units, for people.

use std::time::Duration;

/// Returns a time with three digits: `850 µs`, `1.20 ms`, `34.5 ms`, `3.02 s`.
#[must_use]
pub fn time(time: Duration) -> String {
    let seconds = time.as_secs_f64();
    // A time that is rounded up to the next unit is written in that unit.
    let (value, unit) = match seconds {
        ..999.5e-9 => (seconds * 1e9, "ns"),
        ..999.5e-6 => (seconds * 1e6, "µs"),
        ..999.5e-3 => (seconds * 1e3, "ms"),
        _ => (seconds, "s"),
    };
    format!("{} {unit}", three_digits(value))
}

/// Returns a number with three digits, and more if it is larger.
#[must_use]
pub fn three_digits(value: f64) -> String {
    let digits = match value {
        ..9.995 => 2,
        ..99.95 => 1,
        _ => 0,
    };
    thousands(&format!("{value:.digits$}"))
}

/// Returns a count with separators: `12,345`.
#[must_use]
pub fn count(number: impl Into<u128>) -> String {
    thousands(&number.into().to_string())
}

/// Returns a count of bytes: `2.1 KiB`.
#[must_use]
#[expect(clippy::cast_precision_loss, reason = "a size for people")]
pub fn bytes(bytes: u64) -> String {
    match bytes {
        ..1024 => format!("{bytes} B"),
        1024..1_048_576 => format!("{:.1} KiB", bytes as f64 / 1024.0),
        _ => format!("{:.1} MiB", bytes as f64 / 1_048_576.0),
    }
}

fn thousands(number: &str) -> String {
    let (whole, fraction) = number
        .split_once('.')
        .map_or((number, String::new()), |(whole, fraction)| (whole, format!(".{fraction}")));
    let mut grouped = String::new();
    for (at, digit) in whole.chars().enumerate() {
        if at > 0 && (whole.len() - at).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped + &fraction
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_three_digits_and_a_unit() {
        for (nanos, text) in [
            (0, "0.00 ns"),
            (850, "850 ns"),
            (999_499, "999 µs"),
            (999_600, "1.00 ms"),
            (1_204_000, "1.20 ms"),
            (34_460_000, "34.5 ms"),
            (999_700_000, "1.00 s"),
            (3_021_000_000, "3.02 s"),
            (612_000_000_000, "612 s"),
        ] {
            assert_eq!(time(Duration::from_nanos(nanos)), text, "{nanos}");
        }
    }

    #[test]
    fn counts_have_separators() {
        let counts = [0_u32, 999, 1_000, 1_234_567].map(count);
        assert_eq!(counts, ["0", "999", "1,000", "1,234,567"]);
        assert_eq!([three_digits(12_345.6), three_digits(9.999)], ["12,346", "10.0"]);
        assert_eq!([bytes(1000), bytes(2150), bytes(3 << 20)], ["1000 B", "2.1 KiB", "3.0 MiB"]);
    }
}
