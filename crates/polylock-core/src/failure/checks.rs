//! The table of errors on the page of a store, for its unit tests.

use crate::Fault;

/// Returns the codes in the table below `# Errors` of a page, each with its fault, and true for rejected credentials. The row of all other
/// codes has an empty code.
///
/// # Panics
/// If there is no such table.
#[must_use]
pub fn errors(page: &str) -> Vec<(&str, Fault, bool)> {
    let (_, section) = page.split_once("\n# Errors\n").unwrap_or_else(|| panic!("the page has no errors"));
    let rows = section.lines().skip_while(|line| !line.starts_with("|---")).skip(1);
    let rows = rows.map_while(|row| row.strip_prefix("| ")).map(|row| row.split(" | ").collect::<Vec<_>>());
    let all = rows.flat_map(|row| {
        let faults = row[2];
        let fault = match faults.split('`').nth(1) {
            Some("Temporary") => Fault::Temporary,
            Some("Permanent") => Fault::Permanent,
            Some("Denied") => Fault::Denied,
            other => panic!("{other:?} is no fault"),
        };
        let codes =
            if row[0].contains('`') { row[0].split('`').skip(1).step_by(2).collect() } else { vec![""] };
        codes.into_iter().map(move |code| (code, fault, faults.contains("`Revoked`")))
    });
    all.collect()
}
