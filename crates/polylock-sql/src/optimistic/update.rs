//! An update of one row: its key, its new values, and the condition, in the same way for tokens and versions.

use std::fmt;

use sqlx::{
    Arguments, AssertSqlSafe, Connection, Encode, SqlSafeStr, SqlStr, Transaction, Type, error::BoxDynError,
};

use super::{
    Error, InvalidIdentifier, Result, Supported,
    identifier::{column, table},
};

/// Adds a value to the arguments of a statement. It can be called several times.
type Bind<'q, DB> =
    Box<dyn Fn(&mut <DB as sqlx::Database>::Arguments) -> Result<(), BoxDynError> + Send + 'q>;

/// A column and the value that it has or is set to.
struct Term<'q, DB: Supported> {
    column: &'q str,
    bind: Bind<'q, DB>,
}

/// An update of one row of your table under a condition on its guard, a column with a token or a version: a
/// [`FencedUpdate`](super::FencedUpdate) if `G` is a [`FencingToken`](polylock_core::FencingToken), a
/// [`VersionedUpdate`](super::VersionedUpdate) if it is the version's number.
#[must_use = "an update does nothing until it is executed"]
pub struct Update<'q, DB: Supported, G> {
    pub(super) table: &'q str,
    /// The value that the row's guard is compared with.
    pub(super) expected: G,
    /// The column of the guard. NULL, as in rows older than the column, counts as 0.
    guard: &'q str,
    keys: Vec<Term<'q, DB>>,
    sets: Vec<Term<'q, DB>>,
}

/// `guard <operator> value`, the condition for the row to be written, and the guard's new value.
pub(super) struct Condition {
    pub(super) operator: &'static str,
    pub(super) value: i64,
    pub(super) new_value: i64,
}

impl<'q, DB: Supported, G> Update<'q, DB, G> {
    pub(super) fn with_guard(table: &'q str, guard: &'q str, expected: G) -> Self {
        Self { table, expected, guard, keys: Vec::new(), sets: Vec::new() }
    }

    /// Sets the name of the column for the guard; `fence` for a token and `version` for a version by default.
    pub fn column(self, column: &'q str) -> Self {
        Self { guard: column, ..self }
    }

    /// Selects the row in which `column` has this value. Call it once for each column of the primary key.
    pub fn key<T>(mut self, column: &'q str, value: T) -> Self
    where
        T: Encode<'q, DB> + Type<DB> + Send + 'q,
    {
        self.keys.push(Term::new(column, value));
        self
    }

    /// Sets `column` to this value.
    pub fn set<T>(mut self, column: &'q str, value: T) -> Self
    where
        T: Encode<'q, DB> + Type<DB> + Send + 'q,
    {
        self.sets.push(Term::new(column, value));
        self
    }

    /// Writes the row if it meets the `condition`. `refused` returns the error if a given guard is the reason for a count of
    /// zero.
    ///
    /// The usual case is one statement. A count of zero has one of four causes, and only another read distinguishes them: the row
    /// does not exist; the guard refuses; the row was inserted just now; or the server counts *changed* rows and the row already
    /// had these values (MySQL, unless the connection requested found rows: sqlx does, but newer versions make it optional, and
    /// some proxies decide it). Any other count is the number of rows that met the condition, in both ways of counting.
    pub(super) async fn run(
        self,
        connection: &mut DB::Connection,
        condition: Condition,
        refused: impl Fn(i64) -> Option<Error> + Send,
    ) -> Result<()> {
        let (sql, arguments) = self.update(&condition)?;
        let rows = DB::execute(connection, sql, arguments).await?;
        if rows > 0 {
            return self.require_one(rows);
        }
        let (sql, arguments) = self.select()?;
        let guards = DB::numbers(connection, sql, arguments).await?;
        self.check_guards(&guards, &refused)?;

        // The condition is met now. The update is repeated with the row locked, so that the last two of the four causes need no
        // distinction: the row meets the condition, and may or may not change.
        let (select, select_arguments) = self.select()?;
        let (sql, arguments) = self.update(&condition)?;
        let mut transaction: Transaction<'_, DB> = connection.begin().await?;
        let guards = DB::numbers(&mut transaction, select, select_arguments).await?;
        self.check_guards(&guards, &refused)?;
        let rows = DB::execute(&mut transaction, sql, arguments).await?;
        transaction.commit().await?;
        self.require_one(rows.max(1))
    }

    /// Evaluates the guards that the second read has found.
    fn check_guards(&self, guards: &[i64], refused: impl Fn(i64) -> Option<Error>) -> Result<()> {
        match guards {
            [] => Err(Error::Missing { table: self.table.to_owned() }),
            [guard] => refused(*guard).map_or(Ok(()), Err),
            _ => self.require_one(u64::try_from(guards.len()).unwrap_or(u64::MAX)),
        }
    }

    /// Returns an error for a key that matches several rows, because that is a mistake in the program.
    fn require_one(&self, rows: u64) -> Result<()> {
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
        text.number(condition.new_value)?;
        for set in &self.sets {
            text.push(&format!(", {} = ", column(set.column, DB::QUOTE)?));
            text.bind(&set.bind)?;
        }
        self.filter(&mut text)?;
        text.push(&format!(" AND coalesce({guard}, 0) {} ", condition.operator));
        text.number(condition.value)?;
        Ok(text.finish())
    }

    fn select(&self) -> Result<(SqlStr, DB::Arguments)> {
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

/// A statement and its arguments in the order of the text, because MySQL's placeholders have no numbers.
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
        // All names in the text were checked and are quoted, and all values are arguments.
        (AssertSqlSafe(self.sql).into_sql_str(), self.arguments)
    }
}

impl<DB: Supported, G: fmt::Debug> fmt::Debug for Update<'_, DB, G> {
    /// Shows the columns without their values, which may be confidential.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let columns: Vec<_> = self.keys.iter().chain(&self.sets).map(|term| term.column).collect();
        let expected = &self.expected;
        f.debug_struct("Update")
            .field("table", &self.table)
            .field("columns", &columns)
            .field("expected", expected)
            .finish()
    }
}

#[cfg(test)]
#[cfg(all(feature = "sqlite", feature = "postgres", feature = "mysql"))]
mod tests {
    use super::*;

    /// Returns the two statements of an update with a key of two columns, given in any order.
    fn texts<DB: Supported>() -> [String; 2]
    where
        i64: Encode<'static, DB> + Type<DB>,
    {
        let update = Update::<DB, i64>::with_guard("shop.order", "fence", 7);
        let update = update.key("id", 1).set("state", 2).key("part", 3);
        let condition = Condition { operator: "<=", value: 7, new_value: 7 };
        [update.update(&condition), update.select()].map(|statement| statement.unwrap().0.as_str().to_owned())
    }

    #[test]
    fn statements_are_as_documented() {
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
        let update = Update::<sqlx::Sqlite, i64>::with_guard("people", "fence", 7);
        let update = update.key("id", 42).set("diagnosis", "secret");
        let shown = r#"Update { table: "people", columns: ["id", "diagnosis"], expected: 7 }"#;
        assert_eq!(format!("{update:?}"), shown);
    }
}
