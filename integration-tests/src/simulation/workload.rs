//! The clients of a run. Each acquires, holds and releases locks in turn, in all the ways that programs do, and records its sections.

use std::{
    fmt,
    ops::Range,
    pin::{Pin, pin},
    sync::{Arc, Mutex},
    task::{Context, Poll},
    time::Duration,
};

use fastrand::Rng;
use polylock_core::{Clock, Error, Guard, Locks, Mode, Result, SystemClock, sync::lock};
use polylock_testkit::history::Section;

use super::{
    clock::LocalClock,
    network::nanos,
    plan::{FAULTS_END, StoreKind, WORK_END, between},
    record::Record,
    servers::Servers,
    time::Time,
    timeline::Timeline,
};
use crate::recipe::{Held, Recipe, Wanted};

/// The names of the locks.
const NAMES: [&str; 3] = ["orders", "jobs", "cron"];

/// The number of slots of each semaphore. There is one semaphore of each name.
const SLOTS: u32 = 2;

/// The name of a request that waits for a slot.
pub const SLOT: &str = "a slot";

/// One life of a client.
#[derive(Debug)]
pub struct Client {
    /// Its name: the process, and its number.
    pub name: String,
    /// Its locks.
    pub locks: Locks,
    /// The servers of its locks.
    pub servers: Arc<dyn Servers>,
    /// The store.
    pub store: StoreKind,
    /// True if it acquires in all modes.
    pub has_modes: bool,
    /// True if it acquires slots of semaphores, too.
    pub has_slots: bool,
    /// The shortest and the longest lease, in milliseconds for Redis.
    pub ttl_ms: Range<u64>,
    /// The clock of its process.
    pub clock: LocalClock,
    /// The clock of the run.
    pub time: Arc<Time>,
    /// The decisions of its workload.
    pub random: Rng,
    /// The record of the run.
    pub record: Arc<Mutex<Record>>,
    /// The events of the run.
    pub timeline: Arc<Timeline>,
}

/// The way in which a client acquires.
#[derive(Debug, Clone, Copy)]
pub enum Way {
    /// One try.
    Try,
    /// Without a time limit.
    Wait,
    /// With a time limit.
    WaitFor(Duration),
    /// The future is dropped after a number of polls, or after a time.
    Drop(u32, Duration),
}

/// The way in which a client ends its hold.
#[derive(Debug, Clone, Copy)]
pub enum End {
    /// A release.
    Release,
    /// A release that is dropped.
    DropRelease,
    /// The guard is dropped.
    Drop,
    /// The lease expires.
    LeaveToExpire,
    /// The lock is released after this time.
    ReleaseAfter(Duration),
}

impl Client {
    /// Uses locks until [`WORK_END`].
    pub async fn run(mut self) {
        loop {
            let pause = self.between(0..100);
            self.sleep(pause).await;
            if self.time.now() >= nanos(WORK_END * self.store.scale()) {
                return;
            }
            self.section().await;
        }
    }

    async fn sleep(&self, time: Duration) {
        SystemClock.sleep_until(SystemClock.now() + time).await;
    }

    fn note(&self, what: impl FnOnce() -> String) {
        self.timeline.note(&self.name, what);
    }

    /// Returns a random duration, in milliseconds for Redis.
    fn between(&mut self, ms: Range<u64>) -> Duration {
        between(&mut self.random, ms) * self.store.scale()
    }

