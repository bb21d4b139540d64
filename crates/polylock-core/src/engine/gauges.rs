//! The gauges of a store: the numbers of waiting requests and of holds. Their changes are summed up until the recorder takes them,
//! so a measurement that is dropped never leaves a gauge wrong.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
};

use crate::{
    LockName,
    metrics::{Measured, Metrics},
    observer,
    sync::lock,
};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Gauge {
    Waiting,
    Holding,
}

/// The changes that the recorder has not taken yet, without sums of zero.
#[derive(Debug, Default)]
pub(crate) struct Gauges(Mutex<HashMap<(Gauge, LockName), i32>>);

impl Gauges {
    /// Changes `gauge` of lock `name` in the store `backend` by `step`, and makes the observer thread pass all changes to `metrics`.
    pub(super) fn change(
        self: &Arc<Self>,
        metrics: Arc<dyn Metrics>,
        backend: &'static str,
        gauge: Gauge,
        name: &LockName,
        step: i32,
    ) {
        self.add(gauge, name, step);
        let gauges = self.clone();
        observer::report(move || {
            for ((gauge, name), step) in gauges.take() {
                let measured = match gauge {
                    Gauge::Waiting => Measured::Waiting(step),
                    Gauge::Holding => Measured::Holding(step),
                };
                metrics.record(backend, &name, measured);
            }
        });
    }

    fn add(&self, gauge: Gauge, name: &LockName, step: i32) {
        let mut changes = lock(&self.0);
        let key = (gauge, name.clone());
        let sum = changes.get(&key).copied().unwrap_or(0) + step;
        if sum == 0 {
            changes.remove(&key);
        } else {
            changes.insert(key, sum);
        }
    }

    fn take(&self) -> HashMap<(Gauge, LockName), i32> {
        std::mem::take(&mut *lock(&self.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_add_up_and_sums_of_zero_are_not_kept() {
        let (gauges, name) = (Gauges::default(), LockName::new("n").unwrap());
        for (gauge, step) in
            [(Gauge::Holding, 1), (Gauge::Waiting, 1), (Gauge::Holding, 1), (Gauge::Waiting, -1)]
        {
            gauges.add(gauge, &name, step);
        }
        assert_eq!(gauges.take(), HashMap::from([((Gauge::Holding, name), 2)]));
        assert!(gauges.take().is_empty());
    }
}
