//! Many who use a few locks at once, through whatever happens, and what is said of it afterwards.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use polylock::{Error, Locks, Mode};
use polylock_testkit::history::{self, Attempt, Recorder, Rules, Section};

use crate::clock::{now, pause};

/// How many times as long a load may last on a machine that is busy with something else.
pub const LONGER: u32 = 4;

/// How many use how much for how long.
#[derive(Debug, Clone, Copy)]
pub struct Load {
    /// Stores opened, each as if it were another process.
    pub stores: usize,
    /// Tasks on each.
    pub tasks: usize,
    /// What the locks are called: so, and with a number behind it if there are several.
    pub name: &'static str,
    /// How many locks.
    pub names: usize,
    /// How long it goes on.
    pub lasts: Duration,
    /// It goes on until there were more holds than this, but not for longer than [`LONGER`] times as long.
    pub more_than: usize,
    /// Whether every third hold is a shared one.
    pub readers: bool,
    /// For how long each waits for its turn.
    pub wait: Duration,
}

impl Default for Load {
    fn default() -> Self {
        Self {
            stores: 4,
            tasks: 4,
            name: "lock",
            names: 2,
            lasts: Duration::from_secs(3),
            more_than: 0,
            readers: true,
            wait: Duration::from_secs(10),
        }
    }
}

/// One task of each store, which wants the lock `name` alone, again and again.
#[must_use]
pub fn one(name: &'static str, lasts: Duration) -> Load {
    Load { tasks: 1, name, names: 1, lasts, readers: false, ..Load::default() }
}

/// What came out.
#[derive(Debug)]
pub struct Outcome {
    /// All holds.
    pub sections: Vec<Section>,
    /// Claims that failed.
    pub failures: usize,
    /// Holds that were lost.
    pub losses: usize,
}

impl Outcome {
    /// Every promise was kept.
    ///
    /// # Panics
    /// If not.
    pub fn is_clean(&self) {
        println!("{} sections, {} failures, {} losses", self.sections.len(), self.failures, self.losses);
        assert_eq!(history::check(&self.sections, Rules::default()), []);
    }

    /// The sections of all tasks of one store, by its number.
    #[must_use]
    pub fn of(&self, store: usize) -> usize {
        let store = format!("{store}.");
        self.sections.iter().filter(|section| section.client.starts_with(&store)).count()
    }
}

impl Load {
    /// Puts the load on the store at `url`, while `trouble` happens.
    ///
    /// # Panics
    /// If it can't be opened.
    pub async fn run(self, url: &str, trouble: impl Future<Output = ()>) -> Outcome {
        let mut stores = Vec::new();
        for _ in 0..self.stores {
            stores.push(Locks::connect(url).await.unwrap_or_else(|error| panic!("{url}: {error:?}")));
        }
        self.on(stores, trouble).await
    }

    /// The same on stores that are open.
    ///
    /// # Panics
    /// If a task does.
    pub async fn on(self, stores: Vec<Locks>, trouble: impl Future<Output = ()>) -> Outcome {
        let recorder = Recorder::new();
        let (until, latest) = (now() + self.lasts, now() + self.lasts * LONGER);
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
                        now => now >= latest || holds.load(Ordering::Relaxed) > self.more_than,
                    };
                    while !is_over() {
                        turn += 1;
                        let name = self.name_of(turn);
                        let mode = if self.readers && turn % 3 == 0 { Mode::Shared } else { Mode::Exclusive };
                        let attempt = recorder.invoke(&name, &client, mode);
                        let held = hold(&locks, self.wait, attempt, &name, mode).await;
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
        trouble.await;
        let (mut failures, mut losses) = (0, 0);
        for task in tasks {
            let (failed, lost) = task.await.unwrap_or_else(|error| panic!("a task: {error}"));
            failures += failed;
            losses += lost;
        }
        Outcome { sections: recorder.sections(), failures, losses }
    }

    fn name_of(self, turn: usize) -> String {
        if self.names == 1 { self.name.to_owned() } else { format!("{}-{}", self.name, turn % self.names) }
    }
}

/// Takes the lock, keeps it for a moment and gives it back; false if it was lost meanwhile.
///
/// # Errors
/// If it could not be taken.
pub async fn hold(
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
