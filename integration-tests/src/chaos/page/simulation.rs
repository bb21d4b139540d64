//! The results of the simulation.

use std::collections::BTreeMap;

use clap::ValueEnum;

use super::cells::{detection, number, row, summary};
use crate::{
    chaos::record::Record,
    simulation::{
        plan::{Planted, StoreKind},
        search,
    },
};

const BEGIN: &str = "
## The simulation

The real core, with the model of a store with queues or the real code of a store, runs in virtual time on one machine: servers, processes and messages
are stopped, late and lost as the seed says, and each process and server has a clock of its own. A seed reproduces its run.

Every second run is *busy*: leases are short, and faults happen at any time. The others are *calm*: faults come in bursts, and between them it is quiet.
Clients use leases of up to ten seconds, set the shortest and the longest time of a hold, leave futures unpolled, and break locks; connections get stuck, and
servers refuse calls. In the calm runs and in some of the busy ones, holds go from one process to another by their handles, with longer and shorter leases; they are converted,
ended at a later time, released by a process that has not claimed them, and broken by tokens that someone has seen a while ago. ZooKeeper has no such holds. With `both:`, a fleet moves from one store
to the other and back, as [the guide](migration.md) says, while some processes are killed instead of stopped. Each attempt has an owner of its own, so the checker knows who uses an entry in the store. From 1.5 s after the last fault on, an
entry that nobody uses must be gone within a second (ZooKeeper: when its session has ended), a lock must not stay free while a request waits, and a hold must not
be lost. SQLite itself runs on a real file, one statement after the other: its disk is slow, hangs or fails, and another program keeps the file locked.

| store | runs | hours | sections | faults | violations | last run | commit |
|---|---|---|---|---|---|---|---|
";

const PLANTED: &str = "
Planted bugs, searched for from random seeds, in a release build on two processors:

| bug | store | found in searches | time until it was found |
|---|---|---|---|
";

/// Writes the tables.
pub(super) fn results(page: &mut String, records: &[Record]) {
    *page += BEGIN;
    let stores = StoreKind::value_variants();
    let names: Vec<String> = stores.iter().map(|store| search::configuration(*store)).collect();
    let mut row_of = |title: &str, names: &[String]| {
        let of_stores =
            || records.iter().filter(|it| names.contains(&it.configuration) && it.planted.is_none());
        let [_, _, hours, sections, faults, violations, last, commit] = summary(title, of_stores());
        let runs = number(of_stores().map(|record| record.runs).sum());
        row(page, [title, &runs, &hours, &sections, &faults, &violations, &last, &commit]);
    };
    for (store, name) in stores.iter().zip(&names) {
        row_of(&help(store), std::slice::from_ref(name));
    }
    row_of("all", &names);
    *page += PLANTED;
    let mut searches: BTreeMap<&str, Vec<&Record>> = BTreeMap::new();
    for record in records.iter().filter(|record| record.configuration.starts_with("simulated ")) {
        if let Some(bug) = &record.planted {
            searches.entry(bug).or_default().push(record);
        }
    }
    for planted in Planted::value_variants() {
        let name = search::name(planted);
        let [found, time, _] = detection(searches.get(&*name).map_or(&[], Vec::as_slice));
        row(page, [&format!("`{name}`: {}", help(planted)), &search::name(&planted.store()), &found, &time]);
    }
}

fn help(value: &impl ValueEnum) -> String {
    let help = value.to_possible_value().and_then(|value| value.get_help().map(ToString::to_string));
    help.unwrap_or_default().trim_end_matches('.').to_owned()
}
