//! A report as JSON.

use std::time::Duration;

use serde_json::{Map, Value, json};

use super::tables::cpu_percent;
use crate::{
    Measured, Outcome, Report, Summary, Times,
    own_locks::Throughput,
    results::{Contended, Held, Run, StoreResults, Waiters},
};

/// Returns the whole report.
pub(super) fn document(report: &Report) -> Value {
    let mut all = circumstances(&report.run);
    let settings = &report.run.settings;
    all["duration_s"] = json!(report.run.duration.as_secs_f64());
    all["settings"] = json!({
        "time_s": settings.time.as_secs_f64(), "contenders": settings.contenders, "waiters": settings.waiters,
        "held": settings.held, "kills": settings.kills,
        "parts": settings.parts.iter().map(|part| part.name()).collect::<Vec<_>>(),
    });
    all["ended_by"] = json!(report.run.ended_by);
    let store = |store: &StoreResults| {
        let mut object = identity(store);
        object["parts"] =
            store.parts.iter().map(|(part, outcome)| part_object(part.name(), outcome)).collect();
        object
    };
    all["stores"] = report.stores.iter().map(store).collect();
    all
}

/// Returns an object for each part of each store.
pub(super) fn lines(report: &Report) -> Vec<Value> {
    let line = |store: &StoreResults, part: Value| merge([circumstances(&report.run), identity(store), part]);
    let of_store = |store: &StoreResults| {
        let parts = store.parts.iter().map(|(part, outcome)| part_object(part.name(), outcome));
        parts.map(|part| line(store, part)).collect::<Vec<_>>()
    };
    report.stores.iter().flat_map(of_store).collect()
}

fn merge(objects: impl IntoIterator<Item = Value>) -> Value {
    let mut all = Map::new();
    for object in objects {
        if let Value::Object(object) = object {
            all.extend(object);
        }
    }
    Value::Object(all)
}

fn circumstances(run: &Run) -> Value {
    let machine = &run.machine;
    json!({
        "version": run.version, "commit": run.commit, "date": run.date,
        "machine": {
            "cores": machine.cores, "memory_bytes": machine.memory_bytes, "processor": machine.processor,
            "system": machine.system, "architecture": machine.architecture,
        },
    })
}

fn identity(store: &StoreResults) -> Value {
    json!({
        "label": store.label, "backend": store.backend, "store": store.store,
        "raw": store.raw.as_ref().ok(), "no_raw_because": store.raw.as_ref().err(),
    })
}

fn part_object(part: &str, outcome: &Outcome) -> Value {
    let (outcome, reason, numbers) = match outcome {
        Outcome::Measured(measured) => ("measured", None, numbers(measured)),
        Outcome::Skipped(reason) => ("skipped", Some(reason.clone()), Value::Null),
        Outcome::Failed(error) => ("failed", Some(error.chain()), Value::Null),
    };
    json!({"part": part, "outcome": outcome, "reason": reason, "numbers": numbers})
}

fn numbers(measured: &Measured) -> Value {
    match measured {
        Measured::Uncontended(pairs) => json!({
            "pair": times(&pairs.polylock), "raw_pair": pairs.raw.as_ref().map(times),
            "ratio": pairs.raw.as_ref().and_then(|raw| pairs.polylock.ratio_to(raw)),
        }),
        Measured::OwnLocks(own) => json!({
            "tasks": own.tasks, "polylock": throughput(&own.polylock), "raw": own.raw.as_ref().map(throughput),
            "ratio": own.raw.as_ref().map(|raw| own.polylock.rate() / raw.rate().max(f64::EPSILON)),
        }),
        Measured::HandOver(hand_over) => json!({
            "to_task": times(&hand_over.to_task), "to_process": hand_over.to_process.as_ref().map(times),
            "raw_pair": hand_over.raw.as_ref().map(times),
        }),
        Measured::Contended(numbers) => contended(numbers),
        Measured::Waiters(numbers) => waiters(numbers),
        Measured::Held(numbers) => held(numbers),
        Measured::Kill(kills) => json!({
            "ttl_us": micros(kills.ttl),
            "free_after_us": kills.times.iter().map(|time| micros(*time)).collect::<Vec<_>>(),
        }),
    }
}

fn contended(numbers: &Contended) -> Value {
    let summary = |processes: usize, summary: &Summary| {
        json!({
            "processes": processes, "tasks_each": numbers.tasks / processes.max(1), "acquisitions": summary.sections,
            "acquisitions_per_s": summary.rate(), "hand_over": times(&summary.hand_over), "wait": times(&summary.wait),
            "to_another": summary.share_to_another(), "fairness": summary.fairness(), "jain": summary.jain(),
            "shares": summary.shares,
        })
    };
    let several = numbers.processes.as_ref().map(|(processes, several)| summary(*processes, several));
    json!({
        "one_process": summary(1, &numbers.one_process), "processes": several, "raw_pair": numbers.raw.as_ref().map(times),
    })
}

fn waiters(numbers: &Waiters) -> Value {
    let drained = &numbers.drained;
    json!({
        "waiters": numbers.count, "queued_in_us": micros(numbers.queued_in), "served_in_us": micros(drained.drained_in),
        "out_of_order": drained.inversions, "pair_alone": times(&numbers.pairs_before),
        "pair_while_waiting": times(&numbers.pairs_waiting), "pair_while_served": times(&drained.pairs),
        "other_lock_held": drained.other_lock_held,
    })
}

fn held(numbers: &Held) -> Value {
    json!({
        "locks": numbers.count, "ttl_us": micros(numbers.ttl), "acquired_in_us": micros(numbers.acquired_in),
        "released_in_us": micros(numbers.released.released_in), "held_for_us": micros(numbers.held_for),
        "lost": numbers.watched.lost, "failed_releases": numbers.released.failed,
        "least_remaining_us": micros(numbers.watched.least_remaining),
        "cpu_percent": numbers.cpu.map(|cpu| cpu_percent(cpu, numbers.held_for)), "bytes_each": numbers.bytes_each,
    })
}

fn throughput(of: &Throughput) -> Value {
    json!({"pairs_per_s": of.rate(), "pair": times(&of.times)})
}

/// Returns the quantiles of times; null if there are none.
fn times(of: &Times) -> Value {
    if of.is_empty() {
        return Value::Null;
    }
    json!({
        "count": of.count(), "min_us": micros(of.min()), "p50_us": micros(of.p50()), "p99_us": micros(of.p99()),
        "max_us": micros(of.max()),
    })
}

/// Returns the time in microseconds, with three digits after the point.
fn micros(time: Duration) -> f64 {
    (time.as_secs_f64() * 1e9).round() / 1e3
}