    async fn section(&mut self) {
        let name = NAMES[self.random.usize(..NAMES.len())];
        if self.store == StoreKind::Azure && self.random.u8(..10) == 0 {
            self.break_lock(name).await;
        }
        let mode = if self.random.u8(..3) == 0 && self.has_modes { Mode::Shared } else { Mode::Exclusive };
        let ttl = self.between(self.ttl_ms.clone());
        let way = match self.random.u8(..10) {
            0 => Way::Try,
            1..=5 => Way::Wait,
            6 | 7 => Way::WaitFor(self.between(1..1500)),
            _ => Way::Drop(self.random.u32(0..12), self.between(1..600)),
        };
        let recipe = match mode {
            Mode::Exclusive if self.has_slots && self.random.u8(..3) == 0 => Recipe::Slot(SLOTS),
            _ => Recipe::draw(&mut self.random),
        };
        let wanted = recipe.wanted(&self.locks, name, mode).ttl(ttl);
        let invoked = self.time.now();
        self.note(|| format!("acquires {name} {mode}, {recipe:?}, ttl {ttl:?}, {way:?}"));
        let waits_for = if let Recipe::Slot(_) = recipe { SLOT } else { name };
        let entry = (self.name.clone(), waits_for, invoked);
        lock(&self.record).waiting.insert(entry.clone());
        let outcome = acquire(wanted, way).await;
        lock(&self.record).waiting.remove(&entry);
        match outcome {
            Ok(Some(held)) => self.hold(held, invoked).await,
            Ok(None) => self.note(|| format!("has not acquired {name}")),
            Err(error) => self.fail(&error, || format!("has not acquired {name}")),
        }
    }

    /// Records an error.
    fn fail(&self, error: &Error, what: impl FnOnce() -> String) {
        if !error.is_temporary() && !error.is_not_acquired() {
            lock(&self.record).surprises.push(format!("{}: {}", self.name, error.chain()));
        }
        self.note(|| format!("{}: {}", what(), error.chain()));
    }

    async fn hold(&mut self, held: Held, invoked: u64) {
        let guard = held.guard();
        let acquired = self.time.now();
        let token = guard.fencing_token().get();
        let mut section =
            Section::new(guard.name().as_str(), &self.name, guard.mode(), invoked..acquired).token(token);
        section.open = true;
        section.deadline = self.deadline(guard);
        let at = {
            let mut record = lock(&self.record);
            record.sections.push(section);
            record.sections.len() - 1
        };
        self.note(|| format!("holds {} with token {token}", guard.name()));
        let (lasts, end) = self.draw_hold();
        let until = SystemClock.now() + lasts;
        let mut lost = pin!(guard.lost());
        let is_lost = loop {
            let renewed = guard.renewed();
            if guard.is_held() {
                let deadline = self.deadline(guard);
                // A poll at the time of the end is no later than the end.
                self.update(at, |section, now| {
                    (section.deadline, section.polled) = (deadline, now.checked_sub(1));
                });
            }
            tokio::select! {
                biased;
                reason = &mut lost => {
                    self.update(at, |section, now| section.lost = Some(now));
                    self.note(|| format!("has lost {}: {reason}", guard.name()));
                    break true;
                }
                _ = renewed => {}
                () = SystemClock.sleep_until(until) => break false,
            }
        };
        if is_lost {
            return self.update(at, |section, _| section.open = false);
        }
        if guard.is_held() {
            let deadline = self.deadline(guard);
            self.update(at, |section, _| section.deadline = deadline);
        }
        self.update(at, |section, now| (section.released, section.open) = (Some(now), false));
        self.note(|| format!("ends its hold of {}: {end:?}", guard.name()));
        let outcome = finish(held, end, &mut self.random).await;
        self.note(|| format!("has ended its hold: {outcome:?}"));
    }

    /// Returns the time of the run at which `guard` ends if it is not renewed. That is before its lease ends at the server.
    fn deadline(&self, guard: &Guard) -> u64 {
        let deadline = self.clock.to_run(guard.deadline().as_nanos());
        let expires = self.servers.expires(guard.name(), guard.fencing_token());
        if guard.is_held() && expires.is_some_and(|expires| deadline > expires) {
            let what = format!("{} holds {} until after the end of its lease", self.name, guard.name());
            lock(&self.record).overlong.push((self.time.now(), what));
        }
        deadline
    }

