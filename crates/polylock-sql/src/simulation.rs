//! The driver of simulated processes, for tests in virtual time. This module is unstable: it is no part of the interface that versions
//! promise.
//!
//! The drivers of the databases open their own sockets, so the simulation replaces them, and nothing above them. A message is a statement
//! or its rows, as text that ends with a zero byte. The statements are those that a real server gets.

use std::{
    io::{self, ErrorKind},
    marker::PhantomData,
};

use polylock_core::{Fault, simulation};
use sqlx::{Error, SqlStr};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::engine::{
    columns::{Columns, require, unhex},
    rows::hex,
    server::{
        driver::{ClassifyErrors, Driver, ErrorClass},
        literal::Literals,
    },
};

/// The end of a message.
pub const END: u8 = 0;

/// The first character of a notification, which no reply begins with.
const NOTIFICATION: char = '!';

/// A value of a row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Value {
    /// `NULL`.
    Null,
    /// A number.
    Int(i64),
    /// Bytes, or a text.
    Bytes(Vec<u8>),
}

/// A row of a reply.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Row(pub Vec<Value>);

/// Encodes the rows of a reply.
#[must_use]
pub fn encode(rows: &[Row]) -> Vec<u8> {
    let value = |value: &Value| match value {
        Value::Null => "-".to_owned(),
        Value::Int(number) => number.to_string(),
        Value::Bytes(bytes) => format!("x{}", hex(bytes)),
    };
    let row = |Row(values): &Row| values.iter().map(value).collect::<Vec<_>>().join(" ");
    let mut text = rows.iter().map(row).collect::<Vec<_>>().join("\n").into_bytes();
    text.push(END);
    text
}

/// Encodes a notification.
#[must_use]
pub fn encode_notification(channel: &str, payload: &str) -> Vec<u8> {
    let mut text = format!("{NOTIFICATION}{channel} {payload}").into_bytes();
    text.push(END);
    text
}

/// Decodes a notification: its channel and its payload. Returns `None` for the rows of a reply.
pub(crate) fn decode_notification(text: &str) -> Option<(String, String)> {
    let (channel, payload) = text.strip_prefix(NOTIFICATION)?.split_once(' ')?;
    Some((channel.to_owned(), payload.to_owned()))
}

/// Decodes the rows of a reply.
pub(crate) fn decode(text: &str) -> Result<Vec<Row>, Error> {
    let value = |(column, text): (usize, &str)| match text.strip_prefix('x') {
        Some(digits) => unhex(column, digits).map(Value::Bytes),
        None if text == "-" => Ok(Value::Null),
        None => require(column, text.parse().ok()).map(Value::Int),
    };
    let row = |line: &str| line.split(' ').enumerate().map(value).collect::<Result<_, _>>().map(Row);
    text.lines().map(row).collect()
}

impl Columns for Row {
    fn int(&self, column: usize) -> Result<Option<i64>, Error> {
        match self.0.get(column) {
            Some(Value::Int(number)) => Ok(Some(*number)),
            Some(Value::Null) => Ok(None),
            _ => require(column, None),
        }
    }

    fn bytes(&self, column: usize) -> Result<Vec<u8>, Error> {
        match self.0.get(column) {
            Some(Value::Bytes(bytes)) => Ok(bytes.clone()),
            _ => require(column, None),
        }
    }

    fn text(&self, column: usize) -> Result<Option<String>, Error> {
        match self.0.get(column) {
            Some(Value::Bytes(bytes)) => Ok(Some(String::from_utf8_lossy(bytes).into_owned())),
            Some(Value::Null) => Ok(None),
            _ => require(column, None),
        }
    }
}

/// A connection of a simulated process.
pub(crate) type Stream = Box<dyn simulation::Stream>;

/// Opens a connection.
pub(crate) async fn open(address: &str) -> Result<Stream, Error> {
    let connecting = simulation::connect(address).ok_or_else(|| io::Error::other("a real process"))?;
    Ok(connecting.await?)
}

/// Sends a statement.
pub(crate) async fn send(stream: &mut Stream, sql: &SqlStr) -> Result<(), Error> {
    let mut message = sql.as_str().as_bytes().to_vec();
    message.push(END);
    Ok(stream.write_all(&message).await?)
}

/// Receives the next message. `received` has the bytes that were received and not returned yet.
///
/// # Cancel safety
/// Yes.
pub(crate) async fn receive(stream: &mut Stream, received: &mut Vec<u8>) -> Result<String, Error> {
    loop {
        if let Some(end) = received.iter().position(|byte| *byte == END) {
            let message: Vec<u8> = received.drain(..=end).take(end).collect();
            return Ok(String::from_utf8_lossy(&message).into_owned());
        }
        if stream.read_buf(received).await? == 0 {
            return Err(io::Error::from(ErrorKind::UnexpectedEof).into());
        }
    }
}

/// The driver of simulated processes, in place of the driver `DB`.
#[derive(Debug)]
pub(crate) struct Simulated<DB>(PhantomData<DB>);

impl<DB: Driver> Driver for Simulated<DB> {
    type Options = String;
    type Connection = Stream;
    type Row = Row;

    fn is_local(_: &String) -> bool {
        false
    }

    async fn connect(address: &String) -> Result<Stream, Error> {
        open(address).await
    }

    async fn fetch(stream: &mut Stream, sql: SqlStr) -> Result<Vec<Row>, Error> {
        send(stream, &sql).await?;
        decode(&receive(stream, &mut Vec::new()).await?)
    }
}

impl<DB: Literals> Literals for Simulated<DB> {
    fn bytes(text: &mut String, digits: &str) {
        DB::bytes(text, digits);
    }

    fn text(text: &mut String, digits: &str) {
        DB::text(text, digits);
    }

    fn pair(text: &mut String, first: &str, second: &str) {
        DB::pair(text, first, second);
    }
}

impl<DB: ClassifyErrors> ClassifyErrors for Simulated<DB> {
    const BACKEND: &'static str = DB::BACKEND;

    fn error_class(error: &Error) -> ErrorClass {
        DB::error_class(error)
    }

    fn fault(error: &Error) -> Fault {
        DB::fault(error)
    }

    fn advice(error: &Error) -> Option<String> {
        DB::advice(error)
    }

    fn rejects_credentials(error: &Error) -> bool {
        DB::rejects_credentials(error)
    }

    fn is_missing_database(error: &Error) -> bool {
        DB::is_missing_database(error)
    }

    fn message(error: &Error) -> Option<String> {
        DB::message(error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_survive_a_round_trip() {
        let rows = [
            Row(vec![Value::Null, Value::Int(-7), Value::Bytes(vec![0, 255])]),
            Row(vec![Value::Bytes(Vec::new()), Value::Int(i64::MAX)]),
        ];
        let text = encode(&rows);
        assert_eq!(text.iter().position(|byte| *byte == END), Some(text.len() - 1));
        assert_eq!(decode(str::from_utf8(&text[..text.len() - 1]).unwrap()).unwrap(), rows);
        assert!(decode("").unwrap().is_empty());
        for invalid in ["x1", "xzz", "seven", "1  2"] {
            assert!(decode(invalid).is_err(), "{invalid}");
        }
    }
    #[test]
    fn notifications_are_no_rows() {
        let text = encode_notification("polylock_breaks", "6a 6b");
        let text = str::from_utf8(&text[..text.len() - 1]).unwrap();
        assert_eq!(decode_notification(text), Some(("polylock_breaks".to_owned(), "6a 6b".to_owned())));
        assert!(decode(text).is_err());
        assert_eq!(decode_notification("7 -"), None);
    }
}
