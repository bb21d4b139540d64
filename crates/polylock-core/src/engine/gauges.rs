//! The gauges of a store: how many requests wait and hold. Their changes are summed up until the recorder takes them, so a
//! measurement that is dropped never leaves a gauge wrong.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
};

use super::shared::Shared;
use crate::{LockName, metrics::Measured, observer};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Gauge {
    Waiting,
    Holding,
}

/// The changes that the recorder has not taken yet; nothing where they add up to nothing.
#[derive(Debug, Default)]
pub(crate) struct Gauges(Mutex<HashMap<(Gauge, LockName), i32>>);

impl Gauges {
    /// Changes `gauge` of lock `name` by `step`.
    pub(crate) fn change(self: &Arc<Self>, shared: &Shared, gauge: Gauge, name: &LockName, step: i32) {
        let Some(metrics) = shared.metrics.clone() else { return };
        self.add(gauge, name, step);
        let (gauges, backend) = (self.clone(), shared.backend());
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
        let mut changes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (gauge, name.clone());
        let sum = changes.get(&key).copied().unwrap_or(0) + step;
        if sum == 0 {
            changes.remove(&key);
        } else {
            changes.insert(key, sum);
        }
    }

    fn take(&self) -> HashMap<(Gauge, LockName), i32> {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_add_up_and_nothing_is_kept_of_what_adds_up_to_nothing() {
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
