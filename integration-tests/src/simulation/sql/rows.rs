//! Rows and arguments, as the timeline shows them.

use std::fmt::Write;

use polylock_sql::simulation::{Row, Value};

use super::statement::Argument;

/// Returns hexadecimal digits.
#[must_use]
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        write!(text, "{byte:02X}").ok();
        text
    })
}

/// Returns the arguments in a readable form.
#[must_use]
pub fn shown(arguments: &[Argument]) -> String {
    let one = |argument: &Argument| match argument {
        Argument::Int(number) => number.to_string(),
        Argument::Bytes(bytes) => match str::from_utf8(bytes) {
            Ok(text) if text.chars().all(|c| c.is_ascii_graphic()) => text.to_owned(),
            _ => format!("#{}", hex(&bytes[..bytes.len().min(4)])),
        },
    };
    arguments.iter().map(one).collect::<Vec<_>>().join(" ")
}

/// Returns rows in a readable form.
#[must_use]
pub fn shown_rows(rows: &[Row]) -> String {
    let value = |value: &Value| match value {
        Value::Null => "NULL".to_owned(),
        Value::Int(number) => number.to_string(),
        Value::Bytes(bytes) => shown(&[Argument::Bytes(bytes.clone())]),
    };
    let row = |row: &Row| row.0.iter().map(value).collect::<Vec<_>>().join(" ");
    rows.iter().map(row).collect::<Vec<_>>().join("; ")
}
