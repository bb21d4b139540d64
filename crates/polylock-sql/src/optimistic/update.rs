//! One row, its key, what it is set to, and the condition: the same for tokens and versions.

use std::{fmt, fmt::Write};

use sqlx::{
    Arguments, AssertSqlSafe, Connection, Encode, SqlSafeStr, SqlStr, Transaction, Type, error::BoxDynError,
};

use super::{
    Error, InvalidIdentifier, Result, Supported,
    identifier::{column, table},
};

/// Adds a value to the arguments of a statement, as often as it is needed.
type Bind<'q, DB> =
    Box<dyn Fn(&mut <DB as sqlx::Database>::Arguments) -> Result<(), BoxDynError> + Send + 'q>;

/// A column and the value that it has or gets.
struct Term<'q, DB: Supported> {
    column: &'q str,
    bind: Bind<'q, DB>,
}

/// `UPDATE table SET guard = becomes, ... WHERE key AND guard <is> value`.
pub(super) struct Update<'q, DB: Supported> {
    pub(super) table: &'q str,
    /// The column of the token or version. NULL, as in rows older than the column, counts as 0.
    pub(super) guard: &'q str,
    keys: Vec<Term<'q, DB>>,
    sets: Vec<Term<'q, DB>>,
}

/// What the guard must be for the row to be written, and what it becomes.
pub(super) struct Condition {
    pub(super) is: &'static str,
    pub(super) value: i64,
    pub(super) becomes: i64,
}

impl<'q, DB: Supported> Update<'q, DB> {
    pub(super) fn new(table: &'q str, guard: &'q str) -> Self {
        Self { table, guard, keys: Vec::new(), sets: Vec::new() }
    }

    pub(super) fn key<T>(&mut self, column: &'q str, value: T)
    where
        T: Encode<'q, DB> + Type<DB> + Send + 'q,
    {
        self.keys.push(Term::new(column, value));
    }

    pub(super) fn set<T>(&mut self, column: &'q str, value: T)
    where
        T: Encode<'q, DB> + Type<DB> + Send + 'q,
    {
        self.sets.push(Term::new(column, value));
    }

    /// Writes the row if it meets the `condition`. `refused` tells whether the guard it has is the reason why not.
    ///
    /// The usual case is one statement. A count of zero can mean four things, and only a second look tells them apart:
    /// no such row; a guard that refuses; a row that came just now; or a server that counts *changed* rows, to which
    /// writing what is there already is no change (MySQL, unless the connection asked for found rows: sqlx does, but
    /// newer versions let people switch it off, and some proxies decide it for them). Any count but zero is a row that
    /// met the condition, by either way of counting.
    pub(super) async fn run(
        self,
        connection: &mut DB::Connection,
        condition: Condition,
        refused: impl Fn(i64) -> Option<Error> + Send,
    ) -> Result<()> {
        let (sql, arguments) = self.update(&condition)?;
        let rows = DB::execute(connection, sql, arguments).await?;
        if rows > 0 {
            return self.one(rows);
        }
        let (sql, arguments) = self.look()?;
        let guards = DB::numbers(connection, sql, arguments).await?;
        self.judge(&guards, &refused)?;

        // It would be accepted as it is now. Once more, with the row locked in between, so that the last two of the four
        // become one: it meets the condition, and whether it changes does not matter.
        let (look, looked) = self.look()?;
        let (sql, arguments) = self.update(&condition)?;
        let mut transaction: Transaction<'_, DB> = connection.begin().await?;
        let guards = DB::numbers(&mut transaction, look, looked).await?;
        self.judge(&guards, &refused)?;
        let rows = DB::execute(&mut transaction, sql, arguments).await?;
        transaction.commit().await?;
        self.one(rows.max(1))
    }

    /// What a second look has found.
    fn judge(&self, guards: &[i64], refused: impl Fn(i64) -> Option<Error>) -> Result<()> {
        match guards {
            [] => Err(Error::Missing { table: self.table.to_owned() }),
            [guard] => refused(*guard).map_or(Ok(()), Err),
            _ => self.one(u64::try_from(guards.len()).unwrap_or(u64::MAX)),
        }
    }

    /// A key that names more than one row is a mistake that must not pass in silence.
    fn one(&self, rows: u64) -> Result<()> {
        if rows == 1 { Ok(()) } else { Err(Error::NotUnique { table: self.table.to_owned(), rows }) }
    }

    fn update(&self, condition: &Condition) -> Result<(SqlStr, DB::Arguments)> {
        let mut set_before = vec![self.guard];
        for term in &self.sets {
            if set_before.iter().any(|column| column.eq_ignore_ascii_case(term.column)) {
                return Err(InvalidIdentifier::Twice { column: term.column.to_owned() }.into());
            }
            set_before.push(term.column);
        }
        let guard = column(self.guard, DB::QUOTE)?;
        let mut text = Text::<DB>::new(format!("UPDATE {} SET {guard} = ", table(self.table, DB::QUOTE)?));
        text.number(condition.becomes)?;
        for set in &self.sets {
            text.push(&format!(", {} = ", column(set.column, DB::QUOTE)?));
            text.bind(&set.bind)?;
        }
        self.filter(&mut text)?;
        text.push(&format!(" AND coalesce({guard}, 0) {} ", condition.is));
        text.number(condition.value)?;
        Ok(text.finish())
    }

    fn look(&self) -> Result<(SqlStr, DB::Arguments)> {
        let guard = column(self.guard, DB::QUOTE)?;
        let mut text = Text::<DB>::new(format!(
            "SELECT CAST(coalesce({guard}, 0) AS {}) FROM {}",
            DB::INTEGER,
            table(self.table, DB::QUOTE)?
        ));
        self.filter(&mut text)?;
        text.push(DB::LOCKING);
        Ok(text.finish())
    }

    fn filter(&self, text: &mut Text<DB>) -> Result<()> {
        if self.keys.is_empty() {
            return Err(InvalidIdentifier::NoKey { table: self.table.to_owned() }.into());
        }
        for (index, key) in self.keys.iter().enumerate() {
            text.push(if index == 0 { " WHERE " } else { " AND " });
            text.push(&format!("{} = ", column(key.column, DB::QUOTE)?));
            text.bind(&key.bind)?;
        }
        Ok(())
    }
}

impl<'q, DB: Supported> Term<'q, DB> {
    fn new<T>(column: &'q str, value: T) -> Self
    where
        T: Encode<'q, DB> + Type<DB> + Send + 'q,
    {
        Self { column, bind: Box::new(move |arguments| arguments.add(&value)) }
    }
}

/// A statement and its arguments, which come in the order of the text: MySQL counts them.
struct Text<DB: Supported> {
    sql: String,
    arguments: DB::Arguments,
}

impl<DB: Supported> Text<DB> {
    fn new(sql: String) -> Self {
        Self { sql, arguments: DB::Arguments::default() }
    }

    fn push(&mut self, sql: &str) {
        self.sql.push_str(sql);
    }

    fn number(&mut self, value: i64) -> Result<()> {
        DB::add(&mut self.arguments, value)?;
        self.placeholder();
        Ok(())
    }

    fn bind(&mut self, bind: &Bind<'_, DB>) -> Result<()> {
        bind(&mut self.arguments).map_err(sqlx::Error::Encode)?;
        self.placeholder();
        Ok(())
    }

    fn placeholder(&mut self) {
        let placed = self.arguments.format_placeholder(&mut self.sql);
        debug_assert!(placed.is_ok(), "a String takes everything");
    }

    fn finish(self) -> (SqlStr, DB::Arguments) {
        // All names in it were checked and are quoted, and all values are arguments.
        (AssertSqlSafe(self.sql).into_sql_str(), self.arguments)
    }
}

impl<DB: Supported> fmt::Debug for Update<'_, DB> {
    /// The columns without the values, which may be nobody's business.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut columns = String::new();
        for term in self.keys.iter().chain(&self.sets) {
            write!(columns, "{}{}", if columns.is_empty() { "" } else { ", " }, term.column)?;
        }
        write!(f, "{} ({columns})", self.table)
    }
}

#[cfg(test)]
#[cfg(all(feature = "sqlite", feature = "postgres", feature = "mysql"))]
mod tests {
    use super::*;

