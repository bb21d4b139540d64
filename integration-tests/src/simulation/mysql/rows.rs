//! Rows, as the routines return them and as the timeline shows them.

use std::fmt::Write;

use polylock_sql::simulation::{Row, Value};

use super::statement::Argument;

/// The outcome of one check for waiters.
#[derive(Debug)]
pub struct Watched {
    /// The waiters that hold the lock now.
    pub grants: String,
    /// The requests that nobody need wait for any more.
    pub gone: String,
    /// The number of waiters ahead of the one that is next.
    pub nearest: i64,
}

impl Watched {
    /// Returns true if the statement need not wait.
    #[must_use]
    pub const fn is_final(&self) -> bool {
        !self.grants.is_empty() || !self.gone.is_empty()
    }

    /// Returns the row; `before` is the outcome of the check before.
    #[must_use]
    pub fn row(self, before: Option<i64>) -> Row {
        let moved = before.is_some_and(|before| before != self.nearest);
        let [grants, gone] = [self.grants, self.gone].map(|text| Value::Bytes(text.into_bytes()));
        Row(vec![grants, gone, Value::Int(moved.into()), Value::Int(self.nearest)])
    }

    /// Returns the number of waiters ahead of the one that is next.
    #[must_use]
    pub const fn nearest(&self) -> i64 {
        self.nearest
    }
}

/// Returns the reply to a claim that holds the lock.
#[must_use]
pub fn held(token: i64, left: i64, now: i64) -> Row {
    Row(vec![Value::Int(token), Value::Int(left), Value::Null, Value::Int(0), Value::Int(now)])
}

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
