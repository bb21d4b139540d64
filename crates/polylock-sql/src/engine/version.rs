#![doc = include_str!("upgrades.md")]

use polylock_core::ConfigError;

/// The version of one set of tables that this program uses, and the steps that lead to it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Version<'a> {
    /// The key of the version in the table `meta`.
    pub(crate) row: &'static str,
    /// The version that the file `schema.sql` creates.
    pub(crate) first: i64,
    /// The statements that lead from `first` to the next version, from that to the next one, and so on.
    pub(crate) steps: &'static [&'static str],
    /// The oldest version with programs that can share locks with this program.
    pub(crate) oldest: i64,
    /// An additional version, in tests.
    pub(crate) next: Option<&'a NextVersion>,
}

/// The version after the current one: the same program with one more step. It makes the upgrade from one version to the next testable
/// before there is a next one, and is not part of the API.
#[doc(hidden)]
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NextVersion {
    step: String,
    is_compatible: bool,
    edits: Vec<(String, String)>,
}

impl NextVersion {
    /// Creates a version with programs that share locks with those of the current version; `step` leads to it.
    #[must_use]
    pub fn compatible(step: &str) -> Self {
        Self { step: step.to_owned(), is_compatible: true, edits: Vec::new() }
    }

    /// Creates a version with programs that can't share locks with those of the current version; `step` leads to it.
    #[must_use]
    pub fn incompatible(step: &str) -> Self {
        Self { is_compatible: false, ..Self::compatible(step) }
    }

    /// Replaces `from` by `to` in all statements, after the table names are filled in.
    #[must_use]
    pub fn edit(mut self, from: &str, to: &str) -> Self {
        self.edits.push((from.to_owned(), to.to_owned()));
        self
    }

    pub(crate) fn apply_edits(&self, text: String) -> String {
        self.edits.iter().fold(text, |text, (from, to)| text.replace(from, to))
    }
}

/// The version numbers in the tables; 0 for one that is missing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct FoundVersion {
    pub(crate) number: i64,
    /// The oldest version with programs that may use the tables.
    pub(crate) oldest: i64,
}

/// The action for tables that this program may use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SchemaState {
    /// None.
    Current,
    /// Run the steps to this program's version.
    Outdated,
    /// Complete the tables, which have no version, if they are polylock's.
    Unversioned,
}

impl<'a> Version<'a> {
    pub(crate) fn with(self, next: Option<&'a NextVersion>) -> Self {
        Self { next, ..self }
    }

    /// Returns this program's version.
    pub(crate) fn number(self) -> i64 {
        let steps = self.steps.len() + usize::from(self.next.is_some());
        self.first + i64::try_from(steps).unwrap_or(i64::MAX)
    }

    /// Returns the oldest version with programs that can share locks with this program.
    pub(crate) fn oldest(self) -> i64 {
        if self.next.is_some_and(|next| !next.is_compatible) { self.number() } else { self.oldest }
    }

    /// Returns the version that each step leads to, and its statements.
    pub(crate) fn steps(self) -> impl Iterator<Item = (i64, &'a str)> {
        let steps = self.steps.iter().copied().chain(self.next.map(|next| next.step.as_str()));
        (self.first + 1..).zip(steps)
    }

    /// Returns the replacements for `{row}`, `{version}` and `{oldest}`.
    pub(crate) fn replacements(self) -> [(&'static str, String); 3] {
        [
            ("{row}", self.row.to_owned()),
            ("{version}", self.number().to_string()),
            ("{oldest}", self.oldest().to_string()),
        ]
    }

    /// Returns the action for the tables named `prefix`. `raise` returns the statements that set their oldest version.
    ///
    /// # Errors
    /// [`ConfigError`] on key `polylock.namespace` if this program must not use them, with the remedy.
    pub(crate) fn check(
        self,
        prefix: &str,
        found: FoundVersion,
        raise: impl FnOnce(i64) -> String,
    ) -> Result<SchemaState, ConfigError> {
        let (own, FoundVersion { number, oldest }) = (self.number(), found);
        // Tables without `oldest` are for programs of their own version alone.
        let oldest = if oldest == 0 { number } else { oldest };
        let problem = match oldest {
            0 => return Ok(SchemaState::Unversioned),
            _ if (1..self.first).contains(&number) => format!(
                "the tables named {prefix:?} were created by an earlier version of polylock (table version {number}, this program's is \
                 {own}), which can't be upgraded: stop every program that uses them, drop them, and start the new programs, \
                 which create new tables with greater tokens; or choose another polylock.namespace"
            ),
            _ if oldest > own => format!(
                "the tables named {prefix:?} were created by a later version of polylock (table version {number}, for programs of \
                 version {oldest} and later; this program's is {own}): update the program, or choose another polylock.namespace"
            ),
            _ if oldest < self.oldest() => format!(
                "programs of version {oldest} may use the tables named {prefix:?}, and this program, of version {own}, can share \
                 locks only with programs of version {} and later: stop every earlier program, run `{}`, and start this one \
                 again; or choose another polylock.namespace",
                self.oldest(),
                raise(self.oldest())
            ),
            _ if number == 0 => return Ok(SchemaState::Unversioned),
            _ if number < own => return Ok(SchemaState::Outdated),
            _ => return Ok(SchemaState::Current),
        };
        Err(ConfigError::new("polylock.namespace", problem))
    }

    /// Returns the error for tables named `prefix` that have no version and are not polylock's.
    pub(crate) fn unknown(prefix: &str) -> ConfigError {
        let problem = format!(
            "the tables named {prefix:?} have no version and are not polylock's tables: choose another polylock.namespace, or \
             drop them if an earlier version of polylock created them"
        );
        ConfigError::new("polylock.namespace", problem)
    }
}

/// A line of a step that adds a column to a table, or, in databases with that syntax, a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Addition<'a> {
    /// The table, without the prefix.
    pub(crate) table: &'a str,
    /// The column or the key.
    pub(crate) name: &'a str,
    pub(crate) is_key: bool,
    /// The statement, without the semicolon.
    pub(crate) statement: &'a str,
}

