//! With the feature `metrics`, a store that is opened by URL is measured by default.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use metrics_util::debugging::DebuggingRecorder;
use polylock::{
    LockName, Locks,
    metrics::{Measured, Metrics},
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
