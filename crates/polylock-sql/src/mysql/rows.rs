//! Reads the columns of a row. Names, owners and labels are bytes in the tables, so they do not depend on a character set of the
//! server, the database or the connection.

use sqlx::{Error, Row, mysql::MySqlRow};

use crate::engine::rows::Columns;

impl Columns for MySqlRow {
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
