//! Many who use one lock at once, through whatever happens, and what is said of it afterwards.

use std::time::Duration;

use polylock::{Locks, Mode, Result};
use polylock_integration_tests::clock::{now, pause};
use polylock_testkit::history::{self, Attempt, Recorder, Rules, Section};

/// What came out.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) sections: Vec<Section>,
    /// Claims that failed.
    pub(crate) failures: usize,
    /// Holds that were lost.
    pub(crate) losses: usize,
}

impl Outcome {
    /// Every promise was kept.
    pub(crate) fn is_clean(&self) {
        println!("{} sections, {} failures, {} losses", self.sections.len(), self.failures, self.losses);
        assert_eq!(history::check(&self.sections, Rules::default()), []);
    }

    /// The sections of one client.
    pub(crate) fn of(&self, client: &str) -> usize {
        self.sections.iter().filter(|section| section.client == client).count()
    }
}

/// Has each of these stores, as if it were a process of its own, take the lock `name` all the time, while `trouble`
/// happens.
pub(crate) async fn run(
    stores: Vec<Locks>,
    name: &'static str,
    lasts: Duration,
    trouble: impl Future<Output = ()>,
) -> Outcome {
    let (recorder, until) = (Recorder::new(), now() + lasts);
    let mut tasks = Vec::new();
    for (store, locks) in stores.into_iter().enumerate() {
        let recorder = recorder.clone();
        tasks.push(tokio::spawn(async move {
            let (mut failures, mut losses) = (0, 0);
            while now() < until {
                let attempt = recorder.invoke(name, store.to_string(), Mode::Exclusive);
                match hold(&locks, name, attempt).await {
                    Ok(true) => {}
                    Ok(false) => losses += 1,
                    Err(error) => {
                        println!("{error:?}");
                        failures += 1;
                    }
                }
            }
            (failures, losses)
        }));
    }
    trouble.await;
    let (mut failures, mut losses) = (0, 0);
    for task in tasks {
        let (failed, lost) = task.await.unwrap();
        failures += failed;
        losses += lost;
    }
    Outcome { sections: recorder.sections(), failures, losses }
}

/// Takes the lock, keeps it for a moment and gives it back; false if it was lost meanwhile.
pub(crate) async fn hold(locks: &Locks, name: &str, attempt: Attempt) -> Result<bool> {
    let guard = locks.lock(name).wait(Duration::from_secs(10)).acquire().await?;
    let (hold, deadline) = (attempt.acquired(&guard), guard.deadline());
    tokio::select! {
        biased;
        _ = guard.lost() => {
            hold.lost(deadline);
            return Ok(false);
        }
        () = pause(Duration::from_micros(500)) => {}
    }
    hold.releasing(&guard);
    // A release that fails is tried again in the background.
    guard.release().await.ok();
    Ok(true)
}
