//! The goals, and the verdicts of a run. All are ratios or counts that were measured in the same run.

use serde_json::Value;

use crate::{
    peer::{AtScale, RSLOCK},
    report::Report,
    setups::Setup,
    verdict::{Bound, Verdict},
};

/// The limit for a pair on a multi-thread runtime, as a multiple of the pair of the raw client.
pub(crate) const fn pair(setup: Setup) -> f64 {
    match setup {
        Setup::ZooKeeperDurable | Setup::ZooKeeperForgetful => 1.1,
        Setup::SqliteFull | Setup::PostgresFull | Setup::Azure | Setup::Memory => 1.15,
        Setup::SqliteNormal
        | Setup::PostgresRelaxed
        | Setup::MariaDbFull
        | Setup::MariaDbRelaxed
        | Setup::RedisDurable => 1.3,
        Setup::RedisForgetful | Setup::Redlock | Setup::RedlockOneFrozen => 1.4,
    }
}

/// The limit on a current-thread runtime, for every store.
pub(crate) const CURRENT_THREAD: f64 = 1.4;

/// The longest hand-over between processes, as a multiple of a raw pair, or of a script's round trip in Redis.
const HAND_OVER: [(Setup, f64); 8] = [
    (Setup::RedisDurable, 2.5),
    (Setup::RedisForgetful, 2.5),
    (Setup::PostgresFull, 1.5),
    (Setup::PostgresRelaxed, 1.5),
    (Setup::MariaDbFull, 3.0),
    (Setup::MariaDbRelaxed, 3.0),
    (Setup::SqliteFull, 3.0),
    (Setup::SqliteNormal, 3.0),
];

/// The configurations of one lock in the goals.
pub(crate) const ONE_PROCESS: &str = "64 tasks, 1 process";
pub(crate) const PROCESSES: &str = "8 processes x 8";

/// The cost of an uncontended semaphore, as a multiple of that of a lock.
const SEMAPHORE: f64 = 2.2;
const HAS_SEMAPHORE_GOAL: [Setup; 4] =
    [Setup::RedisDurable, Setup::RedisForgetful, Setup::PostgresFull, Setup::PostgresRelaxed];

/// The number of waiters of one lock that are served within ten seconds.
pub(crate) const WAITERS: [(&str, u64); 5] =
    [("redis", 10_000), ("postgres", 10_000), ("sqlite", 10_000), ("mariadb", 3_000), ("zookeeper", 3_000)];

/// The number of locks that one process holds, and the stores.
pub(crate) const HELD: (u64, [&str; 6]) =
    (10_000, ["redis", "redlock", "postgres", "sqlite", "mariadb", "zookeeper"]);

/// Returns the verdicts on all measurements of this run: on `setups`, against the peer, and on `scale`, the lines of that benchmark.
pub(crate) fn verdicts(
    report: &Report,
    setups: &[Setup],
    peer: Option<&Value>,
    scale: Option<(&[AtScale], &[Value])>,
) -> Vec<Verdict> {
    let mut all = Vec::new();
    let mut add =
        |goal: String, bound: Bound, measured: Option<f64>| all.push(Verdict { goal, bound, measured });
    for setup in setups.iter().filter(|setup| **setup != Setup::Memory) {
        let (store, durability) = setup.names();
        let name = format!("{store} {durability}");
        for (runtime, bound) in [("multi-thread", pair(*setup)), ("current-thread", CURRENT_THREAD)] {
            let measured = report.number("uncontended", &[store, durability, runtime], "p50 / raw");
            add(format!("{name}: uncontended pair / raw, {runtime}"), Bound::AtMost(bound), measured);
        }
        let many = report.number("own locks", &[store, durability], "/ raw");
        if many.is_some() || !matches!(setup, Setup::SqliteFull | Setup::SqliteNormal) {
            add(format!("{name}: 64 locks at once / raw pairs"), Bound::AtLeast(0.8), many);
        }
        let one = |column| report.number("one lock", &[store, durability, ONE_PROCESS], column);
        let rate = if matches!(setup, Setup::RedisDurable | Setup::RedisForgetful) { 1.0 } else { 0.8 };
        add(format!("{name}: 64 contenders / raw pairs"), Bound::AtLeast(rate), one("x raw p50"));
        add(format!("{name}: 64 contenders, fairness"), Bound::AtLeast(0.95), one("fairness min/max"));
        let statements = report.number("statements", &[store, durability], "contended acquisition");
        // A few more statements are sent while the tasks start and end.
        let statements = statements.map(|statements| (statements * 10.0).round() / 10.0);
        add(format!("{name}: statements for a contended acquisition"), Bound::AtMost(3.0), statements);
        if let Some((_, bound)) = HAND_OVER.iter().find(|(other, _)| other == setup) {
            let column = "hand-over p50 / trip";
            let measured = report.number("one lock", &[store, durability, PROCESSES], column);
            add(format!("{name}: hand-over between processes / trip"), Bound::AtMost(*bound), measured);
        }
    }
    for setup in setups.iter().filter(|setup| HAS_SEMAPHORE_GOAL.contains(setup)) {
        let (store, durability) = setup.names();
        let measured = |column| report.number("semaphore", &[store, durability], column);
        let name = format!("{store} {durability}: semaphore");
        add(format!("{name}, uncontended pair / lock"), Bound::AtMost(SEMAPHORE), measured("p50 / lock"));
        add(format!("{name}, 64 tasks, fairness"), Bound::AtLeast(0.9), measured("fairness min/max"));
        add(format!("{name}, 64 tasks, holders of 4 slots"), Bound::AtMost(4.0), measured("most holders"));
    }
    if let Some(peer) = peer {
        against_rslock(report, peer, &mut add);
    }
    if let Some((wanted, lines)) = scale {
        at_scale(wanted, lines, &mut add);
    }
    all
}

