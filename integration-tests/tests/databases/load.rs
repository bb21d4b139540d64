//! Many who use a few locks at once, through whatever happens, and what is said of it afterwards.

use std::time::Duration;

use polylock::{Error, Locks, Mode};
use polylock_integration_tests::clock::{now, pause};
use polylock_testkit::history::{Attempt, Recorder, Section};

/// How many use how much for how long.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Load {
    /// Stores opened, each as if it were another process.
    pub(crate) stores: usize,
    /// Tasks on each.
    pub(crate) tasks: usize,
    pub(crate) names: usize,
    pub(crate) lasts: Duration,
    /// Whether every third hold is a shared one.
    pub(crate) readers: bool,
    /// For how long each waits for its turn.
    pub(crate) wait: Duration,
}

impl Default for Load {
    fn default() -> Self {
        Self {
            stores: 4,
            tasks: 4,
            names: 2,
            lasts: Duration::from_secs(3),
            readers: true,
            wait: Duration::from_secs(10),
        }
    }
}

/// What came out.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) sections: Vec<Section>,
    /// Claims that failed.
    pub(crate) failures: usize,
    /// Holds that were lost.
    pub(crate) losses: usize,
}

impl Load {
    /// Puts the load on the store at `url`, while `trouble` happens.
    pub(crate) async fn run(self, url: &str, trouble: impl Future<Output = ()>) -> Outcome {
        let recorder = Recorder::new();
        let until = now() + self.lasts;
        let mut tasks = Vec::new();
        for store in 0..self.stores {
            let locks = Locks::connect(url).await.unwrap();
            for task in 0..self.tasks {
                let client = format!("{store}.{task}");
                let (locks, recorder) = (locks.clone(), recorder.clone());
                tasks.push(tokio::spawn(async move {
                    let (mut failures, mut losses, mut turn) = (0, 0, store + task);
                    while now() < until {
                        turn += 1;
                        let name = format!("lock-{}", turn % self.names);
                        let mode = if self.readers && turn % 3 == 0 { Mode::Shared } else { Mode::Exclusive };
                        match hold(&locks, self.wait, recorder.invoke(&name, &client, mode), &name, mode)
                            .await
                        {
                            Ok(true) => {}
                            Ok(false) => losses += 1,
                            Err(Error::NotAcquired { .. }) if self.wait.is_zero() => {}
                            Err(error) => {
                                println!("{error:?}");
                                failures += 1;
                            }
                        }
                    }
                    (failures, losses)
                }));
            }
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
}

/// Takes the lock, keeps it for a moment and gives it back; false if it was lost meanwhile.
async fn hold(
    locks: &Locks,
    wait: Duration,
    attempt: Attempt,
    name: &str,
    mode: Mode,
) -> Result<bool, Error> {
    let guard = locks.lock(name).mode(mode).wait(wait).acquire().await?;
    let hold = attempt.acquired(&guard);
    tokio::select! {
        biased;
        _ = guard.lost() => {
            hold.lost(guard.deadline());
            return Ok(false);
        }
        () = pause(Duration::from_micros(500)) => {}
    }
    hold.releasing(&guard);
    // A release that fails is tried again in the background.
    guard.release().await.ok();
    Ok(true)
}