impl<'a> Addition<'a> {
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

/// Returns the statements of `step`, with each line that adds a column or a key replaced by the database's syntax for one that may exist.
pub(crate) fn with_additions(step: &str, mut add: impl FnMut(&Addition<'_>) -> String) -> String {
    let line = |line| Addition::read(line).map_or_else(|| str::to_owned(line), |added| add(&added));
    step.lines().map(line).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Version<'_> = Version { row: "schema", first: 2, steps: &["", ""], oldest: 3, next: None };

    fn check(version: Version<'_>, number: i64, oldest: i64) -> Result<SchemaState, String> {
        let raise = |oldest: i64| format!("RAISE {oldest}");
        version.check("t", FoundVersion { number, oldest }, raise).map_err(|error| error.to_string())
    }

    #[test]
    fn tables_are_used_if_all_programs_with_access_can_share_locks() {
        assert_eq!((SECOND.number(), SECOND.oldest()), (4, 3));
        for (number, oldest, expected) in [
            (4, 3, SchemaState::Current),
            (4, 4, SchemaState::Current),
            (3, 3, SchemaState::Outdated),
            // Tables of a later version, created by programs that share locks with this one.
            (5, 4, SchemaState::Current),
            (5, 3, SchemaState::Current),
            // An operator has stopped the programs of version 2.
            (2, 3, SchemaState::Outdated),
            (3, 0, SchemaState::Outdated),
            (0, 0, SchemaState::Unversioned),
            (0, 3, SchemaState::Unversioned),
        ] {
            assert_eq!(check(SECOND, number, oldest), Ok(expected), "{number} {oldest}");
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
            let refused = check(SECOND, number, oldest).unwrap_err();
            assert!(
                refused.starts_with("polylock.namespace") && refused.contains(words),
                "{number} {oldest}: {refused}"
            );
        }
    }

    #[test]
    fn the_next_version_has_one_more_step() {
        let (compatible, incompatible) = (NextVersion::compatible("s"), NextVersion::incompatible("s"));
        let (compatible, incompatible) = (SECOND.with(Some(&compatible)), SECOND.with(Some(&incompatible)));
        assert_eq!(
            (compatible.number(), compatible.oldest(), incompatible.number(), incompatible.oldest()),
            (5, 3, 5, 5)
        );
        assert_eq!(incompatible.steps().collect::<Vec<_>>(), [(3, ""), (4, ""), (5, "s")]);
        assert_eq!(check(compatible, 4, 3), Ok(SchemaState::Outdated));
        assert!(check(incompatible, 4, 4).unwrap_err().contains("`RAISE 5`"));
        assert_eq!(check(incompatible, 4, 5), Ok(SchemaState::Outdated));
    }

    #[test]
    fn lines_that_add_a_column_or_key_are_found() {
        let step = "-- Why.\nALTER TABLE {p}_holds ADD COLUMN note text;\nCREATE TABLE x;\n  ALTER TABLE {p}_x ADD COLUMN y;\n\
                    ALTER TABLE {p}_x ADD KEY k (y, z);";
        let replaced = with_additions(step, |added| {
            format!("{} {} {}: {}", added.table, added.name, added.is_key, added.statement)
        });
        let expected = "-- Why.\nholds note false: ALTER TABLE {p}_holds ADD COLUMN note text\nCREATE TABLE x;\n  \
                        ALTER TABLE {p}_x ADD COLUMN y;\nx k true: ALTER TABLE {p}_x ADD KEY k (y, z)";
        assert_eq!(replaced, expected);
    }
}
