//! `docs/safety.md`, generated from the records.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
    io,
    path::PathBuf,
};

use super::{
    configuration::{CONFIGURATIONS, Configuration},
    plan::Kind,
    planted::Bug,
    record::{self, Record},
};
use crate::cargo::workspace;

/// Returns the path of the page.
#[must_use]
pub fn path() -> PathBuf {
    workspace().join("docs/safety.md")
}

/// Returns the directory of the records.
#[must_use]
pub fn records() -> PathBuf {
    workspace().join("integration-tests/record")
}

const BEGIN: &str = "\
# The safety record

Real processes use each store on real servers while faults happen, and a checker reads the history of all of them. This page is generated
from the results of these runs (`integration-tests/record`), which it adds up. [Guarantees](guarantees.md) has the promises and their conditions.

A run has a seed. The seed determines the schedule of faults and the decisions of the clients; it does not determine the run, because the
timing of real servers and of the machine differs each time. [The simulation](../CONTRIBUTING.md#simulation) reproduces a run exactly.

## Faults and promised outcomes

Four processes have several clients each. Each process reaches each server through a proxy of its own, so the faults of the network hit each
pair of them, and each direction, by themselves. Every period of ten seconds has its own selection of faults.

";

/// A fault and its promised outcome on SQLite, the databases, Redis, Redlock, ZooKeeper, and Azure; `=` is the same as to the left.
const OUTCOMES: [(Kind, [&str; 6]); 10] = [
    (
        Kind::ClientStop,
        [
            "the loss is reported when the process continues; no work begins after the deadline; a process that is stopped in a write blocks the file",
            "the same, and no other process is blocked",
            "=",
            "=",
            "=",
            "=",
        ],
    ),
    (
        Kind::ClientKill,
        [
            "its locks are free when their leases have expired; waiters are skipped within 5 s",
            "=",
            "=",
            "=",
            "free when the session has ended",
            "as on SQLite; the service documents up to a minute more",
        ],
    ),
    (
        Kind::ServerStop,
        [
            "no server",
            "no lock is lost if it continues before the deadline; otherwise the loss is reported at the deadline; requests that have arrived have no late effect",
            "=",
            "the same for a majority; a minority has no effect",
            "=",
            "as on the databases",
        ],
    ),
    (
        Kind::ServerKill,
        [
            "no server",
            "locks and tokens survive",
            "the same with `appendfsync always`",
            "the same with durable servers; otherwise a restarted server does not vote for the longest lease",
            "the same for a minority",
            "as on the databases",
        ],
    ),
    (
        Kind::Delay,
        ["no server", "no effect up to the deadline; then the loss is reported", "=", "=", "=", "="],
    ),
    (Kind::BlackHole, ["no server", "the same; broken connections are replaced", "=", "=", "=", "="]),
    (
        Kind::Cut,
        ["no server", "no lock is lost if a connection can be made before the deadline", "=", "=", "=", "="],
    ),
    (
        Kind::LateDelivery,
        [
            "no server",
            "a message that its client has abandoned has no effect",
            "=",
            "=",
            "=",
            "a lease that was acquired late is released within a second",
        ],
    ),
    (
        Kind::OneConnection,
        ["no server", "as the faults above, for one of several connections", "=", "=", "=", "="],
    ),
    (
        Kind::Crowd,
        [
            "all are granted the lock in turn",
            "=",
            "=",
            "all are granted the lock",
            "in turn",
            "all are granted the lock",
        ],
    ),
];

const CHECKS: &str = "
The checker verifies, by the clock that all processes share:

| kind | promise |
|---|---|
| overlap | no two clients believe at the same time that they hold a lock in conflicting modes |
| token | each token is greater than those of all earlier grants of the lock |
| late loss | a running client reports a loss by its deadline, with half a second of tolerance, and never finds the lock held after it |
| order | on a store that promises an order, no request overtakes one that was known to wait, unless a fault hit the queue |
| idle | a free lock is granted to a waiting request within 3 s (Azure: 6 s) after the last fault; after a kill, once the lease has expired |
| orphan | the store shows no hold that no client has, for more than a second, from 1.5 s after the last fault on; after a kill, once the lease has expired |
| stuck | each request without a time limit is granted in the end, and each process ends |
| leak | no entry is left in the store, and no background work in a process |
| error | no error occurs that only a bug explains |

A PostgreSQL server that is killed may restore holds that were released, until their leases expire.

The pessimistic strategy has no promise for a broken connection, so its runs have no faults of the network and no killed server. No run steps
the clock of a server.
";

const AGAIN: &str = "
## How to run it again

```sh
cargo build -p polylock-integration-tests --bins                                               # the processes run `worker`
cargo run -p polylock-integration-tests --bin chaos -- --store redis --seconds 60              # a random seed
cargo run -p polylock-integration-tests --bin chaos -- --store redis --seconds 60 --seed 7     # the same schedule
cargo run -p polylock-integration-tests --bin chaos -- --store postgres --seconds 60 --rounds 60 --record integration-tests/record/postgres.jsonl
cargo run -p polylock-integration-tests --bin chaos -- --store mariadb --seconds 60 --planted late-claim
cargo run -p polylock-integration-tests --bin chaos -- short      # all stores, in less than 15 minutes
cargo run -p polylock-integration-tests --bin chaos -- page       # this page, from the records
```

A run with a violation prints the seed, the schedule, and the shortest part of the history that shows it, and has exit code 1.
";

/// Returns the page for the records in the workspace.
///
/// # Errors
/// If they can't be read.
pub fn current() -> io::Result<String> {
    record::read_all(&records()).map(|records| page(&records))
}

/// Returns the page for these records.
#[must_use]
pub fn page(records: &[Record]) -> String {
    let mut page = BEGIN.to_owned();
    page += "| fault | SQLite | PostgreSQL, MariaDB | Redis | Redlock | ZooKeeper | Azure |\n|---|---|---|---|---|---|---|\n";
    for (kind, outcomes) in OUTCOMES {
        row(&mut page, [kind.name()].into_iter().chain(outcomes));
    }
    page += CHECKS;
    let of = |configuration: &Configuration| {
        let name = configuration.name;
        records.iter().filter(move |record| record.configuration == name && record.planted.is_none())
    };
    let promised = || CONFIGURATIONS.iter().filter(|configuration| configuration.is_promised());
    page += "\n## Results\n\n\
        | store | runs (seeds) | hours | sections | faults | violations | last run | commit |\n|---|---|---|---|---|---|---|---|\n";
    for configuration in promised() {
        row(&mut page, summary(configuration.name, of(configuration)));
    }
    page += "\nThe faults by kind:\n\n| fault |";
    promised().for_each(|configuration| page += &format!(" {} |", configuration.name));
    page += "\n|---|";
    promised().for_each(|_| page += "---|");
    page.push('\n');
    for kind in Kind::ALL {
        let count = |configuration| -> u64 {
            of(configuration).map(|record| record.faults.get(kind.name()).copied().unwrap_or(0)).sum()
        };
        row(&mut page, [kind.name().to_owned()].into_iter().chain(promised().map(|it| number(count(it)))));
    }
    page += "\n## Planted bugs\n\nEach was planted at run time, or in a copy of the code, and searched for without hints. A run ends soon after the first violation.\n\n\
        | bug | store | found in runs | time to the first violation | violations |\n|---|---|---|---|---|\n";
    planted(&mut page, records);
    page += "\n## Configurations without a promise\n\nThey are run as well, and have to be seen to fail.\n\n\
        | configuration | reason | failed in runs | time to the first violation | violations |\n|---|---|---|---|---|\n";
    for configuration in CONFIGURATIONS.iter().filter(|configuration| !configuration.is_promised()) {
        let runs: Vec<&Record> = of(configuration).collect();
        let [found, time, kinds] = detection(&runs);
        row(&mut page, [configuration.name, configuration.why, &found, &time, &kinds]);
    }
    page + AGAIN
}

fn row(page: &mut String, cells: impl IntoIterator<Item: AsRef<str>>) {
    let cells = cells.into_iter().map(|cell| format!(" {} |", cell.as_ref()));
    writeln!(page, "|{}", cells.collect::<String>()).ok();
}

/// Returns the cells of a store.
fn summary<'r>(name: &str, records: impl Iterator<Item = &'r Record>) -> Vec<String> {
    let records: Vec<&Record> = records.collect();
    let sum = |of: fn(&Record) -> u64| number(records.iter().map(|record| of(record)).sum());
    let seeds: BTreeSet<u64> = records.iter().map(|record| record.seed).collect();
    let hours = records.iter().fold(0.0, |sum, record| sum + record.seconds) / 3600.0;
    let last = records.iter().max_by_key(|record| &record.date);
    vec![
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
fn kinds(records: &[&Record]) -> String {
    let mut sums: BTreeMap<&str, u64> = BTreeMap::new();
    for (kind, count) in records.iter().flat_map(|record| &record.violations) {
        *sums.entry(kind).or_default() += count;
    }
    let sums: Vec<String> = sums.iter().map(|(kind, count)| format!("{} {kind}", number(*count))).collect();
    if sums.is_empty() { "0".to_owned() } else { sums.join(", ") }
}

/// Returns the number of runs that found something, the time that they needed, and the violations.
fn detection(runs: &[&Record]) -> [String; 3] {
    let mut times: Vec<f64> = runs.iter().filter_map(|record| record.detected).collect();
    times.sort_by(f64::total_cmp);
    let time = match times[..] {
        [] => String::new(),
        [only] => format!("{only:.1} s"),
        [first, .., last] => format!("{first:.1} to {last:.1} s, median {:.1} s", times[times.len() / 2]),
    };
    [format!("{} of {}", times.len(), runs.len()), time, kinds(runs)]
}

fn planted(page: &mut String, records: &[Record]) {
    let mut runs: BTreeMap<(&str, &str), Vec<&Record>> = BTreeMap::new();
    for record in records {
        if let Some(bug) = &record.planted {
            runs.entry((bug, &record.configuration)).or_default().push(record);
        }
    }
    for ((bug, store), runs) in runs {
        let known = CONFIGURATIONS.iter().find(|configuration| configuration.name == store);
        let meaning = known
            .and_then(|it| Bug::of(it).find(|it| it.name() == bug))
            .map_or("in the code of the library", Bug::meaning);
        let [found, time, kinds] = detection(&runs);
        row(page, [&format!("`{bug}`: {meaning}"), store, &found, &time, &kinds]);
    }
}

/// Writes a number with separators.
fn number(number: u64) -> String {
    let digits = number.to_string();
    let groups: Vec<&[u8]> = digits.as_bytes().rchunks(3).rev().collect();
    groups.iter().map(|group| String::from_utf8_lossy(group)).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_added_up_and_violations_are_shown() {
        let run = |seed, sections, violations: &[(&str, u64)]| Record {
            configuration: "redis".to_owned(),
            commit: "abc".to_owned(),
            date: format!("2026-01-0{seed}"),
            seed,
            sections,
            violations: violations.iter().map(|(kind, count)| ((*kind).to_owned(), *count)).collect(),
            seconds: 1800.0,
            detected: (!violations.is_empty()).then_some(1.5),
            ..Record::default()
        };
        let shown = page(&[run(1, 999, &[]), run(2, 1, &[("overlap", 2)])]);
        assert!(
            shown.contains("| redis | 2 (2) | 1.00 | 1,000 | 0 | 2 overlap | 2026-01-02 | `abc` |"),
            "{shown}"
        );
        let bug = Record { planted: Some("forgets".to_owned()), ..run(3, 7, &[("overlap", 1)]) };
        let shown = page(&[bug]);
        assert!(shown.contains("| redis | 0 (0) |"), "{shown}");
        assert!(shown.contains("every second | redis | 1 of 1 | 1.5 s | 1 overlap |"), "{shown}");
    }
}
