//! What core measures, and where it sends it.
//!
//! Give a [`Metrics`] to [`LocksBuilder::metrics`](crate::LocksBuilder::metrics). With the feature `metrics`,
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
//! Every one has the label `backend`. The lock's name is none of them, because names have no bound: see
#![cfg_attr(feature = "metrics", doc = "[`Recorder::label_names`].")]
#![cfg_attr(not(feature = "metrics"), doc = "`Recorder::label_names`.")]

use std::{fmt, time::Duration};

use crate::{LockName, LostReason, Operation};

/// Where core sends what it measures. It is called on a thread of its own, one call at a time. One that blocks or panics costs no
/// lock: measurements that it has no time for are dropped, but for those of gauges, and the log tells how many.
pub trait Metrics: fmt::Debug + Send + Sync + 'static {
    /// One measurement of lock `name` on `backend`.
    fn record(&self, backend: &'static str, name: &LockName, measured: Measured);
}

/// One measurement.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Measured {
    /// An attempt to acquire has ended.
    Acquire {
        /// How long it took.
        took: Duration,
        /// How it ended: `acquired`, `timeout`, `busy`, `cancelled` or `error`.
        outcome: &'static str,
    },
    /// A hold has ended.
    Hold {
        /// How long it lasted.
        lasted: Duration,
    },
    /// So many more wait, or fewer.
    Waiting(i32),
    /// So many more are held, or fewer.
    Holding(i32),
    /// A renewal has ended: `renewed`, `lost` or `error`, which no answer in time is, too.
    Renewal(&'static str),
    /// What was left before the deadline when a renewal was acknowledged: shrinks long before a lock is lost.
    RenewSlack(Duration),
    /// A lock was lost.
    Lost(LostReason),
    /// A lock was given back.
    Release {
        /// `released`, `lost` (the store had no entry any more), `error` or `expired`.
        outcome: &'static str,
        /// `explicit`, `drop` or `expiry`.
        via: &'static str,
    },
    /// The store has answered, or failed to.
    Operation {
        /// What it was asked.
        operation: Operation,
        /// How long it took.
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
        /// Describes every metric and shows the counters at 0, so that a dashboard has them before the first loss.
        #[must_use]
        pub fn new(backend: &'static str) -> Self {
            describe_histogram!(
                "polylock_acquire_duration_seconds",
                "time from asking for a lock to the outcome"
            );
            describe_histogram!("polylock_hold_duration_seconds", "time for which a lock was held");
            describe_histogram!("polylock_renew_slack_seconds", "time left before the deadline at a renewal");
            describe_histogram!("polylock_backend_op_duration_seconds", "time the store took");
            describe_gauge!("polylock_waiters", "attempts waiting now");
            describe_gauge!("polylock_held", "locks held now");
            describe_counter!("polylock_renewals_total", "renewals by outcome");
            describe_counter!("polylock_lost_total", "locks lost; should stay 0");
            describe_counter!("polylock_releases_total", "locks given back by outcome");
            for reason in LostReason::KINDS {
                counter!("polylock_lost_total", "backend" => backend, "reason" => reason).absolute(0);
            }
            Self::default()
        }

        /// Adds the label `name` with what `class` makes of a lock's name. It must return few different texts.
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
