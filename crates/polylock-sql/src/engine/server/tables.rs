//! The tables of a strategy, and the routines that use them.

#[cfg(feature = "mysql")]
use std::collections::BTreeSet;

use crate::engine::{
    config::CommonConfig,
    table::{self, Column},
    version::Version,
};

/// A set of tables and the routines that use them.
pub(crate) struct Tables {
    pub(crate) version: Version<'static>,
    /// The statements that create the tables of the first version.
    pub(crate) schema: &'static str,
    /// The names of the routines and the statements that create them. The number at the end of a name is the version of the
    /// routine's behaviour: programs of other versions have routines of their own beside them.
    pub(crate) routines: &'static [(&'static str, &'static str)],
}

impl Tables {
    /// Returns the version that this program knows.
    pub(crate) fn known<'a>(&self, common: &'a CommonConfig) -> Version<'a> {
        self.version.with(common.next.as_deref())
    }

    /// Returns true if some of the routines are missing: only `existing` of them are in the database.
    pub(crate) fn lack_routines(&self, existing: i64) -> bool {
        usize::try_from(existing).is_ok_and(|count| count < self.routines.len())
    }

    /// Returns true if tables without a version can be completed; `columns` are those that exist.
    pub(crate) fn can_be_completed(&self, common: &CommonConfig, columns: Vec<Column>) -> bool {
        table::can_be_completed(self.schema, &common.table, columns)
    }

    /// Returns the names of the tables, without the prefix.
    #[cfg(feature = "mysql")]
    pub(crate) fn names(&self) -> BTreeSet<String> {
        let columns = table::columns(&(self.version.steps.concat() + self.schema));
        columns.into_iter().map(|(table, _)| table).collect()
    }

    /// Returns the statements that drop the routines, each a `kind`, and the tables.
    pub(crate) fn drops(&self, kind: &str) -> String {
        let routines = self.routines.iter().map(|(name, _)| format!("DROP {kind} IF EXISTS {{p}}_{name};\n"));
        let schema = self.version.steps.concat() + self.schema;
        routines.collect::<String>() + &table::drops(&schema)
    }
}