    /// The two statements of an update with a key of two columns, given in any order.
    fn texts<DB: Supported>() -> [String; 2]
    where
        i64: Encode<'static, DB> + Type<DB>,
    {
        let mut update = Update::<DB>::new("shop.order", "fence");
        update.key("id", 1);
        update.set("state", 2);
        update.key("part", 3);
        let condition = Condition { is: "<=", value: 7, becomes: 7 };
        [update.update(&condition), update.look()].map(|statement| statement.unwrap().0.as_str().to_owned())
    }

    #[test]
    fn statements_read_as_documented() {
        let postgres = [
            "UPDATE \"shop\".\"order\" SET \"fence\" = $1, \"state\" = $2 WHERE \"id\" = $3 AND \"part\" = $4 \
             AND coalesce(\"fence\", 0) <= $5",
            "SELECT CAST(coalesce(\"fence\", 0) AS bigint) FROM \"shop\".\"order\" WHERE \"id\" = $1 AND \"part\" = $2 \
             FOR UPDATE",
        ];
        assert_eq!(texts::<sqlx::Postgres>(), postgres);
        let others = postgres.map(|text| {
            let text = text.replace('"', "`");
            (1..=5).fold(text, |text, number| text.replace(&format!("${number}"), "?"))
        });
        assert_eq!(texts::<sqlx::MySql>(), others.clone().map(|text| text.replace("bigint", "SIGNED")));
        let sqlite = others.map(|text| text.replace("bigint", "INTEGER").replace(" FOR UPDATE", ""));
        assert_eq!(texts::<sqlx::Sqlite>(), sqlite);
    }

    #[test]
    fn debug_shows_no_values() {
        let mut update = Update::<sqlx::Sqlite>::new("people", "fence");
        update.key("id", 42);
        update.set("diagnosis", "secret");
        assert_eq!(format!("{update:?}"), "people (id, diagnosis)");
    }
}
