//! Reads the columns of a PostgreSQL row. Bytes are sent as hexadecimal digits; no server setting changes that format.

use sqlx::{Error, Row, postgres::PgRow};

use crate::engine::rows::{Columns, unhex};

impl Columns for PgRow {
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
