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
//! | `polylock_releases_total` | counter | `outcome` = released, lost, error, expired; `via` = explicit, drop, expiry |
//! | `polylock_backend_op_duration_seconds` | histogram | `op` |
//!
//! Every metric has the label `backend`. The lock's name is not a label, because the number of names is unbounded: see
#![cfg_attr(feature = "metrics", doc = "[`Recorder::label_names`].")]
#![cfg_attr(not(feature = "metrics"), doc = "`Recorder::label_names`.")]

use std::{fmt, time::Duration};

use crate::{LockName, LostReason, Operation};

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
        /// The trigger: `explicit`, `drop` or `expiry`.
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
    use super::{Duration, LockName, LostReason, Measured, Metrics, fmt};
    use metrics::{Label, counter, describe_counter, describe_gauge, describe_histogram, gauge, histogram};

    type Classify = Box<dyn Fn(&LockName) -> String + Send + Sync>;

    /// Sends measurements to the `metrics` crate's global recorder.
    #[derive(Default)]
    pub struct Recorder {
        classify: Option<Classify>,
    }

    impl Recorder {
        /// Describes every metric and sets the counters of lost locks to 0, so that a dashboard has them before the first loss.
        #[must_use]
        pub fn new(backend: &'static str) -> Self {
            describe_histogram!(
                "polylock_acquire_duration_seconds",
                "time from the request for a lock to the outcome"
            );
            describe_histogram!("polylock_hold_duration_seconds", "time for which a lock was held");
            describe_histogram!("polylock_renew_slack_seconds", "time left before the deadline at a renewal");
            describe_histogram!(
                "polylock_backend_op_duration_seconds",
                "duration of an operation of the store"
            );
            describe_gauge!("polylock_waiters", "waiting acquisitions");
            describe_gauge!("polylock_held", "held locks");
            describe_counter!("polylock_renewals_total", "renewals by outcome");
            describe_counter!("polylock_lost_total", "lost locks; should stay 0");
            describe_counter!("polylock_releases_total", "releases by outcome");
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
