//! The statements of a fence for programs that do not use this library, in any language.

use std::{fmt, marker::PhantomData};

use super::{
    InvalidIdentifier, Supported, identifier,
    supported::{driver::ScriptPart, fill_names},
};

/// The column of the token in a guarded table, unless another one is named.
const COLUMN: &str = "fencing_token";

/// The statements that create a fence in a database, so that programs in any language are refused with a stale token: a function that
/// records the token of a resource, or a trigger of one of your tables.
///
/// The store's configuration has it ([`postgres::Config::fence_script`](crate::postgres::Config::fence_script), and the same for the
/// other databases), and `polylock schema --fence` prints it. [`Fences`](super::Fences) with the same table shares the fences:
/// `Fences::new("public.polylock_fences")` on PostgreSQL, `Fences::new("polylock_fences")` on the others.
///
/// | database | call, in the transaction of the write and before it | error for a stale token |
/// |---|---|---|
/// | PostgreSQL | `SELECT public.polylock_fence('orders/42', 7)` | SQLSTATE `23PLF` |
/// | MySQL, MariaDB | `CALL polylock_fence('orders/42', 7)` | SQLSTATE `23PLF`, number 1644 |
/// | SQLite | `INSERT INTO polylock_fence VALUES ('orders/42', 7)` | `SQLITE_CONSTRAINT_TRIGGER` (1811) |
///
/// An equal token is accepted. The class 23 is that of integrity constraints, so drivers report the error as one and do not retry.
///
/// ```
/// # #[cfg(feature = "postgres")] {
/// let script = polylock_sql::postgres::Config::new("postgres://db/app")?.fence_script()?;
/// assert!(script.create().contains("FUNCTION \"public\".\"polylock_fence\"("));
/// let script = script.for_table("orders", None)?;
/// assert!(script.create().contains("BEFORE UPDATE ON \"public\".\"orders\""));
/// # }
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// ```
pub struct FenceScript<DB> {
    /// The schema of the function and of tables that are named without one; `None` is the current one.
    schema: Option<String>,
    prefix: String,
    table: Option<Table>,
    database: PhantomData<fn() -> DB>,
}

/// A table with a column for the token. All names were checked.
#[derive(Debug, Clone)]
struct Table {
    schema: Option<String>,
    name: String,
    column: String,
}

impl<DB: Supported> FenceScript<DB> {
    /// Creates the statements of a function. `schema` and `prefix` must have been checked.
    pub(crate) fn new(schema: Option<&str>, prefix: &str) -> Self {
        Self {
            schema: schema.map(ToOwned::to_owned),
            // As in the other statements: the prefix is case-insensitive.
            prefix: prefix.to_ascii_lowercase(),
            table: None,
            database: PhantomData,
        }
    }

    /// Changes the statements to those of a trigger on `table` (or `schema.table`): it refuses an update of a row that sets `column`
    /// (`fencing_token` by default) to a smaller token or to NULL. The column must exist: `fencing_token BIGINT`.
    ///
    /// The names must be written as they are in the database, because they are quoted.
    ///
    /// # Errors
    /// [`InvalidIdentifier`] if a name is not valid, or the name of the trigger would be too long.
    pub fn for_table(mut self, table: &str, column: Option<&str>) -> Result<Self, InvalidIdentifier> {
        let column = column.unwrap_or(COLUMN);
        identifier::check_table(table)?;
        identifier::column(column, DB::QUOTE)?;
        let (schema, name) =
            table.split_once('.').map_or((None, table), |(schema, name)| (Some(schema), name));
        let schema = schema.map(ToOwned::to_owned).or_else(|| self.schema.clone());
        let trigger = format!("{}_fence_{name}", self.prefix);
        if trigger.len() > identifier::MAX_BYTES {
            return Err(InvalidIdentifier::LongTrigger { table: name.to_owned(), trigger });
        }
        self.table = Some(Table { schema, name: name.to_owned(), column: column.to_owned() });
        Ok(self)
    }

    /// Returns the statements that create the fence, one by one, for a migration tool. They may be run again, and then replace a trigger;
    /// MySQL refuses to, so run [`drop`](Self::drop) before.
    #[must_use]
    pub fn statements(&self) -> Vec<String> {
        let part = if self.table.is_some() { ScriptPart::Trigger } else { ScriptPart::Function };
        self.fill(DB::script(part))
    }

    /// Returns the statements that create the fence, as a script for the database's own client.
    #[must_use]
    pub fn create(&self) -> String {
        DB::client_script(&self.statements())
    }

    /// Returns the statements that remove the fence, as a script for the database's own client. Without its fences a database accepts
    /// any token.
    #[must_use]
    pub fn drop(&self) -> String {
        DB::client_script(&self.drop_statements())
    }

    /// Returns the statements of [`drop`](Self::drop), one by one.
    #[must_use]
    pub fn drop_statements(&self) -> Vec<String> {
        let part = if self.table.is_some() { ScriptPart::DropTrigger } else { ScriptPart::DropFunction };
        self.fill(DB::script(part))
    }

