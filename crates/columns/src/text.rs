//! Values as text: what a header holds, in one string.
//!
//! Owns the spelling of every AMQP value: plain text as it is, numbers in digits, times as ISO 8601, bytes in
//! hexadecimal, and whatever is nested as JSON. It must never fail: what has no spelling is null. Rule:
//! docs/reference/columns.md, "Headers".

use std::fmt::Write;

use weft_wire::amqp10::Value as Value10;
use weft_wire::amqp091::table::Value as Value091;

/// Nesting that is spelled; anything deeper is null.
const DEPTH_MAX: u32 = 32;

/// What of a value is written.
enum Spelled<'a> {
    Null,
    /// Stands as it is, in JSON too.
    Bare,
    /// Is quoted in JSON.
    Text(&'a str),
}

/// Writes a 0-9-1 value; false if it is null.
pub(crate) fn write091(out: &mut String, value: Value091<'_>) -> bool {
    put091(out, value, false, DEPTH_MAX)
}

/// Writes a 1.0 value; false if it is null.
pub(crate) fn write10(out: &mut String, value: Value10<'_>) -> bool {
    put10(out, value, false, DEPTH_MAX)
}

fn put091(out: &mut String, value: Value091<'_>, json: bool, depth: u32) -> bool {
    let spelled = match value {
        Value091::Void => Spelled::Null,
        Value091::Bool(yes) => bare(out, yes),
        Value091::F32(number) => real(out, f64::from(number), json),
        Value091::F64(number) => real(out, number, json),
        Value091::Decimal { scale, value } => decimal(out, scale, value),
        Value091::LongString(bytes) => match std::str::from_utf8(bytes) {
            Ok(text) => Spelled::Text(text),
            Err(_) => return hex(out, bytes, json),
        },
        Value091::Bytes(bytes) => return hex(out, bytes, json),
        Value091::Timestamp(seconds) => return time(out, i64::try_from(seconds).ok(), 0, json),
        Value091::Table(_) | Value091::Array(_) if depth == 0 => Spelled::Null,
        Value091::Table(table) => {
            let key = |key: &[u8]| String::from_utf8_lossy(key).into_owned();
            let items = table.iter().map(|(name, value)| (key(name), value));
            object(out, items, |out, value| put091(out, value, true, depth - 1))
        }
        Value091::Array(array) => list(out, array.iter(), |out, value| put091(out, value, true, depth - 1)),
        integer => match integer.as_i64() {
            Some(number) => bare(out, number),
            None => Spelled::Null,
        },
    };
    finish(out, &spelled, json)
}

fn put10(out: &mut String, value: Value10<'_>, json: bool, depth: u32) -> bool {
    let spelled = match value {
        Value10::Null | Value10::Decimal32(_) | Value10::Decimal64(_) | Value10::Decimal128(_) => Spelled::Null,
        Value10::Bool(yes) => bare(out, yes),
        Value10::Float(number) => real(out, f64::from(number), json),
        Value10::Double(number) => real(out, number, json),
        Value10::String(text) | Value10::Symbol(text) => Spelled::Text(text),
        Value10::Char(letter) => return finish(out, &Spelled::Text(letter.encode_utf8(&mut [0; 4])), json),
        Value10::Binary(bytes) => return hex(out, bytes, json),
        Value10::Uuid(bytes) => return finish(out, &Spelled::Text(&uuid(&bytes)), json),
        Value10::Timestamp(ms) => return time(out, Some(ms.div_euclid(1_000)), ms.rem_euclid(1_000), json),
        Value10::List(_) | Value10::Array(_) | Value10::Map(_) | Value10::Described(_) if depth == 0 => Spelled::Null,
        Value10::Described(described) => return put10(out, described.value(), json, depth - 1),
        Value10::List(items) => list(out, items.iter(), |out, value| put10(out, value, true, depth - 1)),
        Value10::Array(items) => list(out, items.iter(), |out, value| put10(out, value, true, depth - 1)),
        Value10::Map(map) => {
            let items = map.iter().map(|(key, value)| (key_text(key), value));
            object(out, items, |out, value| put10(out, value, true, depth - 1))
        }
        integer => match (integer.as_u64(), integer.as_i64()) {
            (Some(number), _) => bare(out, number),
            (None, Some(number)) => bare(out, number),
            (None, None) => Spelled::Null,
        },
    };
    finish(out, &spelled, json)
}

