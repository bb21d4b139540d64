//! With the feature `metrics`, a store that is opened by URL is measured by default.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::{
    collections::BTreeSet,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use metrics_util::debugging::{DebuggingRecorder, Snapshotter};
use polylock::{
    LockName, Locks, LostReason, Operation,
    metrics::{METRICS, Measured, Metrics, Recorder, fencing_rejected},
};

#[derive(Debug, Default)]
struct Count(AtomicUsize);

impl Metrics for Count {
    fn record(&self, _: &'static str, _: &LockName, _: Measured) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

#[tokio::test]
async fn metrics_go_to_the_global_recorder_by_default() {
    let recorder = DebuggingRecorder::new();
    let snapshots = recorder.snapshotter();
    recorder.install().unwrap();
    every_metric_exists_and_no_other(&snapshots).await;
    let locks = Locks::connect("memory:").await.unwrap();
    locks.lock("n").acquire().await.unwrap().release().await.unwrap();
    assert!(locks.close(Duration::from_secs(10)).await);
    let names: Vec<String> =
        snapshots.snapshot().into_vec().into_iter().map(|(key, ..)| key.key().name().to_owned()).collect();
    for name in
        ["polylock_acquire_duration_seconds", "polylock_releases_total", "polylock_hold_duration_seconds"]
    {
        assert!(names.iter().any(|other| other == name), "{name} in {names:?}");
    }

    let count = Arc::new(Count::default());
    let locks = Locks::builder("memory:").metrics(count.clone()).connect().await.unwrap();
    locks.lock("n").acquire().await.unwrap().release().await.unwrap();
    assert!(locks.close(Duration::from_secs(10)).await);
    assert!(count.0.load(Ordering::SeqCst) > 3);
}

/// Records one measurement of each kind, and compares names, kinds and labels with the table.
async fn every_metric_exists_and_no_other(snapshots: &Snapshotter) {
    let (recorder, name, second) = (Recorder::new("b"), LockName::new("n").unwrap(), Duration::from_secs(1));
    for measured in [
        Measured::Acquire { took: second, outcome: "acquired" },
        Measured::Hold { lasted: second },
        Measured::Waiting(1),
        Measured::Holding(1),
        Measured::Renewal("renewed"),
        Measured::RenewSlack(second),
        Measured::Lost(LostReason::Gone),
        Measured::Release { outcome: "released", via: "drop" },
        Measured::Operation { operation: Operation::Claim, took: second },
    ] {
        recorder.record("b", &name, measured);
    }
    fencing_rejected("b");
    let locks = Locks::connect("memory:").await.unwrap();
    assert!(locks.close(Duration::from_secs(10)).await, "the counter of refused writes is increased");
    let text = |name: &str, kind: &str, mut labels: Vec<&str>| {
        labels.sort_unstable();
        format!("{kind} {name} {labels:?}")
    };
    let found = snapshots.snapshot().into_vec().into_iter().map(|(key, ..)| {
        let labels = key.key().labels().map(|label| label.key()).collect();
        text(key.key().name(), &format!("{:?}", key.kind()).to_lowercase(), labels)
    });
    let found: BTreeSet<String> = found.collect();
    let known = METRICS.iter().map(|metric| text(metric.name, metric.kind, metric.labels.to_vec()));
    assert_eq!(found, known.collect());
}
