//! `docs/comparison.md`, generated from the results.

use std::{fmt::Write as _, io, path::PathBuf};

use serde_json::Value;

use super::{
    parts::{CONTENDERS, CONTENTION, MANY, NAMES, RECOVERY, SEED},
    run,
    subject::{Subject, subjects},
};
use crate::{
    cargo::workspace,
    chaos::{
        page::cells::{number, row},
        plan::Kind,
    },
};

/// Returns the path of the page.
#[must_use]
pub fn path() -> PathBuf {
    workspace().join("docs/comparison.md")
}

/// Returns the page for the results in the workspace.
///
/// # Errors
/// If they can't be read.
pub fn current() -> io::Result<String> {
    Ok(page(&run::read(&run::path())?))
}

const BEGIN: &str = "\
# The stores and other libraries compared

This page is generated from [the results](../integration-tests/record/comparison.json) of one command, which installs the other libraries,
starts the servers, measures and writes the page:

```sh
scripts/comparison.sh
```

Each library is used by a program of its own, as its documentation shows it, with its defaults or the settings that it recommends; polylock is
used by such a program as well ([programs](../integration-tests/peers/README.md), [settings](safety.md#other-libraries)). The programs and all
servers run on the same machine, so there is no network, and the latency of yours comes on top. All servers keep grants through a crash: Redis
syncs each command, and the databases each commit. The lease is 3 s, the session timeout of ZooKeeper 4 s, and the lease in Azure 15 s, which is
its shortest one. Azure is an emulator. The clients of the lock services use the Rust library; both services run beside the database.

Machines differ: compare the rows with each other, and measure on yours. [Choosing](choosing.md#the-stores-compared) says in plain words
what the numbers mean. `—` is not measured. A feature that a library has no interface for is \"not offered\", which is no fault of it.
";

type Cell = fn(&Subject, &Value) -> String;

/// A table, with the text above it.
struct Table {
    title: &'static str,
    text: fn() -> String,
    columns: &'static [(&'static str, Cell)],
}

const TABLES: [Table; 6] = [
    Table {
        title: "Speed",
        text: || {
            "A pair is an acquisition and a release by a client that is alone. A hand-over is the time from the begin of a release in one \
             process to the grant in another process, which has waited for 5 to 205 ms."
                .to_owned()
        },
        columns: &[
            ("pair, p50", |_, it| time(&it["alone"], "p50_us")),
            ("pair, p99", |_, it| time(&it["alone"], "p99_us")),
            ("hand-over, p50", |_, it| time(&it["hand-over"], "p50_us")),
            ("hand-over, p99", |_, it| time(&it["hand-over"], "p99_us")),
            ("hand-overs", |_, it| count(&it["hand-over"], "hand_overs")),
        ],
    },
    Table {
        title: "Many contenders",
        text: || {
            let (processes, clients) = CONTENDERS;
            format!(
                "{} clients, in {processes} processes, use one lock again and again for {CONTENTION:?}, and do nothing while they hold it. A rate alone says \
                 nothing: a releaser that acquires its own lock again at once is fast, and the others starve. Fairness is the fewest grants of a \
                 client divided by the most: 1 is fair.",
                processes * clients
            )
        },
        columns: &[
            ("grants per second", |_, it| rate(&it["contended"])),
            ("fairness", |_, it| fairness(&it["contended"])),
            ("grants of a client", |_, it| range(&it["contended"])),
            ("longest wait", |_, it| time(&it["contended"], "longest_wait_us")),
        ],
    },
    Table {
        title: "Commands of a grant",
        text: || {
            "The commands that servers receive for an acquisition and its release, counted by the servers: transactions in PostgreSQL, statements in \
             MariaDB, commands of clients in Redis (at each server of a Redlock), packets in ZooKeeper, and HTTP requests to Azure. Renewals, queries \
             of waiters and pings count as well. Those of lock services are the ones that they send to their store."
                .to_owned()
        },
        columns: &[
            ("alone", |_, it| decimal(&it["commands"], "alone")),
            ("64 contenders", |_, it| decimal(&it["commands"], "contended")),
        ],
    },
    Table {
        title: "After a failure",
        text: || {
            format!(
                "The time to free is from `kill -9` of a holder to the grant of a client that waits: the shortest to the longest of three. The lead is \
                 from the notification of a holder that the network delivers nothing to any more to that grant, in the same way; it is negative if \
                 another client had the lock first. Failures survived is the number of servers that can be killed, one after the other, so that locks are \
                 still granted within {RECOVERY:?}; the time is from the last such kill to the next grant."
            )
        },
        columns: &[
            ("time to free", |_, it| {
                let of = &it["kill"];
                cell_of(of, || span(of["free_after_us"].as_array()?))
            }),
            ("lead of the notification", |_, it| lead(&it["notification"])),
            ("failures survived", |_, it| survived(&it["failures"])),
            ("next grant", |_, it| {
                let of = &it["failures"];
                cell_of(of, || Some(of["granted_after_us"].as_array()?.last().map_or_else(none, duration)))
            }),
        ],
    },
    Table {
        title: "Under faults",
        text: || {
            format!(
                "The clients of [the safety record](safety.md) under one fixed list of faults: seed {SEED}, 31 s, the kinds that every store has ({}). \
                 An overlap is a pair of clients that believe at the same time that they hold a lock. A regressed token is one that is not greater \
                 than all earlier ones. One run shows what can happen, and does not measure how often it does.",
                Kind::COMMON.iter().map(|kind| kind.name()).collect::<Vec<_>>().join(", ")
            )
        },
        columns: &[
            ("sections", |_, it| count(&it["faults"], "sections")),
            ("faults", |_, it| {
                let of = &it["faults"];
                cell_of(of, || {
                    Some(number(of["faults"].as_object()?.values().filter_map(Value::as_u64).sum()))
                })
            }),
            ("overlaps", |_, it| violations(&it["faults"], "overlap")),
            ("regressed tokens", |subject, it| {
                if subject.peer.is_some() {
                    "not offered".to_owned()
                } else {
                    violations(&it["faults"], "token")
                }
            }),
            ("other violations", |_, it| others(&it["faults"])),
        ],
    },
    Table {
        title: "Cost",
        text: || {
            format!(
                "One process holds {} locks with a lease of 10 s (Azure: {}, 15 s) for 10 s. The number of locks at 5 % of a core is scaled from its \
                 processor time, and the memory is its growth for each. The residue is the number of rows, keys, nodes or blobs that are left when {NAMES} \
                 locks with different names have been used once: at once, and two leases later, or after 75 s on ZooKeeper, which looks for empty \
                 containers once a minute. The memory of the servers is measured after that, and what their processes share counts once; that of lock services is without their \
                 store.",
                number(MANY.into()),
                MANY / 10
            )
        },
        columns: &[
            ("locks held at 5 % of a core", |_, it| count(&it["held"], "at_5_percent")),
            ("memory of a held lock", |_, it| bytes(&it["held"])),
            ("residue, at once", |_, it| count(&it["residue"], "at_once")),
            ("residue, later", |_, it| count(&it["residue"], "later")),
            ("servers", |_, it| count(&it["servers"], "servers")),
            ("memory of the servers", |_, it| {
                let of = &it["servers"];
                cell_of(of, || Some(format!("{} MiB", number(of["memory_mib"].as_u64()?))))
            }),
        ],
    },
];

const AGAIN: &str = "
## How to run it again

```sh
scripts/comparison.sh                                   # everything: less than 40 minutes
scripts/comparison.sh --only redis --only redis-py      # some stores or libraries; the other results stay
scripts/comparison.sh --part hand-over                  # a part
```
";

/// Returns the page for these results.
#[must_use]
pub fn page(results: &Value) -> String {
    let mut page = BEGIN.to_owned();
    let text = |key: &str| results[key].as_str().unwrap_or("—").to_owned();
    let parts =
        results["subjects"].as_object().into_iter().flat_map(|all| all.values().filter_map(Value::as_object));
    let seconds: u64 =
        parts.flat_map(|parts| parts.values().filter_map(|part| part["seconds"].as_u64())).sum();
    writeln!(
        page,
        "\nMachine: {}. Commit: `{}`, {}. The parts took {} minutes.",
        text("machine"),
        text("commit"),
        text("date"),
        seconds.div_ceil(60)
    )
    .ok();
    for table in TABLES {
        writeln!(page, "\n## {}\n\n{}\n", table.title, (table.text)()).ok();
        let heads = ["store", "library"].into_iter().chain(table.columns.iter().map(|(head, _)| *head));
        row(&mut page, heads);
        writeln!(page, "|{}", "---|".repeat(2 + table.columns.len())).ok();
        for subject in subjects() {
            let of = &results["subjects"][subject.name];
            let cells = table.columns.iter().map(|(_, cell)| cell(subject, of));
            row(&mut page, [subject.store.to_owned(), subject.library()].into_iter().chain(cells));
        }
    }
    page + AGAIN
}

fn none() -> String {
    "—".to_owned()
}

/// Returns the cell of a part: the value, or the reason why there is none.
fn cell_of(part: &Value, value: impl FnOnce() -> Option<String>) -> String {
    if let Some(reason) = part["not_offered"].as_str() {
        return format!("not offered: {reason}");
    }
    if part["failed"].is_string() {
        return "failed".to_owned();
    }
    value().unwrap_or_else(none)
}

fn time(part: &Value, key: &str) -> String {
    cell_of(part, || part[key].as_f64().map(|_| duration(&part[key])))
}

fn count(part: &Value, key: &str) -> String {
    cell_of(part, || whole(&part[key]).map(number))
}

fn decimal(part: &Value, key: &str) -> String {
    cell_of(part, || Some(format!("{:.1}", part[key].as_f64()?)))
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a count, which the file has as a float"
)]
fn whole(value: &Value) -> Option<u64> {
    value.as_u64().or_else(|| value.as_f64().map(|number| number.round() as u64))
}

