//! The cells of the page's tables.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
};

use crate::chaos::record::Record;

pub(crate) fn row(page: &mut String, cells: impl IntoIterator<Item: AsRef<str>>) {
    let cells = cells.into_iter().map(|cell| format!(" {} |", cell.as_ref()));
    writeln!(page, "|{}", cells.collect::<String>()).ok();
}

/// Returns the cells of a store.
pub(super) fn summary<'r>(name: &str, records: impl Iterator<Item = &'r Record>) -> [String; 8] {
    let records: Vec<&Record> = records.collect();
    let sum = |of: fn(&Record) -> u64| number(records.iter().map(|record| of(record)).sum());
    let seeds: BTreeSet<u64> = records.iter().map(|record| record.seed).collect();
    let hours = records.iter().fold(0.0, |sum, record| sum + record.seconds) / 3600.0;
    let last = records.iter().max_by_key(|record| &record.date);
    [
        name.to_owned(),
        format!("{} ({})", number(records.len() as u64), number(seeds.len() as u64)),
        format!("{hours:.2}"),
        sum(|record| record.sections),
        sum(|record| record.faults.values().sum()),
        kinds(&records),
        last.map(|record| record.date.clone()).unwrap_or_default(),
        last.map(|record| format!("`{}`", record.commit)).unwrap_or_default(),
    ]
}

/// Returns the numbers of violations, by kind.
pub(super) fn kinds(records: &[&Record]) -> String {
    let mut sums: BTreeMap<&str, u64> = BTreeMap::new();
    for (kind, count) in records.iter().flat_map(|record| &record.violations) {
        *sums.entry(kind).or_default() += count;
    }
    let sums: Vec<String> = sums.iter().map(|(kind, count)| format!("{} {kind}", number(*count))).collect();
    if sums.is_empty() { "0".to_owned() } else { sums.join(", ") }
}

/// Returns the number of runs that found something, the time that they needed, and the violations.
pub(super) fn detection(runs: &[&Record]) -> [String; 3] {
    let mut times: Vec<f64> = runs.iter().filter_map(|record| record.detected).collect();
    times.sort_by(f64::total_cmp);
    let time = match times[..] {
        [] => String::new(),
        [only] => format!("{only:.1} s"),
        [first, .., last] => format!("{first:.1} to {last:.1} s, median {:.1} s", times[times.len() / 2]),
    };
    [format!("{} of {}", times.len(), runs.len()), time, kinds(runs)]
}

/// Writes a number with separators.
pub(crate) fn number(number: u64) -> String {
    let digits = number.to_string();
    let groups: Vec<&[u8]> = digits.as_bytes().rchunks(3).rev().collect();
    groups.iter().map(|group| String::from_utf8_lossy(group)).collect::<Vec<_>>().join(",")
}
