//! The tables of a report: one or two for each part, with rows for each store.

use std::time::Duration;

use super::{
    table::{Cell, Table},
    units,
};
use crate::{
    Kills, Measured, Outcome, Part, Report, Summary, Times,
    results::{Contended, HandOver, Held, OwnLocks, Uncontended, Waiters},
};

/// Returns the tables of the selected parts. A part that was measured on no store has a table without rows.
#[must_use]
pub fn tables(report: &Report) -> Vec<(Part, Vec<Table>)> {
    let settings = &report.run.settings;
    let of_part = |part: &Part| {
        let mut tables = match part {
            Part::Uncontended => vec![uncontended()],
            Part::OwnLocks => vec![own_locks(settings.contenders)],
            Part::HandOver => vec![hand_over()],
            Part::Contended => vec![contended(settings.contenders), fairness()],
            Part::Waiters => vec![waiters(settings.waiters), beside_waiters()],
            Part::Held => vec![held()],
            Part::Kill => vec![kill()],
        };
        let mut missing = Vec::new();
        for store in &report.stores {
            match store.outcome(*part) {
                Some(Outcome::Measured(measured)) => add(&mut tables, &store.label, measured),
                Some(Outcome::Skipped(reason)) => {
                    missing.push(format!("{}: skipped: {reason}.", store.label));
                }
                Some(Outcome::Failed(error)) => {
                    missing.push(format!("{}: failed: {}.", store.label, error.chain()));
                }
                None => missing.push(format!("{}: not measured, because the run ended before.", store.label)),
            }
        }
        if let [first, others @ ..] = &mut tables[..] {
            if first.rows.is_empty() {
                first.notes.clear();
            }
            first.notes.extend(missing);
            let has_rows = others.first().is_none_or(|second| !second.rows.is_empty());
            if !has_rows {
                tables.truncate(1);
            }
        }
        (*part, tables)
    };
    settings.parts.iter().map(of_part).collect()
}

/// Adds the rows of a store.
fn add(tables: &mut [Table], store: &str, measured: &Measured) {
    match (measured, tables) {
        (Measured::Uncontended(pairs), [table]) => table.add(pair_row(store, pairs)),
        (Measured::OwnLocks(own), [table]) => table.add(own_row(store, own)),
        (Measured::HandOver(hand_over), [table]) => {
            hand_over_rows(store, hand_over).into_iter().for_each(|row| table.add(row));
        }
        (Measured::Contended(contended), [speed, fairness]) => {
            for (contenders, summary) in contenders(contended) {
                speed.add(speed_row(store, &contenders, summary, contended.raw.as_ref()));
                fairness.add(fairness_row(store, &contenders, summary));
            }
        }
        (Measured::Waiters(waiters), [table, beside]) => {
            table.add(waiters_row(store, waiters));
            beside_rows(store, waiters).into_iter().for_each(|row| beside.add(row));
        }
        (Measured::Held(held), [table]) => table.add(held_row(store, held)),
        (Measured::Kill(kills), [table]) => table.add(kill_row(store, kills)),
        _ => {}
    }
}

fn table(name: &'static str, title: impl Into<String>, columns: &[&'static str], note: &str) -> Table {
    let mut table = Table::new(name, title, columns);
    if !note.is_empty() {
        table.notes.push(note.to_owned());
    }
    table
}

fn uncontended() -> Table {
    let title = "Uncontended: one task acquires and releases a lock";
    let columns = ["store", "p50", "p99", "raw p50", "raw p99", "p50 / raw"];
    table("uncontended", title, &columns, "")
}

fn pair_row(store: &str, Uncontended { polylock, raw }: &Uncontended) -> Vec<Cell> {
    let of_raw = |time: &dyn Fn(&Times) -> Cell| raw.as_ref().map(time).into();
    vec![
        Cell::text(store),
        Cell::time(polylock.p50()),
        Cell::time(polylock.p99()),
        of_raw(&|raw| Cell::time(raw.p50())),
        of_raw(&|raw| Cell::time(raw.p99())),
        ratio(polylock, raw.as_ref()),
    ]
}