fn rate(part: &Value) -> String {
    cell_of(part, || whole(&part["grants_per_s"]).map(number))
}

fn fairness(part: &Value) -> String {
    cell_of(part, || Some(format!("{:.2}", part["fewest"].as_f64()? / part["most"].as_f64()?.max(1.0))))
}

fn range(part: &Value) -> String {
    cell_of(part, || {
        Some(format!("{} to {}", number(part["fewest"].as_u64()?), number(part["most"].as_u64()?)))
    })
}

fn bytes(part: &Value) -> String {
    cell_of(part, || Some(format!("{:.1} KiB", part["bytes_each"].as_f64()? / 1024.0)))
}

/// Returns a time in microseconds with a unit.
fn duration(micros: &Value) -> String {
    let micros = micros.as_f64().unwrap_or(f64::NAN);
    match micros.abs() {
        short if short < 1e3 => format!("{micros:.0} µs"),
        middle if middle < 1e6 => format!("{:.1} ms", micros / 1e3),
        _ => format!("{:.2} s", micros / 1e6),
    }
}

/// Returns the shortest and the longest time.
fn span(times: &[Value]) -> Option<String> {
    let order = |a: &&Value, b: &&Value| a.as_f64().unwrap_or(0.0).total_cmp(&b.as_f64().unwrap_or(0.0));
    Some(format!("{} to {}", duration(times.iter().min_by(order)?), duration(times.iter().max_by(order)?)))
}