    fn fill(&self, files: &[&str]) -> Vec<String> {
        let quoted = |schema: Option<&str>, name: &str| {
            let name = schema.map_or_else(|| name.to_owned(), |schema| format!("{schema}.{name}"));
            identifier::quoted(&name, DB::QUOTE)
        };
        let own = |suffix: &str| quoted(self.schema.as_deref(), &format!("{}_{suffix}", self.prefix));
        let plain_fence = format!("{}_fence", self.prefix);
        let fences = own("fences");
        let mut names = vec![
            ("{fence}", own("fence")),
            ("{refuse}", own("fence_refuse")),
            ("{raise}", own("fences_raise")),
            ("{plain_fence}", plain_fence),
            ("{fences}", fences.clone()),
        ];
        if let Some(Table { schema, name, column }) = &self.table {
            names.extend([
                ("{table}", quoted(schema.as_deref(), name)),
                ("{own_table}", quoted(None, name)),
                ("{plain_table}", name.clone()),
                ("{trigger}", quoted(schema.as_deref(), &format!("{}_fence_{name}", self.prefix))),
                ("{column}", quoted(None, column)),
                ("{plain_column}", column.clone()),
            ]);
        } else {
            // In the file that `Fences` uses, too.
            names.push(("{table}", fences));
        }
        files.iter().map(|file| fill_names(file, &names)).collect()
    }
}

impl<DB> Clone for FenceScript<DB> {
    fn clone(&self) -> Self {
        let Self { schema, prefix, table, database } = self;
        Self { schema: schema.clone(), prefix: prefix.clone(), table: table.clone(), database: *database }
    }
}

impl<DB> fmt::Debug for FenceScript<DB> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { schema, prefix, table, database: _ } = self;
        f.debug_struct("FenceScript")
            .field("schema", schema)
            .field("prefix", prefix)
            .field("table", table)
            .finish()
    }
}

#[cfg(test)]
#[cfg(all(feature = "sqlite", feature = "postgres", feature = "mysql"))]
mod tests {
    use super::*;

    /// All four scripts of a database.
    fn scripts<DB: Supported>(schema: Option<&str>) -> [String; 4] {
        let function = FenceScript::<DB>::new(schema, "T_1");
        let table = function.clone().for_table("Orders", Some("lock_token")).unwrap();
        [function.create(), function.drop(), table.create(), table.drop()]
    }

    #[test]
    fn the_scripts_are_complete() {
        let postgres = scripts::<sqlx::Postgres>(Some("Jobs"));
        let sqlite = scripts::<sqlx::Sqlite>(None);
        let mysql = scripts::<sqlx::MySql>(None);
        for text in postgres.iter().chain(&sqlite).chain(&mysql) {
            assert!(!text.contains(['{', '}']) && !text.contains("--") && text.ends_with(";\n"), "{text}");
        }
        for [create, drop, table, _] in [&postgres, &sqlite, &mysql] {
            assert!(create.contains("t_1_fences") && drop.contains("t_1_fences"), "{create}{drop}");
            assert!(table.contains("Orders") && table.contains("lock_token"), "{table}");
        }
        assert!(postgres[2].contains("BEFORE UPDATE ON \"Jobs\".\"Orders\""), "{}", postgres[2]);
        assert_eq!(postgres[3], "DROP TRIGGER IF EXISTS \"t_1_fence\" ON \"Jobs\".\"Orders\";\n");
        assert_eq!(sqlite[3], "DROP TRIGGER IF EXISTS `t_1_fence_Orders`;\n");
        assert!(mysql[0].contains("DELIMITER //"), "{}", mysql[0]);
    }

    #[test]
    fn tables_of_other_schemas_have_their_trigger_beside_them() {
        let script =
            FenceScript::<sqlx::MySql>::new(None, "polylock").for_table("shop.orders", None).unwrap();
        let text = script.create();
        assert!(text.contains("`shop`.`polylock_fence_orders` BEFORE UPDATE ON `shop`.`orders`"), "{text}");
        let script =
            FenceScript::<sqlx::Sqlite>::new(None, "polylock").for_table("shop.orders", None).unwrap();
        let text = script.create();
        assert!(text.contains("`shop`.`polylock_fence_orders` BEFORE UPDATE ON `orders`"), "{text}");
    }

    #[test]
    fn invalid_names_are_refused() {
        let script = || FenceScript::<sqlx::MySql>::new(None, "polylock");
        for (table, column) in [("", None), ("a b", None), ("a.b.c", None), ("a`b", None), ("a", Some("b.c"))]
        {
            let refused = script().for_table(table, column);
            assert!(matches!(refused, Err(InvalidIdentifier::NotPlain { .. })), "{table} {column:?}");
        }
        assert!(script().for_table(&"x".repeat(48), None).is_ok());
        let refused = script().for_table(&"x".repeat(49), None).unwrap_err();
        assert!(matches!(&refused, InvalidIdentifier::LongTrigger { .. }), "{refused}");
    }
}
