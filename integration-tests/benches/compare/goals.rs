//! The goals, and which of them a run has met. All are ratios or counts that were measured side by side in the same run.

use std::fmt;

use serde_json::{Value, json};

use crate::{peer::RSLOCK, places::Place, report::Report};

/// What a pair may cost on a multi-thread runtime, as a multiple of the raw client's.
pub(crate) const fn pair(place: Place) -> f64 {
    match place {
        Place::ZooKeeperDurable | Place::ZooKeeperForgetful => 1.1,
        Place::SqliteFull | Place::PostgresFull | Place::Azure | Place::Memory => 1.15,
        Place::SqliteNormal
        | Place::PostgresRelaxed
        | Place::MariaDbFull
        | Place::MariaDbRelaxed
        | Place::RedisDurable => 1.3,
        Place::RedisForgetful | Place::Redlock | Place::RedlockOneFrozen => 1.4,
    }
}

/// The same on a current-thread runtime, for every store.
pub(crate) const CURRENT_THREAD: f64 = 1.4;

/// The longest hand-over between processes, as a multiple of a raw pair, or of a script's round trip in Redis.
const HAND_OVER: [(Place, f64); 8] = [
    (Place::RedisDurable, 2.5),
    (Place::RedisForgetful, 2.5),
    (Place::PostgresFull, 1.5),
    (Place::PostgresRelaxed, 1.5),
    (Place::MariaDbFull, 3.0),
    (Place::MariaDbRelaxed, 3.0),
    (Place::SqliteFull, 3.0),
    (Place::SqliteNormal, 3.0),
];

/// The configurations of one lock that the goals are about.
pub(crate) const ONE_PROCESS: &str = "64 tasks, 1 process";
pub(crate) const PROCESSES: &str = "8 processes x 8";

/// How many waiters of one lock are drained in ten seconds.
pub(crate) const WAITERS: [(&str, u64); 5] =
    [("redis", 10_000), ("postgres", 10_000), ("sqlite", 10_000), ("mariadb", 3_000), ("zookeeper", 3_000)];

/// How many locks one process holds, in which stores.
pub(crate) const HELD: (u64, [&str; 6]) =
    (10_000, ["redis", "redlock", "postgres", "sqlite", "mariadb", "zookeeper"]);

/// A measurement of benchmark `scale`: the store, what is measured, and of how many.
pub(crate) type AtScale = (&'static str, &'static str, u64);

/// What a number must be.
#[derive(Debug, Clone, Copy)]
enum Bound {
    AtMost(f64),
    AtLeast(f64),
    Below(f64),
}

impl Bound {
    fn admits(self, number: f64) -> bool {
        match self {
            Self::AtMost(bound) => number <= bound,
            Self::AtLeast(bound) => number >= bound,
            Self::Below(bound) => number < bound,
        }
    }
}

impl fmt::Display for Bound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AtMost(bound) => write!(f, "<= {bound}"),
            Self::AtLeast(bound) => write!(f, ">= {bound}"),
            Self::Below(bound) => write!(f, "< {bound}"),
        }
    }
}

/// A goal, and what was measured of it.
#[derive(Debug)]
pub(crate) struct Verdict {
    goal: String,
    bound: Bound,
    measured: Option<f64>,
}

impl Verdict {
    fn word(&self) -> &'static str {
        match self.measured {
            None => "not measured",
            Some(number) if self.bound.admits(number) => "met",
            Some(_) => "missed",
        }
    }

    pub(crate) fn json(&self) -> Value {
        json!({
            "goal": self.goal, "bound": self.bound.to_string(), "measured": self.measured, "verdict": self.word(),
        })
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let measured = self.measured.map_or("-".to_owned(), |number| format!("{number:.2}"));
        write!(f, "| {} | {} | {measured} | {} |", self.goal, self.bound, self.word())
    }
}

/// The verdicts on everything that this run was to measure: on `places`, against the peer, and on `scale`, the lines of that benchmark.
pub(crate) fn verdicts(
    report: &Report,
    places: &[Place],
    peer: Option<&Value>,
    scale: Option<(&[AtScale], &[Value])>,
) -> Vec<Verdict> {
    let mut all = Vec::new();
    let mut add =
        |goal: String, bound: Bound, measured: Option<f64>| all.push(Verdict { goal, bound, measured });
    for place in places.iter().filter(|place| **place != Place::Memory) {
        let (store, durability) = place.names();
        let name = format!("{store} {durability}");
        for (runtime, bound) in [("multi-thread", pair(*place)), ("current-thread", CURRENT_THREAD)] {
            let measured = report.number("uncontended", &[store, durability, runtime], "p50 / raw");
            add(format!("{name}: uncontended pair / raw, {runtime}"), Bound::AtMost(bound), measured);
        }
        let many = report.number("own locks", &[store, durability], "/ raw");
        if many.is_some() || !matches!(place, Place::SqliteFull | Place::SqliteNormal) {
            add(format!("{name}: 64 locks at once / raw pairs"), Bound::AtLeast(0.8), many);
        }
        let one = |column| report.number("one lock", &[store, durability, ONE_PROCESS], column);
        let rate = if matches!(place, Place::RedisDurable | Place::RedisForgetful) { 1.0 } else { 0.8 };
        add(format!("{name}: 64 contenders / raw pairs"), Bound::AtLeast(rate), one("x raw p50"));
        add(format!("{name}: 64 contenders, fairness"), Bound::AtLeast(0.95), one("fairness min/max"));
        let statements = report.number("statements", &[store, durability], "contended acquisition");
        add(format!("{name}: statements for a contended acquisition"), Bound::AtMost(3.0), statements);
        if let Some((_, bound)) = HAND_OVER.iter().find(|(other, _)| other == place) {
            let column = "hand-over p50 / trip";
            let measured = report.number("one lock", &[store, durability, PROCESSES], column);
            add(format!("{name}: hand-over between processes / trip"), Bound::AtMost(*bound), measured);
        }
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
    let ours = |column| report.number("one lock", &[store, durability, ONE_PROCESS], column);
    let theirs = |name: &str| peer["contended"][name].as_f64();
    let ratio = |of: Option<f64>, to: Option<f64>| of.zip(to).map(|(of, to)| of / to);
    let pair = report.number("uncontended", &[store, durability, "multi-thread"], "p50");
    let pair = ratio(pair, peer["uncontended"]["p50_us"].as_f64());
    add("uncontended pair / rslock's".to_owned(), Bound::AtMost(1.0), pair);
    for (what, column, name) in
        [("hand-over p99", "hand-over p99", "hand_over_p99_us"), ("longest wait", "wait max", "wait_max_us")]
    {
        add(format!("rslock's {what} / ours"), Bound::AtLeast(10.0), ratio(theirs(name), ours(column)));
    }
    // How much less than the one who had the lock most often the other one had it.
    let unfair = |fairness: Option<f64>| fairness.map(|fairness| (1.0 - fairness).max(0.001));
    let unfairness = ratio(unfair(theirs("fairness")), unfair(ours("fairness min/max")));
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
