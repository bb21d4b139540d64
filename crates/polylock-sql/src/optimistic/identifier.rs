//! Names of tables and columns, which stand in a statement and can't be bound.

use super::InvalidIdentifier;

/// What every database takes whole: PostgreSQL cuts off the rest in silence, and two long names would be one.
const MAX_BYTES: usize = 63;

/// The column `name` in the database's quotation marks, so that `order` is a name, too.
pub(super) fn column(name: &str, quote: char) -> Result<String, InvalidIdentifier> {
    check(name, "column", name)?;
    Ok(quoted(name, quote))
}

/// The table `name`, or `schema.name`, in the database's quotation marks.
pub(super) fn table(name: &str, quote: char) -> Result<String, InvalidIdentifier> {
    check_table(name)?;
    Ok(quoted(name, quote))
}

/// Whether `name` is that of a table, or `schema.name`.
pub(super) fn check_table(name: &str) -> Result<(), InvalidIdentifier> {
    let (schema, table) = name.split_once('.').map_or((None, name), |(schema, table)| (Some(schema), table));
    schema.into_iter().chain([table]).try_for_each(|part| check(part, "table", name))
}

/// A name that was checked, in quotation marks, part by part.
pub(super) fn quoted(name: &str, quote: char) -> String {
    format!("{quote}{}{quote}", name.replace('.', &format!("{quote}.{quote}")))
}

/// Nothing that could end the quotation passes, and nothing that people would have to look at twice.
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
    fn nothing_else_passes() {
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
