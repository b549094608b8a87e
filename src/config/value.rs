//! Values with units: [`Span`] ("13s", "250ms") and [`Size`] ("64KiB"). A number without a unit, or with one of another
//! quantity, is an error that names the value and the units that are allowed.

use std::{fmt, str::FromStr, time::Duration};

use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};

/// Units of time with their length in microseconds, the largest first (the order in which a value is printed).
const TIME_UNITS: [(&str, u64); 5] =
    [("h", 3_600_000_000), ("min", 60_000_000), ("s", 1_000_000), ("ms", 1_000), ("us", 1)];
/// Units of memory with their length in bytes, the largest first.
const SIZE_UNITS: [(&str, u64); 4] = [("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10), ("B", 1)];

/// A duration, written as a whole number and a unit: "13s", "250ms".
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Span(pub Duration);

/// A size in bytes, written as a whole number and a unit: "64KiB", "256MiB".
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Size(pub u64);

impl Span {
    /// A span of whole seconds.
    #[must_use]
    pub const fn secs(s: u64) -> Self {
        Self(Duration::from_secs(s))
    }

    /// A span of whole milliseconds.
    #[must_use]
    pub const fn millis(ms: u64) -> Self {
        Self(Duration::from_millis(ms))
    }
}

impl FromStr for Span {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        with_unit(text, &TIME_UNITS, "a duration").map(|us| Self(Duration::from_micros(us)))
    }
}

impl FromStr for Size {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        with_unit(text, &SIZE_UNITS, "a size").map(Self)
    }
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        print(u64::try_from(self.0.as_micros()).unwrap_or(u64::MAX), &TIME_UNITS, "s", f)
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        print(self.0, &SIZE_UNITS, "B", f)
    }
}

/// `text` = digits, optional blanks, one of `units`.
fn with_unit(text: &str, units: &[(&str, u64)], what: &str) -> Result<u64, String> {
    let names = || units.iter().rev().map(|u| u.0).collect::<Vec<_>>().join(", ");
    let text = text.trim();
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = (&text[..digits], text[digits..].trim());
    let Ok(number) = number.parse::<u64>() else {
        return Err(format!("\"{text}\" is not {what}: a whole number and one of {} is wanted", names()));
    };
    let Some((_, scale)) = units.iter().find(|u| u.0 == unit) else {
        let problem = if unit.is_empty() { "has no unit".into() } else { format!("has the unit \"{unit}\"") };
        return Err(format!("\"{text}\" {problem}; for {what} the units are {}", names()));
    };
    number.checked_mul(*scale).ok_or_else(|| format!("\"{text}\" is too large for {what}"))
}

fn print(value: u64, units: &[(&str, u64)], zero: &str, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    match units.iter().find(|u| value != 0 && value.is_multiple_of(u.1)) {
        Some((unit, scale)) => write!(f, "{}{unit}", value / scale),
        None => write!(f, "{value}{zero}"),
    }
}

macro_rules! as_text {
    ($($t:ty),*) => {$(
        impl fmt::Debug for $t {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(self, f)
            }
        }
        impl Serialize for $t {
            fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
                s.collect_str(self)
            }
        }
        impl<'de> Deserialize<'de> for $t {
            fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
                // a number without quotes is met as often as a wrong unit: it deserves the same answer
                let text = match toml::Value::deserialize(d)? {
                    toml::Value::String(s) => s,
                    other => other.to_string(),
                };
                text.parse().map_err(D::Error::custom)
            }
        }
    )*};
}
as_text!(Span, Size);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_with_units_are_read_and_printed_back() {
        for text in ["13s", "250ms", "2min", "1h", "500us", "0s"] {
            assert_eq!(text.parse::<Span>().unwrap().to_string(), text);
        }
        for text in ["64KiB", "256MiB", "1GiB", "17B", "0B"] {
            assert_eq!(text.parse::<Size>().unwrap().to_string(), text);
        }
        assert_eq!("90 s".parse::<Span>().unwrap(), Span::secs(90));
    }

    #[test]
    fn a_wrong_unit_names_the_value_and_the_units() {
        for text in ["13x", "13", "64KiB", "13 seconds"] {
            let e = text.parse::<Span>().unwrap_err();
            assert!(e.contains(text) && e.contains("us, ms, s, min, h"), "{e}");
        }
        for text in ["", "s", "-1s", "1.5s"] {
            assert!(text.parse::<Span>().is_err(), "{text}");
        }
        assert!("99999999999999999999h".parse::<Span>().is_err());
        assert!("64kb".parse::<Size>().unwrap_err().contains("B, KiB, MiB, GiB"));
    }
}
