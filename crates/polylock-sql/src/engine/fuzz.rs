//! Fuzz targets: the rows that other programs can write to the tables, and the literals in statements.

use percent_encoding::percent_decode_str;
use sqlx::{Error, MySql, Postgres};

use super::{
    columns::{Columns, require, unhex},
    rows::{self, ClaimRow, NextPage, TimedReply, hex},
    server::literal::{Arg, Literals, Template},
};

polylock_fuzz::fuzz_targets!(tests: rows, arguments);

/// A row of a reply. A cell `~` is NULL, and other cells are percent-encoded.
pub(crate) struct Row<'t>(Vec<&'t str>);

impl<'t> Row<'t> {
    /// Parses cells that are separated by bars.
    pub(crate) fn parse(line: &'t str) -> Self {
        Self(line.split('|').collect())
    }

    fn cell(&self, column: usize) -> Result<Option<Vec<u8>>, Error> {
        let cell = *require(column, self.0.get(column))?;
        Ok((cell != "~").then(|| percent_decode_str(cell).collect()))
    }
}

impl Columns for Row<'_> {
    fn int(&self, column: usize) -> Result<Option<i64>, Error> {
        let Some(text) = self.text(column)? else { return Ok(None) };
        require(column, text.parse().ok()).map(Some)
    }

    fn bytes(&self, column: usize) -> Result<Vec<u8>, Error> {
        require(column, self.cell(column)?)
    }

    fn text(&self, column: usize) -> Result<Option<String>, Error> {
        Ok(self.cell(column)?.map(|bytes| String::from_utf8_lossy(&bytes).into_owned()))
    }
}

fn rows(input: &[u8]) {
    let text = String::from_utf8_lossy(input);
    let rows: Vec<_> = text.lines().map(Row::parse).collect();
    if let Ok(ClaimRow::Held(token, _)) = rows::claim_row(&rows) {
        assert_eq!(rows[0].int(0).unwrap(), Some(token.as_i64()));
    }
    if let Ok(TimedReply { outcome: Some(ClaimRow::Held(..)), clock_us }) = rows::timed_claim_row(&rows) {
        assert!(rows[0].int(0).unwrap().is_some() && rows[0].int(4).unwrap() == Some(clock_us));
    }
    if let Ok(states) = rows::states(&rows) {
        let text = rows[0].text(0).unwrap().unwrap_or_default();
        assert_eq!(states.len(), text.split(',').filter(|state| !state.is_empty()).count());
    }
    for row in &rows {
        drop(rows::release(Some(row), 0, true));
    }
    drop((rows::loss(&rows), rows::timed_break(&rows), rows::requests(&rows)));

    let locks = rows::statuses(&rows, false).unwrap();
    let entries = || locks.iter().flat_map(|lock| lock.holders.iter().chain(&lock.waiters));
    assert!(entries().count() <= rows.len());
    for entry in entries() {
        assert!(!entry.label.contains(char::is_control) && !entry.owner.as_str().contains(char::is_control));
    }
    if let Ok(strict) = rows::statuses(&rows, true) {
        assert_eq!(strict, locks);
    }
    if let Ok(page) = rows::page(&rows, 3) {
        let NextPage::From(next) = page.next else { return };
        assert!(page.locks.iter().all(|lock| lock.name.as_str().as_bytes() < next.as_slice()));
    }
}

/// Returns a statement with these arguments.
fn statement<L: Literals>(arguments: &[Arg<'_>; 2]) -> String {
    Template::new("SELECT $1, $2").with::<L>(arguments).as_str().to_owned()
}

fn arguments(input: &[u8]) {
    let text = String::from_utf8_lossy(input);
    let digits = hex(input);
    assert_eq!(unhex(0, &digits).unwrap(), input);
    if let Ok(bytes) = unhex(0, &text) {
        assert!(hex(&bytes).eq_ignore_ascii_case(&text), "{text}");
    }
    if let Some(name) = rows::name(input.to_vec()) {
        assert_eq!(name.as_str().as_bytes(), input);
    }
    let statements = |bytes, text| {
        let arguments = [Arg::Bytes(bytes), Arg::Text(text)];
        [statement::<MySql>(&arguments), statement::<Postgres>(&arguments)]
    };
    let in_text = hex(text.as_bytes());
    for (filled, empty) in statements(input, &text).iter().zip(statements(b"", "")) {
        // No argument adds anything but digits, which PostgreSQL's texts have in escapes of two.
        let escaped = filled.matches("\\x").count() - empty.matches("\\x").count();
        assert!(escaped == 0 || escaped == text.len(), "{filled}");
        assert_eq!(filled.len() - 2 * escaped, empty.len() + digits.len() + in_text.len(), "{filled}");
        assert!(
            filled.bytes().all(|byte| byte.is_ascii_hexdigit() || b"SELECT Ex\\',".contains(&byte)),
            "{filled}"
        );
    }
}
