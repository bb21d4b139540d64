//! Access to the columns of a row, by position, in the same way for every database.

use sqlx::{Error, Row};

/// A row of a reply.
pub(crate) trait Columns {
    fn int(&self, column: usize) -> Result<Option<i64>, Error>;
    fn bytes(&self, column: usize) -> Result<Vec<u8>, Error>;
    /// Returns a text. Other programs may have written it: bytes that are not UTF-8 are replaced.
    fn text(&self, column: usize) -> Result<Option<String>, Error>;
}

/// Implements [`Columns`] for a row with texts that are read as bytes: MySQL's tables store bytes, so that they do not depend on a
/// character set of the server, the database or the connection, and a text in a SQLite file need not be UTF-8.
#[cfg(any(feature = "mysql", feature = "sqlite"))]
macro_rules! impl_columns {
    ($row:ty) => {
        impl Columns for $row {
            fn int(&self, column: usize) -> Result<Option<i64>, Error> {
                self.try_get(column)
            }

            fn bytes(&self, column: usize) -> Result<Vec<u8>, Error> {
                self.try_get(column)
            }

            fn text(&self, column: usize) -> Result<Option<String>, Error> {
                let bytes: Option<Vec<u8>> = self.try_get(column)?;
                Ok(bytes.map(|bytes| String::from_utf8_lossy(&bytes).into_owned()))
            }
        }
    };
}

#[cfg(feature = "mysql")]
impl_columns!(sqlx::mysql::MySqlRow);

#[cfg(feature = "sqlite")]
impl_columns!(sqlx::sqlite::SqliteRow);

/// PostgreSQL sends bytes as hexadecimal digits; no server setting changes that format.
#[cfg(feature = "postgres")]
impl Columns for sqlx::postgres::PgRow {
    fn int(&self, column: usize) -> Result<Option<i64>, Error> {
        self.try_get(column)
    }

    fn bytes(&self, column: usize) -> Result<Vec<u8>, Error> {
        unhex(column, self.try_get(column)?)
    }

    fn text(&self, column: usize) -> Result<Option<String>, Error> {
        self.try_get(column)
    }
}

/// Decodes the bytes that a column stores as hexadecimal `digits`.
#[cfg(any(feature = "postgres", feature = "mysql"))]
pub(crate) fn unhex(column: usize, digits: &str) -> Result<Vec<u8>, Error> {
    let digit = |byte: u8| char::from(byte).to_digit(16);
    let pair = |pair: &[u8]| match *pair {
        [high, low] => u8::try_from(16 * digit(high)? + digit(low)?).ok(),
        _ => None,
    };
    require(column, digits.as_bytes().chunks(2).map(pair).collect())
}

/// Returns `value`, or an error instead of a panic if it is missing: polylock can't have written that row.
pub(crate) fn require<T>(column: usize, value: Option<T>) -> Result<T, Error> {
    value.ok_or_else(|| Error::ColumnDecode {
        index: column.to_string(),
        source: "the row has an invalid value, which polylock did not write".into(),
    })
}
