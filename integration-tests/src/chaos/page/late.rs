//! The results of late messages.

use std::collections::BTreeMap;

use super::cells::{detection, number, row, summary};
use crate::{
    chaos::record::Record,
    late::{
        record::{EXCUSED, FAULTS, configuration},
        site::STORES,
    },
};

const BEGIN: &str = "
## Late messages

In each of these schedules, a process holds a lock on real servers, a second one adopts the hold, a third one breaks it, and a fourth one waits for the
lock. One message of one of them, or all of them from that one on, reach the server late: half a second later, after the end of the lease, or when the next
holder has the lock, also if their client has gone. Leases last from 100 ms to an hour. In some schedules, copies of messages arrive in addition and in
another order. A file has no messages, so a process is stopped in its operations instead.

No message may let two requests hold the lock, shorten a lease that was confirmed, break a hold that was no target of the break, or leave an entry beyond
its lease. A break, or a release of a hold that others know, which has failed must have no effect any more.

| store | schedules | seeds | late messages | further copies | violations | minutes | last run | commit |
|---|---|---|---|---|---|---|---|---|
";

const EXCEPTIONS: &str = "
Exceptions that the documentation of a store names, with the number of times that each was seen:

| store | exception | seen |
|---|---|---|
";

const PLANTED: &str = "
Planted bugs of the stores, and events that are hidden from the check:

| bug | store | found in runs | time until it was found | violations |
|---|---|---|---|---|
";

/// Writes the tables.
pub(super) fn results(page: &mut String, records: &[Record]) {
    *page += BEGIN;
    let names = STORES.map(|store| (store, vec![configuration(store)]));
    let all = ("all", STORES.map(configuration).to_vec());
    for (title, names) in names.iter().chain([&all]) {
        let runs: Vec<&Record> =
            records.iter().filter(|it| names.contains(&it.configuration) && it.planted.is_none()).collect();
        let sum = |of: &dyn Fn(&Record) -> u64| number(runs.iter().map(|record| of(record)).sum());
        let [withheld, copied] =
            FAULTS.map(|fault| sum(&|record| record.faults.get(fault).copied().unwrap_or(0)));
        let [_, _, _, _, _, violations, last, commit] = summary(title, runs.iter().copied());
        let seeds: std::collections::BTreeSet<u64> = runs.iter().map(|record| record.seed).collect();
        let minutes = runs.iter().fold(0.0, |sum, record| sum + record.seconds) / 60.0;
        let (schedules, seeds) = (sum(&|record| record.runs), seeds.len().to_string());
        let minutes = format!("{minutes:.0}");
        row(page, [*title, &schedules, &seeds, &withheld, &copied, &violations, &minutes, &last, &commit]);
    }
    let mut excused: BTreeMap<(&str, &str), u64> = BTreeMap::new();
    let mut bugs: BTreeMap<(&str, &str), Vec<&Record>> = BTreeMap::new();
    for record in records {
        let Some(store) = record.configuration.strip_prefix("late ") else { continue };
        if let Some(bug) = &record.planted {
            bugs.entry((bug, store)).or_default().push(record);
            continue;
        }
        for (fault, count) in &record.faults {
            if let Some(name) = fault.strip_prefix(EXCUSED) {
                *excused.entry((store, name)).or_default() += count;
            }
        }
    }
    *page += EXCEPTIONS;
    for ((store, name), count) in excused {
        row(page, [store, name, &number(count)]);
    }
    *page += PLANTED;
    for ((bug, store), runs) in bugs {
        let [found, time, violations] = detection(&runs);
        row(page, [&format!("`{bug}`"), store, &found, &time, &violations]);
    }
}