/// A key of a map, which may be any value, as text.
pub(crate) fn key_text(key: Value10<'_>) -> String {
    let mut out = String::new();
    write10(&mut out, key);
    out
}

fn finish(out: &mut String, spelled: &Spelled<'_>, json: bool) -> bool {
    match spelled {
        Spelled::Null if json => out.push_str("null"),
        Spelled::Null => return false,
        Spelled::Bare => {}
        Spelled::Text(text) if json => quote(out, text),
        Spelled::Text(text) => out.push_str(text),
    }
    true
}

fn bare(out: &mut String, value: impl std::fmt::Display) -> Spelled<'static> {
    let _ = write!(out, "{value}");
    Spelled::Bare
}

/// JSON has no infinity.
fn real(out: &mut String, number: f64, json: bool) -> Spelled<'static> {
    if json && !number.is_finite() {
        return Spelled::Null;
    }
    let _ = write!(out, "{number:?}");
    Spelled::Bare
}

fn decimal(out: &mut String, scale: u8, value: i32) -> Spelled<'static> {
    let digits = format!("{:0width$}", value.unsigned_abs(), width = usize::from(scale) + 1);
    let (whole, part) = digits.split_at(digits.len() - usize::from(scale));
    let (sign, dot) = (if value < 0 { "-" } else { "" }, if scale > 0 { "." } else { "" });
    let _ = write!(out, "{sign}{whole}{dot}{part}");
    Spelled::Bare
}

/// Bytes in hexadecimal.
pub(crate) fn hex(out: &mut String, bytes: &[u8], json: bool) -> bool {
    let quotes = if json { "\"" } else { "" };
    out.push_str(quotes);
    out.reserve(bytes.len() * 2);
    for byte in bytes {
        out.push(char::from(b"0123456789abcdef"[usize::from(byte >> 4)]));
        out.push(char::from(b"0123456789abcdef"[usize::from(byte & 15)]));
    }
    out.push_str(quotes);
    true
}

/// A UUID as text.
pub(crate) fn uuid(bytes: &[u8; 16]) -> String {
    let mut text = String::with_capacity(36);
    for (index, byte) in bytes.iter().enumerate() {
        if matches!(index, 4 | 6 | 8 | 10) {
            text.push('-');
        }
        let _ = write!(text, "{byte:02x}");
    }
    text
}

/// Seconds that a four-digit year can tell; a time beyond is null.
const SECONDS: std::ops::Range<i64> = -62_135_596_800..253_402_300_800;

fn time(out: &mut String, seconds: Option<i64>, ms: i64, json: bool) -> bool {
    let Some(seconds) = seconds.filter(|seconds| SECONDS.contains(seconds)) else {
        return finish(out, &Spelled::Null, json);
    };
    let (year, month, day) = civil(seconds.div_euclid(86_400));
    let of_day = seconds.rem_euclid(86_400);
    let (hour, minute, second) = (of_day / 3_600, of_day / 60 % 60, of_day % 60);
    let quotes = if json { "\"" } else { "" };
    let _ = write!(out, "{quotes}{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}");
    if ms > 0 {
        let _ = write!(out, ".{ms:03}");
    }
    let _ = write!(out, "Z{quotes}");
    true
}

/// Year, month and day of a day counted from 1970-01-01, in the Gregorian calendar: years begin in March, so that the
/// leap day comes last, and 146,097 days make 400 years.
fn civil(days: i64) -> (i64, i64, i64) {
    let days = days + 719_468;
    let (era, of_era) = (days.div_euclid(146_097), days.rem_euclid(146_097));
    let year = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    (era * 400 + year + i64::from(month <= 2), month, day)
}

fn list<T>(
    out: &mut String,
    items: impl Iterator<Item = T>,
    mut put: impl FnMut(&mut String, T) -> bool,
) -> Spelled<'static> {
    out.push('[');
    for (index, item) in items.enumerate() {
        if index > 0 {
            out.push(',');
        }
        put(out, item);
    }
    out.push(']');
    Spelled::Bare
}

