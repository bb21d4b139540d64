//! The planted bugs of the store, as edits of its statements.

use polylock_sql::NextVersion;

use crate::simulation::plan::Planted;

/// Returns tables with one more version, and the statements with the bug `planted`.
#[must_use]
pub fn version(planted: Option<Planted>) -> NextVersion {
    let version = NextVersion::compatible("");
    match planted {
        Some(Planted::SqliteShorteningRenewal) => {
            version.edit("SET expires_at = max(expires_at, (CAST", "SET expires_at = max(0, (CAST")
        }
        Some(Planted::SqliteForeignRelease) => version.edit(
            "DELETE FROM polylock_holds WHERE name = ?1 AND request = ?2\nAND NOT",
            "DELETE FROM polylock_holds WHERE name = ?1\nAND NOT",
        ),
        Some(Planted::SqliteUncheckedHandover) => version.edit(
            "walk.mode & walk.ahead = 0 AND NOT EXISTS",
            "walk.mode & walk.ahead = 0 AND NOT 0 * EXISTS",
        ),
        Some(Planted::SqliteUntargetedBreak) => version
            .edit("name = ?1 AND token IN (SELECT value FROM json_each(?3))", "name = ?1 AND ?3 IS NOT NULL"),
        _ => version,
    }
}
