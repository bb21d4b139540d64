//! Many tasks that use a few locks at the same time during faults, and the outcome.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use polylock::{Error, Locks, Mode};
use polylock_testkit::history::{self, Attempt, Recorder, Rules, Section};
use tokio::sync::{Mutex, MutexGuard};

use crate::clock::{now, pause};

/// The factor by which a load may take longer on a busy machine.
pub const MAX_SLOWDOWN: u32 = 4;

/// Waits until no other load of this program runs: together they would only share the processors, and reach fewer holds each. The turn
/// ends when the result is dropped.
pub async fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::const_new(());
    TURN.lock().await
}

/// The number of tasks and locks, and the duration.
#[derive(Debug, Clone, Copy)]
pub struct Load {
    /// The number of opened stores, each of which represents a process.
    pub stores: usize,
    /// The number of tasks on each store.
    pub tasks: usize,
    /// The name of the lock; followed by a number if there are several.
    pub name: &'static str,
    /// The number of locks.
    pub names: usize,
    /// The duration of the load.
    pub duration: Duration,
    /// The load continues until there were more holds than this, for at most [`MAX_SLOWDOWN`] times its duration.
    pub min_holds: usize,
    /// True if every third hold is a shared one.
    pub readers: bool,
    /// The number of slots, each of which is held by one task; 0 for locks that are no semaphores.
    pub slots: u32,
    /// The timeout of each acquisition.
    pub wait: Duration,
    /// The duration of each hold.
    pub hold_for: Duration,
}

impl Default for Load {
    fn default() -> Self {
        Self {
            stores: 4,
            tasks: 4,
            name: "lock",
            names: 2,
            duration: Duration::from_secs(3),
            min_holds: 0,
            readers: true,
            slots: 0,
            wait: Duration::from_secs(10),
            hold_for: Duration::from_micros(500),
        }
    }
}

/// Returns a load of one task per store, which acquires the lock `name` repeatedly.
#[must_use]
pub fn one(name: &'static str, duration: Duration) -> Load {
    Load { tasks: 1, name, names: 1, duration, readers: false, ..Load::default() }
}

/// Returns a load of tries of writers for one lock, in which every grant is made by a claim.
#[must_use]
pub fn tries_of_writers() -> Load {
    Load { names: 1, readers: false, wait: Duration::ZERO, ..Load::default() }
}

/// Returns a load of tries of readers and writers for one lock, in which planted bugs let holds overlap: so few that the lock becomes
/// free often, with holds that last about as long as a planted stall.
#[must_use]
pub fn tries_of_readers_and_writers() -> Load {
    let hold_for = Duration::from_millis(5);
    Load { names: 1, stores: 8, tasks: 1, wait: Duration::ZERO, hold_for, ..Load::default() }
}

/// The outcome of a load.
#[derive(Debug)]
pub struct Outcome {
    /// All holds.
    pub sections: Vec<Section>,
    /// The number of acquisitions that failed.
    pub failures: usize,
    /// The number of holds that were lost.
    pub losses: usize,
}

impl Outcome {
    /// Checks that the history is correct.
    ///
    /// # Panics
    /// If a check of [`polylock_testkit::history`] fails.
    pub fn assert_consistent(&self) {
        println!("{} sections, {} failures, {} losses", self.sections.len(), self.failures, self.losses);
        assert_eq!(history::check(&self.sections, Rules::default()), []);
    }

    /// Returns the number of sections of all tasks of one store.
    #[must_use]
    pub fn of(&self, store: usize) -> usize {
        let store = format!("{store}.");
        self.sections.iter().filter(|section| section.client.starts_with(&store)).count()
    }
}

impl Load {
    /// Runs the load on the store at `url`, while `fault` runs, when it is its [`turn`].
    ///
    /// # Panics
    /// If the store can't be opened.
    pub async fn run(self, url: &str, fault: impl Future<Output = ()>) -> Outcome {
        let _turn = turn().await;
        let mut stores = Vec::new();
        for _ in 0..self.stores {
            stores.push(Locks::connect(url).await.unwrap_or_else(|error| panic!("{url}: {error:?}")));
        }
        self.on(stores, fault).await
    }

    /// Runs the load on open stores, at once: a test that runs several loads together calls this.
    ///
    /// # Panics
    /// If a task panics.
    pub async fn on(self, stores: Vec<Locks>, fault: impl Future<Output = ()>) -> Outcome {
        let recorder = Recorder::new();
        let (until, latest) = (now() + self.duration, now() + self.duration * MAX_SLOWDOWN);
        let holds = Arc::new(AtomicUsize::new(0));
        let mut tasks = Vec::new();
        for (store, locks) in stores.into_iter().enumerate() {
            for task in 0..self.tasks {
                let client = format!("{store}.{task}");
                let (locks, recorder, holds) = (locks.clone(), recorder.clone(), holds.clone());
                tasks.push(tokio::spawn(async move {
                    let (mut failures, mut losses, mut turn) = (0, 0, store + task);
                    let is_over = || match now() {
                        now if now < until => false,
                        now => now >= latest || holds.load(Ordering::Relaxed) > self.min_holds,
                    };
                    while !is_over() {
                        turn += 1;
                        let name = self.name_of(turn);
                        let mode = if self.readers && turn % 3 == 0 { Mode::Shared } else { Mode::Exclusive };
                        let attempt = recorder.invoke(&name, &client, mode);
                        let held = hold(&locks, &self, attempt, &name, mode).await;
                        holds.fetch_add(usize::from(held.is_ok()), Ordering::Relaxed);
                        match held {
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
        fault.await;
        let (mut failures, mut losses) = (0, 0);
        for task in tasks {
            let (failed, lost) = task.await.unwrap_or_else(|error| panic!("a task failed: {error}"));
            failures += failed;
            losses += lost;
        }
        Outcome { sections: recorder.sections(), failures, losses }
    }

    fn name_of(self, turn: usize) -> String {
        if self.names == 1 { self.name.to_owned() } else { format!("{}-{}", self.name, turn % self.names) }
    }
}

/// Acquires the lock, holds it as long as `load` does and releases it. Returns false if it was lost meanwhile.
///
/// # Errors
/// If it could not be acquired.
pub async fn hold(
    locks: &Locks,
    load: &Load,
    attempt: Attempt,
    name: &str,
    mode: Mode,
) -> Result<bool, Error> {
    let guard = match load.slots {
        0 => locks.lock(name).mode(mode).wait(load.wait).acquire().await?,
        slots => locks.semaphore(name, slots).wait(load.wait).acquire().await?.into_guard(),
    };
    let hold = attempt.of(guard.name().as_str()).acquired(&guard);
    tokio::select! {
        biased;
        _ = guard.lost() => {
            hold.lost(guard.deadline());
            return Ok(false);
        }
        () = pause(load.hold_for) => {}
    }
    hold.releasing(&guard);
    // A failed release is retried in the background.
    guard.release().await.ok();
    Ok(true)
}