fn against_rslock(report: &Report, peer: &Value, add: &mut impl FnMut(String, Bound, Option<f64>)) {
    let (store, durability) = RSLOCK.names();
    let polylock = |column| report.number("one lock", &[store, durability, ONE_PROCESS], column);
    let peer_number = |name: &str| peer["contended"][name].as_f64();
    let ratio = |of: Option<f64>, to: Option<f64>| of.zip(to).map(|(of, to)| of / to);
    let pair = report.number("uncontended", &[store, durability, "multi-thread"], "p50");
    let pair = ratio(pair, peer["uncontended"]["p50_us"].as_f64());
    add("uncontended pair / rslock's".to_owned(), Bound::AtMost(1.0), pair);
    for (what, column, name) in
        [("hand-over p99", "hand-over p99", "hand_over_p99_us"), ("longest wait", "wait max", "wait_max_us")]
    {
        add(
            format!("rslock's {what} / ours"),
            Bound::AtLeast(10.0),
            ratio(peer_number(name), polylock(column)),
        );
    }
    // The relative difference between the most and the least frequent holder.
    let unfair = |fairness: Option<f64>| fairness.map(|fairness| (1.0 - fairness).max(0.001));
    let unfairness = ratio(unfair(peer_number("fairness")), unfair(polylock("fairness min/max")));
    add("rslock's unfairness / ours".to_owned(), Bound::AtLeast(10.0), unfairness);
}

fn at_scale(wanted: &[AtScale], lines: &[Value], add: &mut impl FnMut(String, Bound, Option<f64>)) {
    let line = |what: &str, store: &str, count: u64| {
        let is_it =
            |line: &&Value| line["measured"] == what && line["store"] == store && line["count"] == count;
        lines.iter().find(is_it).unwrap_or(&Value::Null)
    };
    let number = |line: &Value, key: &str| line[key].as_f64().or_else(|| line[key].as_bool().map(f64::from));
    let (count, stores) = HELD;
    for store in stores.into_iter().filter(|store| wanted.contains(&(*store, "held", count))) {
        let held = line("held", store, count);
        add(format!("{store}: lost of {count} locks held"), Bound::AtMost(0.0), number(held, "lost"));
        let cpu = number(held, "own_cpu_percent");
        add(format!("{store}: percent of a core for {count} locks held"), Bound::Below(5.0), cpu);
        let memory = number(held, "own_bytes_each");
        add(format!("{store}: bytes for each of {count} locks held"), Bound::Below(2048.0), memory);
    }
    for (store, count) in
        WAITERS.into_iter().filter(|(store, count)| wanted.contains(&(*store, "waiters", *count)))
    {
        let waiters = line("waiters", store, count);
        for (what, bound, key) in [
            ("seconds until all are served", Bound::Below(10.0), "drained_in_s"),
            ("of them served out of order", Bound::AtMost(0.0), "inversions"),
            (
                "percent of a core of the server while they wait",
                Bound::Below(1.0),
                "idle_servers_cpu_percent",
            ),
            ("another lock is kept", Bound::AtLeast(1.0), "other_lock_held"),
        ] {
            add(format!("{store}: {count} waiters, {what}"), bound, number(waiters, key));
        }
    }
}
