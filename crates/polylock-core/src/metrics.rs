//! The measurements of core, and their receiver.
//!
//! Pass a [`Metrics`] to [`LocksBuilder::metrics`](crate::LocksBuilder::metrics). With the feature `metrics`,
#![cfg_attr(feature = "metrics", doc = "[`Recorder`] sends it all to the `metrics` crate under these names:")]
#![cfg_attr(
    not(feature = "metrics"),
    doc = "`Recorder` sends it all to the `metrics` crate under these names:"
)]
//!
//! | name | kind | labels |
//! |---|---|---|
//! | `polylock_acquire_duration_seconds` | histogram | `outcome` = acquired, timeout, busy, cancelled, error |
//! | `polylock_hold_duration_seconds` | histogram | |
//! | `polylock_waiters`, `polylock_held` | gauge | |
//! | `polylock_renewals_total` | counter | `outcome` = renewed, lost, error |
//! | `polylock_renew_slack_seconds` | histogram: the time that was left when a renewal was acknowledged | |
//! | `polylock_lost_total` | counter | `reason` |
//! | `polylock_releases_total` | counter | `outcome` = released, lost, error, expired; `via` = explicit, drop, expiry, shutdown |
//! | `polylock_fencing_rejected_total` | counter: the writes that a fence of this library has refused | |
//! | `polylock_backend_op_duration_seconds` | histogram | `op` |
//!
//! [`METRICS`] is the same as a value. `docs/metrics.md` of the repository has the reaction to each metric, a dashboard, and alert rules.
//!
//! Every metric has the label `backend`. The lock's name is not a label, because the number of names is unbounded: see
#![cfg_attr(feature = "metrics", doc = "[`Recorder::label_names`].")]
#![cfg_attr(not(feature = "metrics"), doc = "`Recorder::label_names`.")]

use std::{fmt, time::Duration};

use crate::{LockName, LostReason, Operation};

/// A metric of [`METRICS`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Metric {
    /// The name.
    pub name: &'static str,
    /// `histogram`, `gauge` or `counter`.
    pub kind: &'static str,
    /// The names of its labels.
    pub labels: &'static [&'static str],
    /// The description, as `Recorder` gives it to the `metrics` crate.
    pub help: &'static str,
}

const fn metric(
    name: &'static str,
    kind: &'static str,
    labels: &'static [&'static str],
    help: &'static str,
) -> Metric {
    Metric { name, kind, labels, help }
}

/// All metrics that `Recorder` sends to the `metrics` crate.
pub const METRICS: [Metric; 10] = [
    metric(
        "polylock_acquire_duration_seconds",
        "histogram",
        &["backend", "outcome"],
        "time from the request for a lock to the outcome",
    ),
    metric("polylock_hold_duration_seconds", "histogram", &["backend"], "time for which a lock was held"),
    metric("polylock_waiters", "gauge", &["backend"], "waiting acquisitions"),
    metric("polylock_held", "gauge", &["backend"], "held locks"),
    metric("polylock_renewals_total", "counter", &["backend", "outcome"], "renewals by outcome"),
    metric(
        "polylock_renew_slack_seconds",
        "histogram",
        &["backend"],
        "time left before the deadline at a renewal",
    ),
    metric("polylock_lost_total", "counter", &["backend", "reason"], "lost locks; should stay 0"),
    metric("polylock_releases_total", "counter", &["backend", "outcome", "via"], "releases by outcome"),
    metric(
        "polylock_fencing_rejected_total",
        "counter",
        &["backend"],
        "writes of former holders that a fence has refused; should stay 0",
    ),
    metric(
        "polylock_backend_op_duration_seconds",
        "histogram",
        &["backend", "op"],
        "duration of an operation of the store",
    ),
];

/// Counts a write of a former holder that a fence on `backend` has refused, in `polylock_fencing_rejected_total`. It does nothing without the
/// feature `metrics`. The fences of the store crates call it; call it for a resource of your own that checks tokens.
pub fn fencing_rejected(backend: &'static str) {
    #[cfg(feature = "metrics")]
    crate::observer::report(move || recorder::rejected(backend).increment(1));
    #[cfg(not(feature = "metrics"))]
    let _unused = backend;
}

/// The receiver of measurements. It is called on a separate thread, one call at a time. A receiver that blocks or panics costs no
/// lock: measurements that it has no time for are dropped, except for those of gauges, and their number is logged.
pub trait Metrics: fmt::Debug + Send + Sync + 'static {
    /// Records one measurement of lock `name` on `backend`.
    fn record(&self, backend: &'static str, name: &LockName, measured: Measured);
}

