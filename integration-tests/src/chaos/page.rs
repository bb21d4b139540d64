//! `docs/safety.md`, generated from the records.

pub(crate) mod cells;
mod late;
mod simulation;

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
    io,
    path::PathBuf,
};

use self::cells::{detection, number, row, summary};
use super::{
    configuration::{CONFIGURATIONS, Configuration},
    peers::{PEERS, Peer},
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
pair of them, and each direction, by themselves. Every period of ten seconds has its own selection of faults. In some runs, most sections are
short and use many locks, so there are many of them.
The clients acquire plain locks, several locks together, the root of a tree, and the slot of a semaphore with one slot.
They leave some holds to other processes, which adopt them by their handles, and break some holds of others.

";

/// What became of the violations in the table of results.
const MENDED: &str = "\nEach violation was explained, and is mended. The orphan: a message of a client in another language reached the lock service after the \
    client had moved on; messages name their expiry now. The losses: holds had the votes of a bare majority, and one of these servers was \
    silent; the other servers get the vote now.\n";

/// A fault and its promised outcome on SQLite, the databases, Redis, Redlock, ZooKeeper, and Azure; `=` is the same as to the left.
const OUTCOMES: [(Kind, [&str; 6]); 16] = [
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
            "the same; an election, of 2 s at most, belongs to the outage",
            "as on the databases",
        ],
    ),
    (
        Kind::ServerKill,
        [
            "no server",
            "locks and tokens survive",
            "the same with `appendfsync always`",
            "the same; a restarted server does not vote for the longest lease",
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
    (Kind::Rush, ["no other lock is lost", "=", "=", "not run", "not run", "not run"]),
    (
        Kind::ClockStep,
        [
            "the machine's clock, which no run steps",
            "leases end early or late, so two clients may hold a lock; tokens continue to grow",
            "=",
            "the same, and tokens may repeat",
            "no effect",
            "leases end early or late, so two clients may hold a lock; tokens continue to grow",
        ],
    ),
    (
        Kind::FullDisk,
        [
            "no server",
            "locks and tokens survive; requests fail while there is no room, and a server that has ended is started again",
            "=",
            "the same for a majority",
            "=",
            "not run",
        ],
    ),
    (
        Kind::OldSnapshot,
        ["no server", "two clients may hold a lock, and tokens may repeat", "=", "=", "not run", "not run"],
    ),
    (
        Kind::ChangedStart,
        [
            "no server",
            "not run",
            "not run",
            "locks and tokens survive: the server does not vote for the longest lease",
            "not run",
            "not run",
        ],
    ),
    (
        Kind::SwitchOver,
        [
            "no server",
            "no request ends because of the store; locks and tokens survive, if the standby has all that was acknowledged; a hold whose deadline passes is lost",
            "the same, if the failover loses no write",
            "not run",
            "as on the databases",
            "the same; the service is interrupted",
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
| idle | a free lock is granted to a waiting request within 3 s (Azure: 6 s) after the last fault |
| orphan | the lock of a killed client is granted in that time after its lease; the store shows no hold that no client has, for more than a second, from 1.5 s after the last fault on; after a kill, once the lease has expired |
| late claim | a claim has no effect in PostgreSQL, MariaDB and Redis after its time limit: no entry of a request appears by a later time after the end of the request |
| loss | no lock is lost while no fault concerns its process and the servers, from its claim on |
| slow | four of five hand-overs to a waiting request take less than 100 ms while no fault happens; not on Azure, where clients poll |
| stuck | each request without a time limit is granted in the end, and each process ends |
| leak | no entry is left in the store, and no background work in a process |
| error | no error occurs that only a bug explains |

A PostgreSQL server that is killed may restore holds that were released, until their leases expire.

In `http_languages`, clients in Rust, Python, TypeScript and Go use two lock services at the same time. A grant that the network loses occupies its lock for one lease, and a
client that waits gives a silent server up after 15 s: the lock is not idle until then. In `http_restarts`, one of the services is killed or stopped every second.

The pessimistic strategy has no promise for a broken connection, so its runs have no faults of the network and no killed server. Configurations
of their own step the clocks of servers by up to ten seconds, fill their disks, or return servers to data of up to three seconds before. In
`redlock3_starts` and `redlock5_starts`, servers are started again with a clock that is up to 3.5 s ahead, with the data of a time before, because they were not durable
since, or with a copy of another server's data; each process has the list of servers in another order.

In the configurations with switch-overs, the server that accepts the writes changes every 14 s, and for 2 to 10 s none accepts them: clients see a server that is
read-only, or get no reply at all. PostgreSQL has a synchronous standby, and its primary is stopped or killed. MariaDB and Redis end the role of the primary in an orderly
way, because their replication is asynchronous. All clients use one address, or the Sentinels. In ZooKeeper the leader is killed or stopped, and in Azure the
emulator; `http_postgres_standby` is the lock service in front of such a PostgreSQL. The clients wait for the store for up to a minute, so an end of a request that
waits, of a try with an outage of its own, or of a candidate is an error.
";

const OTHERS: &str = "
## Other libraries

The same runner drives other lock libraries: on the same servers, with the same seeds and so the same schedule of faults, and with the same checker.
[`integration-tests/peers`](../integration-tests/peers/README.md) has their programs and the script. All holds of these programs are shorter than
half a lease. The clients of polylock also hold longer with renewal, share locks, set time limits and drop requests. The lease is 3 s in Redis; the
session timeout is 4 s in ZooKeeper.

A client believes that it has the lock from the return of the acquisition until it begins the release, is notified of a loss, or the
validity ends that the library reports or documents. Overlaps are pairs of such holds. A lost wake-up is the violation `idle`. A request is
stuck if it is not granted within five leases after the last fault (polylock: three leases and 15 s). Orphans are locks of killed clients
that are granted more than 3 s after the lease and the last fault, or that can't be acquired after the run.

The time to free is from the kill of a holder to the next grant of its lock, where another client had requested it by a second later and no
other kind of fault happened. Kills come in bursts: the next client in a queue may be killed as well, which adds its own session or lease.
After a black hole, its connections pass nothing more, as if a router had forgotten them.

A promise that a library does not make is not offered, and is no fault of it: a caller of a library without notification has to compare
the time with the lease by itself, and a library without a fencing token leaves the protection from late writes to its caller.
A few short runs show what can happen; they do not measure how often it does.

| library | licence | store | runs (seeds) | sections | faults | overlaps | lost wake-ups | stuck | orphans | time to free, median (longest, kills) | notification of a loss | fencing token | other violations | commit |
|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|
";

const AGAIN: &str = "
## How to run it again

```sh
cargo build -p polylock-integration-tests --bins                                               # the processes run `worker`
cargo run -p polylock-integration-tests --bin chaos -- --store redis --seconds 60              # a random seed
cargo run -p polylock-integration-tests --bin chaos -- --store redis --seconds 60 --seed 7     # the same schedule
cargo run -p polylock-integration-tests --bin chaos -- long --minutes 30                       # continues the long record
cargo run -p polylock-integration-tests --bin chaos -- --store mariadb --seconds 60 --planted late-claim
integration-tests/peers/run.sh                                    # the other libraries
cargo run -p polylock-integration-tests --bin chaos -- short      # all stores without switch-overs, in less than 15 minutes
cargo run -p polylock-integration-tests --bin simulate -- --seconds 60 --store redis --record integration-tests/record/simulation.jsonl
cargo run -p polylock-integration-tests --bin simulate -- --all-planted 3
cargo run -p polylock-integration-tests --bin late -- --store redis --schedules 1000 --record integration-tests/record/late.jsonl
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
        records.iter().filter(move |record| record.is_run_of(name))
    };
    let promised = || CONFIGURATIONS.iter().filter(|configuration| configuration.is_promised());
    page += "\n## Results\n\n\
        | store | runs (seeds) | hours | sections | faults | violations | last run | commit |\n|---|---|---|---|---|---|---|---|\n";
    for configuration in promised() {
        row(&mut page, summary(configuration.name, of(configuration)));
    }
    page += MENDED;
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
    simulation::results(&mut page, records);
    late::results(&mut page, records);
    others(&mut page, records);
    page + AGAIN
}

fn planted(page: &mut String, records: &[Record]) {
    let mut runs: BTreeMap<(&str, &str), Vec<&Record>> = BTreeMap::new();
    for record in records.iter().filter(|record| record.runs == 0) {
        if let Some(bug) = &record.planted {
            runs.entry((bug, &record.configuration)).or_default().push(record);
        }
    }
    for ((bug, store), runs) in runs {
        let known = CONFIGURATIONS.iter().find(|configuration| configuration.name == store);
        let meaning = known
            .and_then(|it| Bug::of(it).chain(Bug::in_code_of(it)).find(|it| it.name() == bug))
            .map_or("in the code of the library", Bug::meaning);
        let [found, time, kinds] = detection(&runs);
        row(page, [&format!("`{bug}`: {meaning}"), store, &found, &time, &kinds]);
    }
}

fn others(page: &mut String, records: &[Record]) {
    *page += OTHERS;
    for peer in &PEERS {
        let runs: Vec<&Record> =
            records.iter().filter(|record| record.peer.as_deref() == Some(peer.name)).collect();
        if !runs.is_empty() {
            row(page, comparison(peer, &runs));
        }
    }
    *page += "\nTheir configurations, which are the defaults or what the documentation recommends:\n\n";
    for peer in PEERS.iter().filter(|peer| peer.is_foreign()) {
        writeln!(page, "- {}: {}.", peer.library, peer.setup).ok();
    }
}

/// Returns the cells of a peer.
fn comparison(peer: &Peer, runs: &[&Record]) -> Vec<String> {
    let [name, _, _, sections, faults, _, _, commit] = summary(peer.store.name, runs.iter().copied());
    let of = |kinds: &[&str]| {
        let count =
            |record: &&Record| kinds.iter().filter_map(|kind| record.violations.get(*kind)).sum::<u64>();
        number(runs.iter().map(count).sum())
    };
    let seeds: BTreeSet<u64> = runs.iter().map(|record| record.seed).collect();
    let seeds: Vec<String> = seeds.iter().map(u64::to_string).collect();
    let mut times: Vec<f64> = runs.iter().flat_map(|record| &record.freed).copied().collect();
    times.sort_by(f64::total_cmp);
    let time = times.last().map_or_else(
        || "not measured".to_owned(),
        |longest| format!("{:.1} s ({longest:.1} s, {})", times[times.len() / 2], times.len()),
    );
    let offered = |is_offered: bool, what: &str| if is_offered { what } else { "not offered" }.to_owned();
    let notifies = peer.notifies.unwrap_or_default();
    vec![
        format!("{} {}", peer.library, peer.version).trim_end().to_owned(),
        peer.license.to_owned(),
        name,
        format!("{} ({})", runs.len(), seeds.join(", ")),
        sections,
        faults,
        of(&["overlap"]),
        of(&["idle"]),
        of(&["stuck"]),
        of(&["orphan"]),
        time,
        offered(peer.notifies.is_some(), notifies),
        offered(!peer.is_foreign(), "yes"),
        of(&["token", "late loss", "loss", "slow", "order", "leak", "error"]),
        commit,
    ]
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
        let peer = |seed, violations, freed| Record {
            peer: Some("redis-py".to_owned()),
            freed,
            ..run(seed, 5, violations)
        };
        let shown = page(&[peer(4, &[("overlap", 1), ("stuck", 2)], vec![3.0]), peer(5, &[], vec![2.0])]);
        assert!(shown.contains("| redis | 0 (0) |"), "{shown}");
        let cells = "| redis | 2 (4, 5) | 10 | 0 | 1 | 0 | 2 | 0 | 3.0 s (3.0 s, 2) | not offered | not offered | 0 |";
        assert!(shown.contains(cells), "{shown}");
    }
}
