//! The text of a fence for programs in any language: SQL statements, or a script of Redis.

use polylock_core::{
    ConfigError,
    url::{Keys, StoreUrl},
};

/// Returns the text of a fence in the server of a URL.
pub(crate) type Write = fn(&StoreUrl, &mut Keys, &FenceSchema) -> Result<String, ConfigError>;

/// The part of a fence that [`fence_schema`](crate::fence_schema) returns. The default is the function that records the token of a resource.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FenceSchema {
    table: Option<String>,
    column: Option<String>,
    drop: bool,
}

impl FenceSchema {
    /// Selects the trigger of this table (or `schema.table`) instead of the function.
    #[must_use]
    pub fn table(mut self, table: impl Into<String>) -> Self {
        self.table = Some(table.into());
        self
    }

    /// Sets the column of the table with the token, `fencing_token` by default.
    #[must_use]
    pub fn column(mut self, column: impl Into<String>) -> Self {
        self.column = Some(column.into());
        self
    }

    /// Selects the statements that remove the fence instead of those that create it.
    #[must_use]
    pub fn drop(mut self) -> Self {
        self.drop = true;
        self
    }
}

/// Returns the statements of `script`.
#[cfg(any(feature = "sqlite", feature = "postgres", feature = "mysql"))]
pub(crate) fn sql<DB: polylock_sql::optimistic::Supported>(
    script: polylock_sql::optimistic::FenceScript<DB>,
    fence: &FenceSchema,
) -> Result<String, ConfigError> {
    let script = match (&fence.table, &fence.column) {
        (Some(table), column) => script
            .for_table(table, column.as_deref())
            .map_err(|error| ConfigError::new("table", error.to_string()))?,
        (None, Some(_)) => {
            return Err(ConfigError::new("column", "names a column of no table: add the table"));
        }
        (None, None) => script,
    };
    Ok(if fence.drop { script.drop() } else { script.create() })
}

/// Returns the script of Redis.
#[cfg(feature = "redis")]
pub(crate) fn redis(fence: &FenceSchema) -> Result<String, ConfigError> {
    let refused = |key, problem| Err(ConfigError::new(key, problem));
    match fence {
        FenceSchema { table: Some(_), .. } => {
            refused("table", "Redis has no tables: omit it, and name the keys in the call of the script")
        }
        FenceSchema { column: Some(_), .. } => refused("column", "Redis has no columns: omit it"),
        FenceSchema { drop: true, .. } => refused(
            "store",
            "a fence of Redis is a key, and the server keeps no script: delete the keys of the fences",
        ),
        _ => Ok(polylock_redis::FENCE.to_owned()),
    }
}

/// Returns the error for a store without a fence.
pub(crate) fn unsupported(scheme: &str) -> ConfigError {
    let problem = format!(
        "there are no statements for a fence in a {scheme} store: name the database of your tables (SQLite, PostgreSQL, MySQL), or a \
         Redis server; docs/fencing.md has the fences of other resources"
    );
    ConfigError::new("store", problem)
}