fn own_locks(tasks: usize) -> Table {
    let title = format!("Own locks: {tasks} tasks at once, each with a lock of its own");
    let columns = ["store", "pairs/s", "raw pairs/s", "/ raw", "p50", "raw p50", "p99"];
    table("own-locks", title, &columns, "A pair is an acquisition and its release.")
}

fn own_row(store: &str, OwnLocks { polylock, raw, .. }: &OwnLocks) -> Vec<Cell> {
    vec![
        Cell::text(store),
        Cell::number(polylock.rate(), 0),
        raw.as_ref().map(|raw| Cell::number(raw.rate(), 0)).into(),
        raw.as_ref().map(|raw| Cell::ratio(polylock.rate() / raw.rate().max(f64::EPSILON))).into(),
        Cell::time(polylock.times.p50()),
        raw.as_ref().map(|raw| Cell::time(raw.times.p50())).into(),
        Cell::time(polylock.times.p99()),
    ]
}

fn hand_over() -> Table {
    let columns = ["store", "to", "count", "p50", "p99", "max", "raw pair", "p50 / raw"];
    table("hand-over", "Hand-over: from a release to the grant of the only waiter", &columns, "")
}

fn hand_over_rows(store: &str, HandOver { to_task, to_process, raw }: &HandOver) -> Vec<Vec<Cell>> {
    let row = |to: &str, times: &Times| {
        vec![
            Cell::text(store),
            Cell::text(to),
            Cell::count(times.count()),
            Cell::time(times.p50()),
            Cell::time(times.p99()),
            Cell::time(times.max()),
            raw.as_ref().map(|raw| Cell::time(raw.p50())).into(),
            ratio(times, raw.as_ref()),
        ]
    };
    let to_process = to_process.as_ref().map(|times| row("process", times));
    [row("task", to_task)].into_iter().chain(to_process).collect()
}

fn contended(tasks: usize) -> Table {
    let title = format!("Contended: {tasks} tasks compete for one lock, in one process and in several");
    let columns = ["store", "contenders", "per s", "hand-over p50", "p99", "raw pair", "p50 / raw"];
    let note = "A rate means something only beside the fairness: a releaser that acquires its own lock again at once is fast.";
    table("contended", title, &columns, note)
}

fn fairness() -> Table {
    let title = "Contended: waiting and fairness";
    let columns = ["store", "contenders", "wait p99", "longest", "fairness", "share of each"];
    let note = "Fairness is the smallest share of an even one, divided by the largest: 1.00 is even, 0.00 is a task that was never served.";
    table("fairness", title, &columns, note)
}

/// Returns the summaries of a part, each with its contenders.
pub(crate) fn contenders(contended: &Contended) -> Vec<(String, &Summary)> {
    let tasks = contended.tasks;
    let one = (format!("{tasks} task{}", if tasks == 1 { "" } else { "s" }), &contended.one_process);
    let several = contended.processes.as_ref();
    let several =
        several.map(|(processes, summary)| (format!("{processes} x {}", tasks / processes), summary));
    [one].into_iter().chain(several).collect()
}

fn speed_row(store: &str, contenders: &str, summary: &Summary, raw: Option<&Times>) -> Vec<Cell> {
    vec![
        Cell::text(store),
        Cell::text(contenders),
        Cell::number(summary.rate(), 0),
        Cell::time(summary.hand_over.p50()),
        Cell::time(summary.hand_over.p99()),
        raw.map(|raw| Cell::time(raw.p50())).into(),
        ratio(&summary.hand_over, raw),
    ]
}

fn fairness_row(store: &str, contenders: &str, summary: &Summary) -> Vec<Cell> {
    let (least, most) = summary.share_range();
    vec![
        Cell::text(store),
        Cell::text(contenders),
        Cell::time(summary.wait.p99()),
        Cell::time(summary.wait.max()),
        Cell::number(summary.fairness(), 2),
        Cell::text(format!("{} to {}", units::count(least), units::count(most))),
    ]
}