fn lead(part: &Value) -> String {
    cell_of(part, || {
        let leads = part["leads_us"].as_array()?;
        let notified: Vec<Value> = leads.iter().filter(|lead| !lead.is_null()).cloned().collect();
        let missing = leads.len() - notified.len();
        match (span(&notified), missing) {
            (Some(span), 0) => Some(span),
            (Some(span), missing) => Some(format!("{span}; {missing} of {} not notified", leads.len())),
            (None, missing) => Some(format!("{missing} of {} not notified", leads.len())),
        }
    })
}

fn survived(part: &Value) -> String {
    cell_of(part, || Some(format!("{} of {}", part["survived"].as_u64()?, part["servers"].as_u64()?)))
}

fn violations(part: &Value, kind: &str) -> String {
    cell_of(part, || {
        Some(number(part["violations"].as_object()?.get(kind).and_then(Value::as_u64).unwrap_or(0)))
    })
}

fn others(part: &Value) -> String {
    cell_of(part, || {
        let kinds = part["violations"].as_object()?.iter();
        let kinds = kinds.filter(|(kind, _)| !["overlap", "token"].contains(&kind.as_str()));
        let found: Vec<String> = kinds.map(|(kind, count)| format!("{count} {kind}")).collect();
        Some(if found.is_empty() { "0".to_owned() } else { found.join(", ") })
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_missing_result_is_a_dash_and_reasons_are_shown() {
        let results = json!({ "machine": "2 cores", "subjects": { "redis": {
            "alone": { "p50_us": 81.4, "p99_us": 1_250.0, "seconds": 61 },
            "kill": { "free_after_us": [2_000_000.0, 3_100_000.0], "seconds": 0 },
            "notification": { "leads_us": [-200.0, null, 1_500.0] },
            "contended": { "failed": "no line" },
        }, "redis-py": {
            "notification": { "not_offered": "no notification" },
        } } });
        let shown = page(&results);
        assert!(shown.contains("Machine: 2 cores. Commit: `—`, —. The parts took 2 minutes."), "{shown}");
        assert!(shown.contains("| Redis | polylock | 81 µs | 1.2 ms | — | — | — |"), "{shown}");
        assert!(shown.contains("| Redis | polylock | failed | failed | failed | failed |"), "{shown}");
        let failures =
            "| Redis | polylock | 2.00 s to 3.10 s | -200 µs to 1.5 ms; 1 of 3 not notified | — | — |";
        assert!(shown.contains(failures), "{shown}");
        assert!(shown.contains("| — | not offered: no notification | — | — |"), "{shown}");
        let rows = shown.lines().filter(|line| line.contains(" | kazoo `Lock` 2.11.0 | ")).count();
        assert_eq!(rows, TABLES.len());
    }
}