    /// Breaks the lock, so that its holder stops at its next renewal.
    async fn break_lock(&self, name: &'static str) {
        self.note(|| format!("breaks {name}"));
        match self.locks.break_lock(name).await {
            Ok(holders) => {
                let (now, tokens) = (self.time.now(), holders.iter().filter_map(|holder| holder.token));
                lock(&self.record).broken.extend(tokens.map(|token| (name, token.get(), now)));
            }
            Err(error) => self.fail(&error, || format!("has not broken {name}")),
        }
    }

    fn draw_hold(&mut self) -> (Duration, End) {
        let lasts = match self.random.u8(..4) {
            0 => self.between(300..1500),
            _ => self.between(0..100),
        };
        // A lease that is left to expire looks like a leak at the end of a run.
        let may_expire = self.time.now() < nanos(FAULTS_END * self.store.scale());
        let end = match self.random.u8(..10) {
            0..=4 => End::Release,
            5 => End::DropRelease,
            8 if may_expire => End::LeaveToExpire,
            9 if may_expire => End::ReleaseAfter(self.between(1..1000)),
            _ => End::Drop,
        };
        (lasts, end)
    }

    fn update(&self, at: usize, change: impl FnOnce(&mut Section, u64)) {
        change(&mut lock(&self.record).sections[at], self.time.now());
    }
}

/// Acquires the lock in this way. The outcome is `None` if it is not acquired in time, or the future is dropped.
///
/// # Errors
/// The errors of the acquisition.
///
/// # Cancel safety
/// The same as [`Wanted::acquire`].
pub async fn acquire(lock: Wanted, way: Way) -> Result<Option<Held>> {
    match way {
        Way::Try => lock.try_acquire().await,
        Way::Wait => lock.acquire().await.map(Some),
        Way::WaitFor(limit) => match lock.wait(limit).acquire().await {
            Err(error) if error.is_not_acquired() => Ok(None),
            outcome => outcome.map(Some),
        },
        Way::Drop(polls, limit) => match Limited::new(lock.acquire(), polls, limit).await {
            Some(outcome) => outcome.map(Some),
            None => Ok(None),
        },
    }
}

/// Ends a hold in this way.
///
/// # Errors
/// The errors of the release.
///
/// # Cancel safety
/// The same as [`Guard::release`].
pub async fn finish(held: Held, end: End, random: &mut Rng) -> Result<()> {
    match end {
        End::Release => held.release().await,
        End::DropRelease => {
            let (polls, limit) = (random.u32(0..4), between(random, 1..20));
            Limited::new(held.release(), polls, limit).await.unwrap_or(Ok(()))
        }
        End::Drop => {
            drop(held);
            Ok(())
        }
        End::LeaveToExpire => held.leave_to_expire(),
        End::ReleaseAfter(delay) => held.release_after(delay).await,
    }
}

/// A future that is dropped after a number of polls, or after a time: then the output is `None`.
struct Limited<F> {
    future: Option<Pin<Box<F>>>,
    polls: u32,
    limit: Pin<Box<dyn Future<Output = ()> + Send>>,
}

impl<F: Future> Limited<F> {
    fn new(future: F, polls: u32, limit: Duration) -> Self {
        let limit = SystemClock.sleep_until(SystemClock.now() + limit);
        Self { future: Some(Box::pin(future)), polls, limit }
    }
}

impl<F> fmt::Debug for Limited<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Limited").field("polls", &self.polls).finish_non_exhaustive()
    }
}

impl<F: Future> Future for Limited<F> {
    type Output = Option<F::Output>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Self { future, polls, limit } = &mut *self;
        if *polls == 0 || limit.as_mut().poll(cx).is_ready() {
            *future = None;
            return Poll::Ready(None);
        }
        *polls -= 1;
        match future {
            Some(future) => future.as_mut().poll(cx).map(Some),
            None => Poll::Ready(None),
        }
    }
}
