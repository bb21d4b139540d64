//! The prefix of the tables' names, the same rule for every database.

use std::collections::BTreeSet;

use polylock_core::ConfigError;

/// The prefix if nothing is said.
pub(crate) const DEFAULT: &str = "polylock";
/// The longest prefix, in bytes: with what is put behind it, it is a name for every database.
pub(crate) const MAX_BYTES: usize = 41;

/// The names of the tables are put into statements as they are, so nothing but plain names may pass.
pub(crate) fn check(prefix: &str) -> Result<(), ConfigError> {
    if !is_plain(prefix) || prefix.to_ascii_lowercase().starts_with("sqlite_") {
        return Err(ConfigError::new(
            "polylock.table",
            "must be a letter or _ and then up to 40 letters, digits or _, and not begin with sqlite_",
        ));
    }
    Ok(())
}

/// Whether `name` is a letter or `_`, then up to 40 letters, digits or `_`.
pub(crate) fn is_plain(name: &str) -> bool {
    let mut bytes = name.bytes();
    bytes.next().is_some_and(|byte| byte.is_ascii_alphabetic() || byte == b'_')
        && bytes.all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
        && name.len() <= MAX_BYTES
}

/// A table without the prefix, and one of its columns; in lower case.
pub(crate) type Column = (String, String);

/// The columns of the tables that `schema`, a file in `statements/`, makes.
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

/// Whether tables without a version can be completed: none of them lacks a column that `schema` makes. `found` are the columns of
/// tables whose names begin with `prefix`.
///
/// Tables have lost their version if they were emptied or were restored without their rows, and never had one if their making
/// was interrupted. Those of another version, or of somebody else, have other columns.
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
    fn the_columns_of_a_schema_are_read_and_looked_for() {
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