/// One measurement.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Measured {
    /// An acquisition has ended.
    Acquire {
        /// The duration of the acquisition.
        took: Duration,
        /// The outcome: `acquired`, `timeout`, `busy`, `cancelled` or `error`.
        outcome: &'static str,
    },
    /// A hold has ended.
    Hold {
        /// The duration of the hold.
        lasted: Duration,
    },
    /// The number of waiters has changed by this.
    Waiting(i32),
    /// The number of holds has changed by this.
    Holding(i32),
    /// A renewal has ended: `renewed`, `lost` or `error`, which includes a missing reply.
    Renewal(&'static str),
    /// The time left before the deadline when a renewal was acknowledged; it shrinks long before a lock is lost.
    RenewSlack(Duration),
    /// A lock was lost.
    Lost(LostReason),
    /// A lock was released, or left to expire.
    Release {
        /// The outcome: `released`, `lost` (the store had no entry any more), `error` or `expired`.
        outcome: &'static str,
        /// The trigger: `explicit`, `drop`, `expiry` or `shutdown`.
        via: &'static str,
    },
    /// The store has replied to an operation, or failed to reply.
    Operation {
        /// The operation.
        operation: Operation,
        /// The duration of the operation.
        took: Duration,
    },
}

#[cfg(feature = "metrics")]
pub use recorder::Recorder;

#[cfg(feature = "metrics")]
mod recorder {
    use super::{Duration, LockName, LostReason, METRICS, Measured, Metric, Metrics, fmt};
    use metrics::{
        Counter, Label, counter, describe_counter, describe_gauge, describe_histogram, gauge, histogram,
    };

    /// Returns the counter of refused writes.
    pub(super) fn rejected(backend: &'static str) -> Counter {
        counter!("polylock_fencing_rejected_total", "backend" => backend)
    }

    type Classify = Box<dyn Fn(&LockName) -> String + Send + Sync>;

    /// Sends measurements to the `metrics` crate's global recorder.
    #[derive(Default)]
    pub struct Recorder {
        classify: Option<Classify>,
    }

    impl Recorder {
        /// Describes every metric and sets the counters of lost locks and refused writes to 0, so that a dashboard has them before the first loss.
        #[must_use]
        pub fn new(backend: &'static str) -> Self {
            for Metric { name, kind, help, .. } in METRICS {
                match kind {
                    "histogram" => describe_histogram!(name, help),
                    "gauge" => describe_gauge!(name, help),
                    _ => describe_counter!(name, help),
                }
            }
            rejected(backend).absolute(0);
            for reason in LostReason::KINDS {
                counter!("polylock_lost_total", "backend" => backend, "reason" => reason).absolute(0);
            }
            Self::default()
        }

        /// Adds the label `name` with the result of `class` for the lock's name. `class` must return few different texts.
        #[must_use]
        pub fn label_names(mut self, class: impl Fn(&LockName) -> String + Send + Sync + 'static) -> Self {
            self.classify = Some(Box::new(class));
            self
        }
    }

    impl fmt::Debug for Recorder {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.debug_struct("Recorder").field("label_names", &self.classify.is_some()).finish()
        }
    }

    impl Metrics for Recorder {
        fn record(&self, backend: &'static str, name: &LockName, measured: Measured) {
            let labels = |more: &[(&'static str, &'static str)]| -> Vec<Label> {
                let name = self.classify.as_ref().map(|class| Label::new("name", class(name)));
                let more = more.iter().map(|&(key, value)| Label::from_static_parts(key, value));
                std::iter::once(Label::from_static_parts("backend", backend))
                    .chain(more)
                    .chain(name)
                    .collect()
            };
            let seconds = |metric: &'static str, time: Duration, more: &[(&'static str, &'static str)]| {
                histogram!(metric, labels(more)).record(time.as_secs_f64());
            };
            match measured {
                Measured::Acquire { took, outcome } => {
                    seconds("polylock_acquire_duration_seconds", took, &[("outcome", outcome)]);
                }
                Measured::Hold { lasted } => seconds("polylock_hold_duration_seconds", lasted, &[]),
                Measured::Waiting(step) => gauge!("polylock_waiters", labels(&[])).increment(step),
                Measured::Holding(step) => gauge!("polylock_held", labels(&[])).increment(step),
                Measured::Renewal(outcome) => {
                    counter!("polylock_renewals_total", labels(&[("outcome", outcome)])).increment(1);
                }
                Measured::RenewSlack(left) => seconds("polylock_renew_slack_seconds", left, &[]),
                Measured::Lost(reason) => {
                    counter!("polylock_lost_total", labels(&[("reason", reason.kind())])).increment(1);
                }
                Measured::Release { outcome, via } => {
                    let labels = labels(&[("outcome", outcome), ("via", via)]);
                    counter!("polylock_releases_total", labels).increment(1);
                }
                Measured::Operation { operation, took } => {
                    seconds("polylock_backend_op_duration_seconds", took, &[("op", operation.as_str())]);
                }
            }
        }
    }
}
