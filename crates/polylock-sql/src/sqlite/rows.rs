//! Access to the columns of a SQLite row.

use sqlx::{Error, Row, sqlite::SqliteRow};

use crate::engine::rows::Columns;

impl Columns for SqliteRow {
    fn int(&self, column: usize) -> Result<Option<i64>, Error> {
        self.try_get(column)
    }

    fn bytes(&self, column: usize) -> Result<Vec<u8>, Error> {
        self.try_get(column)
    }

    fn text(&self, column: usize) -> Result<Option<String>, Error> {
        // Read as bytes: a text in a file need not be UTF-8.
        let bytes: Option<Vec<u8>> = self.try_get(column)?;
        Ok(bytes.map(|bytes| String::from_utf8_lossy(&bytes).into_owned()))
    }
}
