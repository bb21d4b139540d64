//! Records a history while it happens.

use std::sync::{Arc, Mutex};

use polylock_core::{Clock, Guard, Mode, Moment, SystemClock, sync::lock};

use super::Section;

/// Collects the sections of one process. Clones share them.
///
/// ```
/// # use polylock_core::{Locks, Mode, memory};
/// # use polylock_testkit::history::{self, Recorder};
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// let locks = Locks::new(memory::connect());
/// let recorder = Recorder::new();
///
/// let attempt = recorder.invoke("orders", "worker-1", Mode::Exclusive);
/// let guard = locks.lock("orders").acquire().await?;
/// let hold = attempt.acquired(&guard);
/// // … the work …
/// hold.releasing(&guard);
/// guard.release().await?;
///
/// assert_eq!(history::check(&recorder.sections(), history::Rules::default()), []);
/// # Ok::<(), polylock_core::Error>(()) }).unwrap();
/// ```
#[derive(Debug, Clone, Default)]
pub struct Recorder(Arc<Mutex<Vec<Section>>>);

impl Recorder {
    /// Creates an empty recorder.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Starts an attempt, right before `client` requests `lock`.
    #[must_use]
    pub fn invoke(&self, lock: impl Into<String>, client: impl Into<String>, mode: Mode) -> Attempt {
        let now = now();
        Attempt { recorder: self.clone(), section: Section::new(lock, client, mode, now..now) }
    }

    /// Returns the sections that have ended.
    #[must_use]
    pub fn sections(&self) -> Vec<Section> {
        lock(&self.0).clone()
    }

    fn add(&self, section: Section) {
        lock(&self.0).push(section);
    }
}

/// An attempt to acquire a lock. Drop it if the attempt fails or its outcome is unknown.
#[derive(Debug)]
pub struct Attempt {
    recorder: Recorder,
    section: Section,
}

impl Attempt {
    /// Records that the request is for this lock: the slot of a semaphore, which is known when it is acquired.
    #[must_use]
    pub fn of(mut self, lock: impl Into<String>) -> Self {
        self.section.lock = lock.into();
        self
    }

    /// Records that the request is now known to be in the queue.
    pub fn queued(&mut self) {
        self.section.queued = Some(now());
    }

    /// Records that the lock has been acquired. If its lease has ended before the client received it, for instance in a stopped process,
    /// the deadline is recorded as the time of the acquisition: the client never had the lock.
    #[must_use]
    pub fn acquired(mut self, guard: &Guard) -> Hold {
        self.section.acquired = now();
        self.section.token = Some(guard.fencing_token().get());
        self.section.deadline = self.section.acquired;
        let mut hold = Hold(self);
        hold.seen(guard);
        hold
    }
}

/// A hold.
#[derive(Debug)]
pub struct Hold(Attempt);

impl Hold {
    /// Returns the unfinished section, [`open`](Section::open): for a file that outlives this process.
    #[must_use]
    pub fn so_far(&self) -> Section {
        Section { open: true, ..self.0.section.clone() }
    }

    /// Records that the guarded work is being polled.
    pub fn polled(&mut self) {
        self.0.section.polled = Some(now());
    }

    /// Records the time at which the client has asked whether the lock is held, if it is: then the client works under the lock at
    /// that time. Records the deadline, too, and returns true if the lock is held.
    pub fn checked(&mut self, guard: &Guard) -> bool {
        let asked = now();
        let held = self.seen(guard);
        if held {
            self.0.section.polled = Some(asked);
        }
        held
    }

    /// Records that the release is about to be called.
    ///
    /// If the lock is already lost, the last observed deadline counts; see [`seen`](Self::seen).
    pub fn releasing(mut self, guard: &Guard) -> Section {
        self.0.section.released = Some(now());
        // The time of the loss is unknown here, so the section does not claim that the loss was reported in time.
        self.0.section.open = !self.seen(guard);
        self.over()
    }

    /// Records the deadline, which renewals extend. Returns true if the lock is held.
    pub fn seen(&mut self, guard: &Guard) -> bool {
        let deadline = guard.deadline();
        let held = guard.is_held();
        if held {
            self.0.section.deadline = deadline.as_nanos();
        }
        held
    }

    /// Records that the loss has been signalled; `deadline` was the last one.
    pub fn lost(mut self, deadline: Moment) -> Section {
        self.0.section.lost = Some(now());
        self.0.section.deadline = deadline.as_nanos();
        self.over()
    }

    fn over(self) -> Section {
        self.0.recorder.add(self.0.section.clone());
        self.0.section
    }
}

fn now() -> u64 {
    SystemClock.now().as_nanos()
}
