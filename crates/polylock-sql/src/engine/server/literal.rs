//! Statements as text, with their arguments as literals.
//!
//! Every call to a server is one message of its text protocol: one round trip for any number of statements, and no state in the session, so
//! any pooler may be in between. (A pooler that gives each transaction another session mixes up *prepared* statements of different programs
//! that have the same number.) Arguments are written as hexadecimal or decimal digits alone, so no setting of the server and no byte in a
//! name can turn them into SQL.

use std::{fmt::Write, sync::Arc};

use polylock_core::RequestId;
use sqlx::{AssertSqlSafe, SqlSafeStr, SqlStr};

use crate::engine::rows::hex;

/// An argument of a statement.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Arg<'a> {
    Bytes(&'a [u8]),
    Id(RequestId),
    Text(&'a str),
    Int(i64),
    #[cfg(any(feature = "postgres", test))]
    Bool(bool),
    /// Pairs of bytes, as rows; at least one, because no database has a syntax for none.
    #[cfg(any(feature = "postgres", test))]
    Pairs(&'a [(Vec<u8>, Vec<u8>)]),
}

/// The syntax of a database for arguments.
pub(crate) trait Literals {
    fn bytes(text: &mut String, digits: &str);
    fn text(text: &mut String, digits: &str);
    /// Writes one row of two columns; rows are joined by commas.
    #[cfg(any(feature = "postgres", test))]
    fn pair(text: &mut String, first: &str, second: &str);
}

/// A statement with the parameters `$1` to `$9`, `$a` and so on (one digit of base 36 each).
#[derive(Debug, Clone)]
pub(crate) struct Template {
    /// The text before each argument, and the argument's index; at the end, the rest of the text.
    parts: Arc<[(String, Option<usize>)]>,
}

impl Template {
    /// Creates a statement without parameters.
    pub(crate) fn plain(text: String) -> Self {
        Self { parts: [(text, None)].into() }
    }

    /// Parses the statement `text`, in which each `$1` and so on is a parameter.
    pub(crate) fn new(text: &str) -> Self {
        let mut parts = Vec::new();
        let mut pieces = text.split('$');
        let mut before = pieces.next().unwrap_or_default().to_owned();
        for piece in pieces {
            let mut rest = piece.chars();
            match rest.next().and_then(|digit| digit.to_digit(36)) {
                Some(position @ 1..) => {
                    let before = std::mem::replace(&mut before, rest.as_str().to_owned());
                    parts.push((before, usize::try_from(position).ok().map(|position| position - 1)));
                }
                _ => {
                    before.push('$');
                    before.push_str(piece);
                }
            }
        }
        parts.push((before, None));
        Self { parts: parts.into() }
    }

    /// Returns the text to send.
    pub(crate) fn with<L: Literals>(&self, arguments: &[Arg<'_>]) -> SqlStr {
        let mut text = String::with_capacity(512);
        for (before, position) in &*self.parts {
            text.push_str(before);
            match position.map(|position| arguments[position]) {
                None => {}
                Some(Arg::Bytes(bytes)) => L::bytes(&mut text, &hex(bytes)),
                Some(Arg::Id(request)) => L::bytes(&mut text, &hex(&request.to_bytes())),
                Some(Arg::Text(words)) => L::text(&mut text, &hex(words.as_bytes())),
                Some(Arg::Int(number)) => {
                    write!(text, "{number}").ok();
                }
                #[cfg(any(feature = "postgres", test))]
                Some(Arg::Bool(yes)) => text.push_str(if yes { "TRUE" } else { "FALSE" }),
                #[cfg(any(feature = "postgres", test))]
                Some(Arg::Pairs(pairs)) => {
                    for (index, (first, second)) in pairs.iter().enumerate() {
                        text.push_str(if index > 0 { ", " } else { "" });
                        L::pair(&mut text, &hex(first), &hex(second));
                    }
                }
            }
        }
        // The templates are constants of this crate with checked table names; arguments are digits.
        AssertSqlSafe(text).into_sql_str()
    }
}

/// Returns the text of a file in `statements/` without its comment lines, with each `{key}` replaced, one after the other: a replacement
/// may contain later keys.
pub(crate) fn fill_template(file: &str, replacements: &[(&str, &str)]) -> String {
    let code: Vec<&str> = file.lines().filter(|line| !line.trim_start().starts_with("--")).collect();
    replacements.iter().fold(code.join("\n"), |text, (key, value)| text.replace(key, value))
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Plain;

    impl Literals for Plain {
        fn bytes(text: &mut String, digits: &str) {
            write!(text, "x'{digits}'").unwrap();
        }

        fn text(text: &mut String, digits: &str) {
            write!(text, "t'{digits}'").unwrap();
        }

        fn pair(text: &mut String, first: &str, second: &str) {
            write!(text, "({first}|{second})").unwrap();
        }
    }

    #[test]
    fn arguments_are_encoded_as_digits() {
        let file = "-- About $1.\nSELECT $1, $2, $a, $$ FROM {p}_x;\n  -- More.\nSELECT $3, $4";
        let template = Template::new(&fill_template(file, &[("{p}", "locks")]));
        let pairs = [(vec![1], vec![2]), (vec![3], vec![4])];
        let mut arguments = vec![Arg::Bytes(b"'; DROP"), Arg::Text("$2"), Arg::Int(-7), Arg::Pairs(&pairs)];
        arguments.resize(10, Arg::Bool(true));
        let text = template.with::<Plain>(&arguments);
        let expected =
            "SELECT x'273b2044524f50', t'2432', TRUE, $$ FROM locks_x;\nSELECT -7, (01|02), (03|04)";
        assert_eq!(text.as_str(), expected);
    }
}
