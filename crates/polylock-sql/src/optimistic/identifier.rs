//! Names of tables and columns, which are part of a statement and can't be bound as arguments.

use super::InvalidIdentifier;

/// The longest name that every database keeps completely: PostgreSQL truncates longer names silently, so two of them could become
/// equal.
pub(super) const MAX_BYTES: usize = 63;

/// Returns the column `name` in the database's quotation marks, so that `order` is a valid name, too.
pub(super) fn column(name: &str, quote: char) -> Result<String, InvalidIdentifier> {
    check(name, "column", name)?;
    Ok(quoted(name, quote))
}

/// Returns the table `name`, or `schema.name`, in the database's quotation marks.
pub(super) fn table(name: &str, quote: char) -> Result<String, InvalidIdentifier> {
    check_table(name)?;
    Ok(quoted(name, quote))
}

/// Checks that `name` is a valid name of a table, or `schema.name`.
pub(super) fn check_table(name: &str) -> Result<(), InvalidIdentifier> {
    let (schema, table) = name.split_once('.').map_or((None, name), |(schema, table)| (Some(schema), table));
    schema.into_iter().chain([table]).try_for_each(|part| check(part, "table", name))
}

/// Returns a checked name in quotation marks, part by part.
pub(super) fn quoted(name: &str, quote: char) -> String {
    format!("{quote}{}{quote}", name.replace('.', &format!("{quote}.{quote}")))
}

/// Accepts only letters, digits and `_`: no name can end the quotation, and none has characters that look like others.
fn check(part: &str, what: &'static str, whole: &str) -> Result<(), InvalidIdentifier> {
    let mut bytes = part.bytes();
    let starts = bytes.next().is_some_and(|byte| byte.is_ascii_alphabetic() || byte == b'_');
    if starts && bytes.all(|byte| byte.is_ascii_alphanumeric() || byte == b'_') && part.len() <= MAX_BYTES {
        return Ok(());
    }
    Err(InvalidIdentifier::NotPlain { what, name: whole.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_names_are_quoted() {
        assert_eq!(table("order", '`'), Ok("`order`".to_owned()));
        assert_eq!(table("shop.Order_2", '"'), Ok("\"shop\".\"Order_2\"".to_owned()));
        assert_eq!(column(&"x".repeat(63), '`').map(|name| name.len()), Ok(65));
    }

    #[test]
    fn other_names_are_invalid() {
        let long = "x".repeat(64);
        for name in
            ["", ".", "a.", ".a", "a.b.c", "1a", "a b", "a`b", "a\"b", "a;b", "ä", "a\0", "a'", "a-b", &long]
        {
            assert!(table(name, '`').is_err(), "{name:?}");
            assert!(column(name, '`').is_err(), "{name:?}");
        }
        assert!(column("a.b", '`').is_err());
    }
}
