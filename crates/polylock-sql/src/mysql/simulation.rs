//! The store on the connections of a simulated process, for tests in virtual time. This module is unstable: it is no part of the interface
//! that versions promise.
//!
//! The driver opens its own sockets, so the simulation replaces the driver, and nothing above it. A message is a statement or its rows, as
//! text that ends with a zero byte. The statements are those that a real server gets.

use std::io::{self, ErrorKind};

use polylock_core::{Fault, Result, Store, simulation};
use sqlx::{Error, MySql, SqlStr};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::{config::Config, dialect::MySqlDialect};
use crate::engine::{
    LeaseBackend,
    columns::{Columns, require, unhex},
    rows::hex,
    server::{
        driver::{ClassifyErrors, Driver, ErrorClass},
        literal::Literals,
        pool::Server,
    },
    source::Source,
};

/// The end of a message.
pub const END: u8 = 0;

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

/// Opens the store on the simulated server at `address`, which has the tables and the routines.
///
/// # Errors
/// [`polylock_core::Error::Unavailable`] if the server can't be reached.
///
/// # Cancel safety
/// Yes.
pub async fn connect(config: Config, address: String) -> Result<Store> {
    polylock_core::io::run(super::NAME, async move {
        let (server, _) = Server::<Simulated>::pools(&Source::new(address.clone()), &address, &config.common);
        server.acquire_to_open().await?.return_to_pool();
        Ok(LeaseBackend::open(MySqlDialect::new(&config, server, true)).await)
    })
    .await?
}

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

fn decode(text: &str) -> Result<Vec<Row>, Error> {
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

/// The driver of simulated processes.
#[derive(Debug)]
struct Simulated;

impl Driver for Simulated {
    type Options = String;
    type Connection = Box<dyn simulation::Stream>;
    type Row = Row;

    fn is_local(_: &String) -> bool {
        false
    }

    async fn connect(address: &String) -> Result<Self::Connection, Error> {
        let connecting = simulation::connect(address).ok_or_else(|| io::Error::other("a real process"))?;
        Ok(connecting.await?)
    }

    async fn fetch(connection: &mut Self::Connection, sql: SqlStr) -> Result<Vec<Row>, Error> {
        let mut message = sql.as_str().as_bytes().to_vec();
        message.push(END);
        connection.write_all(&message).await?;
        let mut reply = Vec::new();
        while reply.last() != Some(&END) {
            if connection.read_buf(&mut reply).await? == 0 {
                return Err(io::Error::from(ErrorKind::UnexpectedEof).into());
            }
        }
        reply.pop();
        decode(&String::from_utf8_lossy(&reply))
    }
}

impl Literals for Simulated {
    fn bytes(text: &mut String, digits: &str) {
        <MySql as Literals>::bytes(text, digits);
    }

    fn text(text: &mut String, digits: &str) {
        <MySql as Literals>::text(text, digits);
    }

    #[cfg(any(feature = "postgres", test))]
    fn pair(text: &mut String, first: &str, second: &str) {
        <MySql as Literals>::pair(text, first, second);
    }
}

impl ClassifyErrors for Simulated {
    const BACKEND: &'static str = super::NAME;

    fn error_class(error: &Error) -> ErrorClass {
        <MySql as ClassifyErrors>::error_class(error)
    }

    fn fault(error: &Error) -> Fault {
        <MySql as ClassifyErrors>::fault(error)
    }

    fn advice(error: &Error) -> Option<String> {
        <MySql as ClassifyErrors>::advice(error)
    }

    fn is_missing_database(_: &Error) -> bool {
        false
    }

    fn message(error: &Error) -> Option<String> {
        <MySql as ClassifyErrors>::message(error)
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
}
