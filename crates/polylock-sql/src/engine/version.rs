#![doc = include_str!("upgrades.md")]

use polylock_core::ConfigError;

/// The version of one set of tables that this program knows, and the steps that lead to it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Version<'a> {
    /// The key of the version in the table `meta`.
    pub(crate) row: &'static str,
    /// The version that the file `schema.sql` creates.
    pub(crate) first: i64,
    /// The statements that lead from `first` to the next version, from that to the next one, and so on.
    pub(crate) steps: &'static [&'static str],
    /// The oldest version whose programs can share locks with this program.
    pub(crate) oldest: i64,
    /// One version more, in tests.
    pub(crate) next: Option<&'a Next>,
}

/// The version that comes after the current one: the same program with one step more. It makes the way from one version to the next
/// testable before there is a next one, and is not part of the API.
#[doc(hidden)]
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Next {
    step: String,
    shares: bool,
    edits: Vec<(String, String)>,
}

impl Next {
    /// A version whose programs share locks with those of the current version; `step` leads to it.
    #[must_use]
    pub fn compatible(step: &str) -> Self {
        Self { step: step.to_owned(), shares: true, edits: Vec::new() }
    }

    /// A version whose programs can't share locks with those of the current version.
    #[must_use]
    pub fn incompatible(step: &str) -> Self {
        Self { shares: false, ..Self::compatible(step) }
    }

    /// Replaces `from` by `to` in all statements, which have their names filled in.
    #[must_use]
    pub fn edit(mut self, from: &str, to: &str) -> Self {
        self.edits.push((from.to_owned(), to.to_owned()));
        self
    }

    pub(crate) fn edited(&self, text: String) -> String {
        self.edits.iter().fold(text, |text, (from, to)| text.replace(from, to))
    }
}

/// What the tables say about their version; 0 stands for what they do not say.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Found {
    pub(crate) number: i64,
    /// The oldest version whose programs may use the tables.
    pub(crate) oldest: i64,
}

/// What is to be done with tables that this program may use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Nothing.
    Current,
    /// The steps to this program's version.
    Behind,
    /// They have no version: they are to be completed, if they are polylock's.
    Unversioned,
}

impl<'a> Version<'a> {
    pub(crate) fn with(self, next: Option<&'a Next>) -> Self {
        Self { next, ..self }
    }

    /// The version itself.
    pub(crate) fn number(self) -> i64 {
        let steps = self.steps.len() + usize::from(self.next.is_some());
        self.first + i64::try_from(steps).unwrap_or(i64::MAX)
    }

    /// The oldest version whose programs can share locks with this program.
    pub(crate) fn oldest(self) -> i64 {
        if self.next.is_some_and(|next| !next.shares) { self.number() } else { self.oldest }
    }

    /// The version that each step leads to, and its statements.
    pub(crate) fn steps(self) -> impl Iterator<Item = (i64, &'a str)> {
        let steps = self.steps.iter().copied().chain(self.next.map(|next| next.step.as_str()));
        (self.first + 1..).zip(steps)
    }

    /// What is filled in for `{row}`, `{version}` and `{oldest}`.
    pub(crate) fn numbers(self) -> [(&'static str, String); 3] {
        [
            ("{row}", self.row.to_owned()),
            ("{version}", self.number().to_string()),
            ("{oldest}", self.oldest().to_string()),
        ]
    }

    /// What is to be done with the tables named `prefix`. `raise` are the statements that set the oldest version of them.
    ///
    /// # Errors
    /// [`ConfigError`] on key `polylock.table` if this program must not use them, with what to do.
    pub(crate) fn verdict(
        self,
        prefix: &str,
        found: Found,
        raise: impl FnOnce(i64) -> String,
    ) -> Result<Verdict, ConfigError> {
        let (own, Found { number, oldest }) = (self.number(), found);
        // Whoever says nothing of others shares locks with its own version alone.
        let oldest = if oldest == 0 { number } else { oldest };
        let problem = match oldest {
            0 => return Ok(Verdict::Unversioned),
            _ if (1..self.first).contains(&number) => format!(
                "the tables named {prefix:?} were made by an earlier version of polylock (theirs is {number}, this program's \
                 {own}), from which no steps lead on: stop every program that uses them, drop them, and start the new ones, \
                 which make their own with tokens that go on growing; or choose another polylock.table"
            ),
            _ if oldest > own => format!(
                "the tables named {prefix:?} were made by a later version of polylock (theirs is {number}, which programs of \
                 {oldest} and later can use; this program's is {own}): update the program, or choose another polylock.table"
            ),
            _ if oldest < self.oldest() => format!(
                "programs of version {oldest} may use the tables named {prefix:?}, and this program, of version {own}, can share \
                 locks with programs of version {} and later alone: stop every earlier program, run `{}`, and start this one \
                 again; or choose another polylock.table",
                self.oldest(),
                raise(self.oldest())
            ),
            _ if number == 0 => return Ok(Verdict::Unversioned),
            _ if number < own => return Ok(Verdict::Behind),
            _ => return Ok(Verdict::Current),
        };
        Err(ConfigError::new("polylock.table", problem))
    }

    /// The tables named `prefix` have no version, and are not polylock's.
    pub(crate) fn unknown(prefix: &str) -> ConfigError {
        let problem = format!(
            "the tables named {prefix:?} have no version and not the columns of polylock's: choose another polylock.table, or \
             drop them if they are of an earlier polylock"
        );
        ConfigError::new("polylock.table", problem)
    }
}

/// A line of a step that adds a column to a table, or, where the database has that form, a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Added<'a> {
    /// The table, without the prefix.
    pub(crate) table: &'a str,
    /// The column or the key.
    pub(crate) name: &'a str,
    pub(crate) is_key: bool,
    /// The statement, without the semicolon.
    pub(crate) statement: &'a str,
}