fn waiters(count: usize) -> Table {
    let title = format!("Waiters: {} tasks of one process wait for one lock", units::count(count as u128));
    let columns = ["store", "queued in", "served in", "each", "out of order", "other lock"];
    let note = "The other lock is held meanwhile by the same process, with a TTL of 4 s (or the shortest of the store), and should be kept.";
    table("waiters", title, &columns, note)
}

fn waiters_row(store: &str, waiters: &Waiters) -> Vec<Cell> {
    let drained = &waiters.drained;
    let count = u32::try_from(waiters.count).unwrap_or(u32::MAX);
    vec![
        Cell::text(store),
        Cell::time(waiters.queued_in),
        Cell::time(drained.drained_in),
        Cell::time(drained.drained_in / count.max(1)),
        drained.inversions.map(|inversions| Cell::count(inversions as u128)).into(),
        Cell::text(if drained.other_lock_held { "kept" } else { "lost" }),
    ]
}

fn beside_waiters() -> Table {
    let title = "Waiters: a pair on a free lock of the same process";
    table("beside-waiters", title, &["store", "meanwhile", "p50", "p99", "max"], "")
}

/// Returns the times of pairs on a free lock, each with the state of the waiters.
pub(crate) fn beside(waiters: &Waiters) -> [(&'static str, &Times); 3] {
    [
        ("no waiters", &waiters.pairs_before),
        ("all wait", &waiters.pairs_waiting),
        ("all are served", &waiters.drained.pairs),
    ]
}

fn beside_rows(store: &str, waiters: &Waiters) -> Vec<Vec<Cell>> {
    let row = |(state, times): (&str, &Times)| {
        let numbers = [times.p50(), times.p99(), times.max()].map(|time| known(times, time));
        [Cell::text(store), Cell::text(state)].into_iter().chain(numbers).collect()
    };
    beside(waiters).into_iter().map(row).collect()
}

/// Returns a time, or nothing if there are no times.
fn known(times: &Times, time: Duration) -> Cell {
    (!times.is_empty()).then(|| Cell::time(time)).into()
}

fn held() -> Table {
    let columns = ["store", "locks", "TTL", "acquired", "released", "lost", "least left", "CPU", "memory"];
    let note = "Acquired and released are the times for all locks together; memory is for each. Least left is the shortest remaining lease of any lock. CPU is that of this process, where 100 % is one core.";
    table("held", "Held: one process holds many locks, and renews them", &columns, note)
}

fn held_row(store: &str, held: &Held) -> Vec<Cell> {
    let cpu = held.cpu.map(|cpu| cpu_percent(cpu, held.held_for));
    vec![
        Cell::text(store),
        Cell::count(held.count as u128),
        Cell::time(held.ttl),
        Cell::time(held.acquired_in),
        Cell::time(held.released.released_in),
        Cell::count((held.watched.lost + held.released.failed) as u128),
        Cell::time(held.watched.least_remaining),
        cpu.map(|percent| Cell::text(format!("{percent:.1} %"))).into(),
        held.bytes_each.map(|bytes| Cell::text(units::bytes(bytes))).into(),
    ]
}

/// Returns the processor time as a percentage of one core.
pub(super) fn cpu_percent(cpu: Duration, of: Duration) -> f64 {
    100.0 * cpu.as_secs_f64() / of.as_secs_f64().max(f64::EPSILON)
}

fn kill() -> Table {
    let title = "Kill: from SIGKILL of the process that holds a lock to the grant of a waiter";
    let columns = ["store", "kills", "TTL", "shortest", "median", "longest"];
    let note = "A lock is free when the lease or the session of its holder has ended, so the time depends on the TTL. SQLite also notices the end of a process of the same machine.";
    table("kill", title, &columns, note)
}

fn kill_row(store: &str, kills: &Kills) -> Vec<Cell> {
    vec![
        Cell::text(store),
        Cell::count(kills.times.len() as u128),
        Cell::time(kills.ttl),
        Cell::time(kills.min()),
        Cell::time(kills.median()),
        Cell::time(kills.max()),
    ]
}

fn ratio(times: &Times, raw: Option<&Times>) -> Cell {
    raw.and_then(|raw| times.ratio_to(raw)).map(Cell::ratio).into()
}