fn object<T>(
    out: &mut String,
    items: impl Iterator<Item = (String, T)>,
    mut put: impl FnMut(&mut String, T) -> bool,
) -> Spelled<'static> {
    out.push('{');
    for (index, (key, item)) in items.enumerate() {
        if index > 0 {
            out.push(',');
        }
        quote(out, &key);
        out.push(':');
        put(out, item);
    }
    out.push('}');
    Spelled::Bare
}

fn quote(out: &mut String, text: &str) {
    out.push('"');
    for letter in text.chars() {
        match letter {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            control if control < ' ' => drop(write!(out, "\\u{:04x}", u32::from(control))),
            letter => out.push(letter),
        }
    }
    out.push('"');
}

#[cfg(test)]
mod tests {
    use super::*;
    use weft_wire::amqp091::table::{Table, TableWriter};

    fn text091(value: Value091<'_>) -> Option<String> {
        let mut out = String::new();
        write091(&mut out, value).then_some(out)
    }

    fn text10(value: Value10<'_>) -> Option<String> {
        let mut out = String::new();
        write10(&mut out, value).then_some(out)
    }

    #[test]
    fn every_0_9_1_value_has_its_spelling() {
        for (value, text) in [
            (Value091::Void, None),
            (Value091::Bool(true), Some("true")),
            (Value091::I8(-3), Some("-3")),
            (Value091::U32(4_000_000_000), Some("4000000000")),
            (Value091::I64(i64::MIN), Some("-9223372036854775808")),
            (Value091::F64(1.0), Some("1.0")),
            (Value091::F32(0.5), Some("0.5")),
            (Value091::F64(f64::INFINITY), Some("inf")),
            (Value091::Decimal { scale: 2, value: -314 }, Some("-3.14")),
            (Value091::Decimal { scale: 4, value: 5 }, Some("0.0005")),
            (Value091::Decimal { scale: 0, value: 7 }, Some("7")),
            (Value091::LongString("höher".as_bytes()), Some("höher")),
            (Value091::LongString(b"\xff\x00"), Some("ff00")),
            (Value091::Bytes(b"\x01"), Some("01")),
            (Value091::Timestamp(0), Some("1970-01-01T00:00:00Z")),
            (Value091::Timestamp(951_782_400), Some("2000-02-29T00:00:00Z")),
            (Value091::Timestamp(1_700_000_000), Some("2023-11-14T22:13:20Z")),
            (Value091::Timestamp(253_402_300_799), Some("9999-12-31T23:59:59Z")),
            (Value091::Timestamp(u64::MAX), None),
        ] {
            assert_eq!(text091(value).as_deref(), text, "{value:?}");
        }
    }

    #[test]
    fn what_is_nested_is_json() {
        let mut bytes = Vec::new();
        TableWriter::write(&mut bytes, |table| {
            table.value(b"say \"\n", Value091::LongString(b"a\\b\x01"));
            table.array(b"list", |array| {
                array.value(Value091::Void);
                array.value(Value091::F64(f64::NAN));
                array.value(Value091::Bytes(b"\xab"));
                array.value(Value091::Timestamp(0));
                array.value(Value091::I8(1));
            });
        });
        let table = Value091::Table(Table::trusted(&bytes[4..]));
        let expected = r#"{"say \"\n":"a\\b\u0001","list":[null,null,"ab","1970-01-01T00:00:00Z",1]}"#;
        assert_eq!(text091(table).as_deref(), Some(expected));
    }

    #[test]
    fn every_1_0_value_has_its_spelling() {
        let uuid = *b"\x00\x11\x22\x33\x44\x55\x66\x77\x88\x99\xaa\xbb\xcc\xdd\xee\xff";
        for (value, text) in [
            (Value10::Null, None),
            (Value10::Decimal32(1), None),
            (Value10::Ulong(u64::MAX), Some("18446744073709551615")),
            (Value10::Long(-1), Some("-1")),
            (Value10::Char('ß'), Some("ß")),
            (Value10::Symbol("s"), Some("s")),
            (Value10::Uuid(uuid), Some("00112233-4455-6677-8899-aabbccddeeff")),
            (Value10::Timestamp(-1), Some("1969-12-31T23:59:59.999Z")),
            (Value10::Binary(b"\x0f"), Some("0f")),
        ] {
            assert_eq!(text10(value).as_deref(), text, "{value:?}");
        }
    }
}