impl<'a> Added<'a> {
    fn read(line: &'a str) -> Option<Self> {
        let statement = line.strip_suffix(';')?;
        let (table, change) = statement.strip_prefix("ALTER TABLE {p}_")?.split_once(" ADD ")?;
        let (is_key, rest) = match change.split_once(' ')? {
            ("COLUMN", rest) => (false, rest),
            ("KEY", rest) => (true, rest),
            _ => return None,
        };
        Some(Self { table, name: rest.split(' ').next()?, is_key, statement })
    }
}

/// The statements of `step`, with each line that adds a column or a key replaced by what the database has for one that may be there.
pub(crate) fn with_added(step: &str, mut add: impl FnMut(&Added<'_>) -> String) -> String {
    let line = |line| Added::read(line).map_or_else(|| str::to_owned(line), |added| add(&added));
    step.lines().map(line).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Version<'_> = Version { row: "schema", first: 2, steps: &["", ""], oldest: 3, next: None };

    fn verdict(version: Version<'_>, number: i64, oldest: i64) -> Result<Verdict, String> {
        let raise = |oldest: i64| format!("RAISE {oldest}");
        version.verdict("t", Found { number, oldest }, raise).map_err(|error| error.to_string())
    }

    #[test]
    fn tables_are_used_if_all_who_may_use_them_can_share_locks() {
        assert_eq!((SECOND.number(), SECOND.oldest()), (4, 3));
        for (number, oldest, expected) in [
            (4, 3, Verdict::Current),
            (4, 4, Verdict::Current),
            (3, 3, Verdict::Behind),
            // Of a later version, made by programs that share locks with this one.
            (5, 4, Verdict::Current),
            (5, 3, Verdict::Current),
            // An operator has stopped the programs of version 2.
            (2, 3, Verdict::Behind),
            (3, 0, Verdict::Behind),
            (0, 0, Verdict::Unversioned),
            (0, 3, Verdict::Unversioned),
        ] {
            assert_eq!(verdict(SECOND, number, oldest), Ok(expected), "{number} {oldest}");
        }
        for (number, oldest, words) in [
            (5, 5, "update the program"),
            (0, 5, "update the program"),
            (4, 5, "update the program"),
            (2, 2, "`RAISE 3`"),
            (2, 0, "`RAISE 3`"),
            (0, 2, "`RAISE 3`"),
            (4, 2, "`RAISE 3`"),
            (5, 2, "`RAISE 3`"),
            (1, 0, "drop them"),
            (1, 3, "drop them"),
        ] {
            let refused = verdict(SECOND, number, oldest).unwrap_err();
            assert!(
                refused.starts_with("polylock.table") && refused.contains(words),
                "{number} {oldest}: {refused}"
            );
        }
    }

    #[test]
    fn the_next_version_has_a_step_more() {
        let (shares, alone) = (Next::compatible("s"), Next::incompatible("s"));
        let (shares, alone) = (SECOND.with(Some(&shares)), SECOND.with(Some(&alone)));
        assert_eq!((shares.number(), shares.oldest(), alone.number(), alone.oldest()), (5, 3, 5, 5));
        assert_eq!(alone.steps().collect::<Vec<_>>(), [(3, ""), (4, ""), (5, "s")]);
        assert_eq!(verdict(shares, 4, 3), Ok(Verdict::Behind));
        assert!(verdict(alone, 4, 4).unwrap_err().contains("`RAISE 5`"));
        assert_eq!(verdict(alone, 4, 5), Ok(Verdict::Behind));
    }

    #[test]
    fn lines_that_add_something_are_found() {
        let step = "-- Why.\nALTER TABLE {p}_holds ADD COLUMN note text;\nCREATE TABLE x;\n  ALTER TABLE {p}_x ADD COLUMN y;\n\
                    ALTER TABLE {p}_x ADD KEY k (y, z);";
        let replaced = with_added(step, |added| {
            format!("{} {} {}: {}", added.table, added.name, added.is_key, added.statement)
        });
        let expected = "-- Why.\nholds note false: ALTER TABLE {p}_holds ADD COLUMN note text\nCREATE TABLE x;\n  \
                        ALTER TABLE {p}_x ADD COLUMN y;\nx k true: ALTER TABLE {p}_x ADD KEY k (y, z)";
        assert_eq!(replaced, expected);
    }
}
