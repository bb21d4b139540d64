//! The prefix of the table names, with the same rule for every database.

use std::collections::BTreeSet;

use polylock_core::ConfigError;

/// The default prefix.
pub(crate) const DEFAULT: &str = "polylock";
/// The longest prefix, in bytes: with the longest suffix it is a valid name in every database.
pub(crate) const MAX_BYTES: usize = 41;

/// Checks that `prefix` is a plain name, because statements contain it without quotes.
///
/// # Errors
/// [`ConfigError`] on key `polylock.namespace` if it is not.
pub(crate) fn check(prefix: &str) -> Result<(), ConfigError> {
    if !is_plain(prefix) || prefix.to_ascii_lowercase().starts_with("sqlite_") {
        return Err(ConfigError::new(
            "polylock.namespace",
            "must be a letter or _ and then up to 40 letters, digits or _, and not begin with sqlite_",
        ));
    }
    Ok(())
}

/// Returns true if `name` is a letter or `_`, then up to 40 letters, digits or `_`.
pub(crate) fn is_plain(name: &str) -> bool {
    let mut bytes = name.bytes();
    bytes.next().is_some_and(|byte| byte.is_ascii_alphabetic() || byte == b'_')
        && bytes.all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
        && name.len() <= MAX_BYTES
}

/// A table name without the prefix, and one of its columns; in lower case.
pub(crate) type Column = (String, String);

/// Returns the columns of the tables that `schema`, a file in `statements/`, creates.
pub(crate) fn columns(schema: &str) -> BTreeSet<Column> {
    const CONSTRAINTS: [&str; 4] = ["PRIMARY", "UNIQUE", "KEY", "CHECK"];
    let mut columns = BTreeSet::new();
    for table in schema.split("TABLE IF NOT EXISTS {p}_").skip(1) {
        let Some((name, body)) = table.split_once(" (") else { continue };
        let (mut depth, mut starts) = (0_u32, true);
        for word in body.split_inclusive([' ', '\n', ',', '(', ')']) {
            let (text, end) = word.split_at(word.len() - word.chars().next_back().map_or(0, char::len_utf8));
            if depth == 0 && starts && !text.is_empty() {
                starts = false;
                if !CONSTRAINTS.contains(&text) {
                    columns.insert((name.to_owned(), text.to_ascii_lowercase()));
                }
            }
            match end {
                "(" => depth += 1,
                ")" if depth == 0 => break,
                ")" => depth -= 1,
                "," if depth == 0 => starts = true,
                _ => {}
            }
        }
    }
    columns
}

/// Returns the statements that drop the tables and sequences that `schema` creates, with the prefix left to be filled in.
pub(crate) fn drops(schema: &str) -> String {
    let mut text = String::new();
    for kind in ["TABLE", "SEQUENCE"] {
        // A table may be UNLOGGED.
        for rest in schema.split(&format!("{kind} IF NOT EXISTS ")).skip(1) {
            let name = rest.split([' ', '(', ';']).next().unwrap_or_default();
            text.extend(["DROP ", kind, " IF EXISTS ", name, ";\n"]);
        }
    }
    text
}

/// Returns true if tables without a version can be completed: none of them lacks a column that `schema` creates. `found` are the columns of
/// the tables with names that begin with `prefix`.
///
/// Tables have no version if they were emptied, were restored without their rows, or their creation was interrupted. Tables of another
/// version, or of another program, have other columns.
pub(crate) fn can_be_completed(schema: &str, prefix: &str, found: impl IntoIterator<Item = Column>) -> bool {
    let prefix = format!("{}_", prefix.to_ascii_lowercase());
    let found: BTreeSet<Column> = found
        .into_iter()
        .filter_map(|(table, column)| {
            let table = table.to_ascii_lowercase();
            Some((table.strip_prefix(&prefix)?.to_owned(), column.to_ascii_lowercase()))
        })
        .collect();
    let tables: BTreeSet<&str> = found.iter().map(|(table, _)| table.as_str()).collect();
    columns(schema)
        .iter()
        .filter(|(table, _)| tables.contains(table.as_str()))
        .all(|column| found.contains(column))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_schema_creates_is_dropped() {
        let schema = "CREATE TABLE IF NOT EXISTS {p}_a (x int);\nCREATE INDEX IF NOT EXISTS i ON {p}_a (x);\n\
                      CREATE SEQUENCE IF NOT EXISTS {p}_b AS bigint;\nCREATE UNLOGGED TABLE IF NOT EXISTS {p}_c(x int);";
        let dropped =
            "DROP TABLE IF EXISTS {p}_a;\nDROP TABLE IF EXISTS {p}_c;\nDROP SEQUENCE IF EXISTS {p}_b;\n";
        assert_eq!(drops(schema), dropped);
    }

    #[test]
    fn the_columns_of_a_schema_are_parsed_and_compared() {
        let schema = "-- A file.\nCREATE TABLE IF NOT EXISTS {p}_holds (\n    name BLOB NOT NULL CHECK (length(name) = 1),\n    \
                      slot  VARBINARY(16) NOT NULL,\n    PRIMARY KEY (name, slot)\n) STRICT;\n\
                      CREATE INDEX x ON {p}_holds (name);\nCREATE TABLE IF NOT EXISTS {p}_meta (key text PRIMARY KEY);";
        let column = |table: &str, column: &str| (table.to_owned(), column.to_owned());
        let all = [column("holds", "name"), column("holds", "slot"), column("meta", "key")];
        assert_eq!(columns(schema), all.clone().into());
        let found = all.map(|(table, name)| (format!("T_1_{table}"), name.to_ascii_uppercase()));
        assert!(can_be_completed(schema, "t_1", found.clone()));
        assert!(can_be_completed(schema, "t_1", found.clone().into_iter().skip(2)), "a table is missing");
        assert!(!can_be_completed(schema, "t_1", found.into_iter().skip(1)), "a column is missing");
    }
}
