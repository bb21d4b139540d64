//! Raising the tokens of a server's locks: see [`polylock_core::RaiseToken`].

use polylock_core::{Fault, FencingToken, LockName, Operation, Result};

use super::{
    driver::Driver,
    literal::{Arg, Template},
    pool::Server,
};
use crate::engine::{columns::Columns, dialect::bytes};

impl<DB: Driver> Server<DB> {
    /// Sends `statements`, with the name as `$1` and the number as `$2`, one after the other until the tokens of the lock are greater than
    /// `to`. Each returns one row: a number that no earlier token of the lock exceeds, and one that all later tokens exceed. Returns the
    /// first number.
    ///
    /// # Errors
    /// The errors of [`send`](Self::send), and a temporary one if no statement has raised the tokens.
    pub(crate) async fn raise(
        &self,
        statements: &[Template],
        name: &LockName,
        to: FencingToken,
    ) -> Result<FencingToken> {
        let arguments = [Arg::Bytes(bytes(name)), Arg::Int(to.as_i64())];
        for statement in statements {
            let read = |rows: &[DB::Row]| {
                let row = rows.first().ok_or(sqlx::Error::RowNotFound)?;
                Ok((row.int(0)?.and_then(FencingToken::new), row.int(1)?))
            };
            let (before, reached) = self.query(Operation::Claim, statement, &arguments, read).await?;
            if let (Some(before), true) = (before, reached >= Some(to.as_i64())) {
                return Ok(before);
            }
        }
        let advice =
            format!("the tokens could not be raised to {to}: the table with the last token was changed");
        Err(self.at(Operation::Claim).advise(Fault::Temporary, advice))
    }
}
