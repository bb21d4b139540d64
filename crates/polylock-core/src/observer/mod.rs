//! The thread `polylock-observer`, which runs all user code that observes, so that none of it can delay or end a renewal.
//!
//! Metrics recorders and log subscribers are user code. They may block (a full pipe to a log collector, a terminal that is stopped)
//! or panic. The I/O threads only send their reports to a bounded queue; this thread receives the reports and calls that code. A
//! full queue drops the report and counts it; a panic ends that one call and is counted.

mod forward;

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        OnceLock,
        atomic::{AtomicU64, Ordering},
        mpsc::{Receiver, SyncSender, TrySendError, sync_channel},
    },
    thread,
    time::Duration,
};

pub(crate) use forward::forwarding;

use crate::{Clock, Moment, SystemClock, process::is_simulated};

/// The capacity of the queue: a burst of some thousand locks, a few megabytes at most.
const QUEUE_SIZE: usize = 16_384;

/// The shortest time between two of the thread's own warnings.
const WARNING_INTERVAL: Duration = Duration::from_secs(1);

type Report = Box<dyn FnOnce() + Send>;

static OBSERVER: OnceLock<Option<SyncSender<Report>>> = OnceLock::new();
static DROPPED: AtomicU64 = AtomicU64::new(0);
static PANICKED: AtomicU64 = AtomicU64::new(0);

/// Makes the observer thread call `report`, after all earlier reports. Never blocks. A simulated process has no such thread, and
/// drops the report.
pub(crate) fn report(report: impl FnOnce() + Send + 'static) {
    if is_simulated() {
        return;
    }
    let sent = observer().map(|observer| observer.try_send(Box::new(report)));
    if let Some(Err(TrySendError::Full(_))) = sent {
        DROPPED.fetch_add(1, Ordering::Relaxed);
    }
}

/// Waits until all earlier reports have been processed; returns false if `within` expired first.
pub(crate) fn flush(within: Duration) -> bool {
    let Some(Some(observer)) = OBSERVER.get() else { return true };
    let (done, wait) = sync_channel(1);
    let marker = move || {
        done.try_send(()).ok();
    };
    // There is no use in waiting for a full queue: its consumer is stuck.
    observer.try_send(Box::new(marker)).is_ok() && wait.recv_timeout(within).is_ok()
}

/// Completes when all earlier reports have been processed, or can't be because the queue is full.
pub(crate) async fn flushed() {
    let (done, wait) = tokio::sync::oneshot::channel::<()>();
    report(move || drop(done));
    wait.await.ok();
}

/// Returns the queue of the observer thread; `None` if the thread could not be started and nothing is observed.
fn observer() -> Option<&'static SyncSender<Report>> {
    let start = || {
        let (sender, reports) = sync_channel(QUEUE_SIZE);
        let thread = thread::Builder::new().name("polylock-observer".into()).spawn(move || observe(&reports));
        thread.is_ok().then_some(sender)
    };
    OBSERVER.get_or_init(start).as_ref()
}

fn observe(reports: &Receiver<Report>) {
    let mut next_warning = Moment::default();
    for report in reports {
        call(report);
        let now = SystemClock.now();
        if now < next_warning {
            continue;
        }
        next_warning = now + WARNING_INTERVAL;
        let dropped = DROPPED.swap(0, Ordering::Relaxed);
        if dropped > 0 {
            call(|| {
                tracing::warn!(
                    dropped,
                    "reports were dropped: the log writer or the metrics recorder is too slow"
                );
            });
        }
        let panicked = PANICKED.swap(0, Ordering::Relaxed);
        if panicked > 0 {
            call(|| tracing::error!(panicked, "the metrics recorder or the log subscriber has panicked"));
        }
    }
}

fn call(report: impl FnOnce()) {
    if catch_unwind(AssertUnwindSafe(report)).is_err() {
        PANICKED.fetch_add(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;

    /// One test, because the process has only one observer.
    #[test]
    fn a_blocking_or_panicking_report_does_not_affect_its_reporter() {
        let (release, blocked) = channel::<()>();
        report(move || {
            blocked.recv().ok();
        });
        for _ in 0..QUEUE_SIZE + 10 {
            report(|| {});
        }
        assert!(!flush(Duration::from_millis(10)), "it is blocked");
        release.send(()).unwrap();
        report(|| std::panic::resume_unwind(Box::new("a planted panic")));
        while !flush(Duration::from_secs(10)) {}
        let (seen, sees) = channel();
        report(move || seen.send(()).unwrap());
        sees.recv_timeout(Duration::from_secs(10)).unwrap();
    }
}
