//! The clients of a run. Each acquires, holds and releases locks in turn, in all the ways that programs do, and records its sections.
//!
//! A further kind of action, such as adopting the hold of another process, is a branch of [`Client::run`]; the entries that it may leave
//! in the store are the state of its [`Attempt`].

use std::{
    ops::Range,
    pin::pin,
    sync::{Arc, Mutex},
    time::Duration,
};

use fastrand::Rng;
use futures_util::future::join_all;
use polylock_core::{
    Clock, Error, Guard, Locks, LostReason, Mode, OwnerId, Request, SystemClock, sync::lock,
};
use polylock_testkit::history::Section;

use super::{
    clock::LocalClock,
    network::nanos,
    plan::{FAULTS_END, MOST_LOCKS, Plan, StoreKind, Style, WORK_END, between},
    record::{Attempt, AttemptState, Kept, Loss, Record},
    servers::Servers,
    time::{MS, Time},
    timeline::Timeline,
    ways::{End, Way, acquire, finish},
};
use crate::recipe::{Held, Recipe};

/// The names of the locks.
const NAMES: [&str; MOST_LOCKS] = ["orders", "jobs", "cron"];

/// The number of slots of each semaphore. There is one semaphore of each name.
const SLOTS: u32 = 2;

/// The lock of a request that need not be in the queue of a certain one: it is for a slot, or its future is not polled.
pub const ANY: &str = "any";

/// One life of a client.
#[derive(Debug)]
pub struct Client {
    /// Its name: the process, and its number.
    pub name: String,
    /// Its process.
    pub process: usize,
    /// The number of its attempts.
    pub attempts: u64,
    /// Its locks.
    pub locks: Locks,
    /// The servers of its locks.
    pub servers: Arc<dyn Servers>,
    /// The plan of the run.
    pub plan: Plan,
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

/// A request, and the limits of its hold.
#[derive(Debug, Clone)]
struct Wish {
    owner: String,
    ttl: Duration,
    min_hold: Duration,
    max_hold: Option<Duration>,
    way: Way,
    /// The time of the run at which it began.
    invoked: u64,
}

impl Wish {
    /// Returns the time for which the store may have the hold once it is lost: one with a shortest time is left to expire.
    const fn after_loss(&self) -> Duration {
        if self.min_hold.is_zero() { Duration::ZERO } else { self.ttl }
    }
}

impl Client {
    /// Uses locks until [`WORK_END`].
    pub async fn run(mut self) {
        loop {
            let pause = self.between(0..100);
            self.sleep(pause).await;
            if self.time.now() >= nanos(self.plan.late_time(WORK_END)) {
                return;
            }
            let name = NAMES[self.random.usize(..self.plan.locks)];
            if self.breaks() && self.random.u8(..10) == 0 {
                self.break_lock(name).await;
            }
            if self.is_calm() && self.plan.store == StoreKind::Redis && self.random.u8(..16) == 0 {
                // One of many is likely to be on its way together with a grant.
                let pauses: Vec<_> = (0..self.random.u8(..16)).map(|_| self.between(0..300)).collect();
                let breaks = pauses.into_iter().map(async |pause| {
                    self.sleep(pause).await;
                    self.break_lock(name).await;
                });
                join_all(breaks).await;
            }
            self.section(name).await;
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
        between(&mut self.random, ms) * self.plan.store.scale()
    }

    fn is_calm(&self) -> bool {
        self.plan.style == Style::Calm
    }

    fn breaks(&self) -> bool {
        self.plan.store == StoreKind::Azure || self.is_calm() && self.plan.store == StoreKind::Redis
    }

    async fn section(&mut self, name: &'static str) {
        let has_modes = !matches!(self.plan.store, StoreKind::Redlock | StoreKind::Azure);
        let mode = if self.random.u8(..3) == 0 && has_modes { Mode::Shared } else { Mode::Exclusive };
        let mut wish = self.draw_wish();
        let recipe = match mode {
            Mode::Exclusive if self.plan.has_slots() && self.random.u8(..3) == 0 => Recipe::Slot(SLOTS),
            _ => Recipe::draw(&mut self.random),
        };
        if let Recipe::Slot(_) = recipe {
            (wish.min_hold, wish.max_hold) = (Duration::ZERO, None);
        }
        let Wish { owner, ttl, min_hold, max_hold, way, invoked } = wish.clone();
        self.note(|| {
            format!("{owner} acquires {name} {mode}, {recipe:?}, ttl {ttl:?}, {min_hold:?} to {max_hold:?}, {way:?}")
        });
        let wanted = recipe.wanted(&self.locks, name, mode).ttl(ttl).owner(&OwnerId::sanitized(&owner));
        let wanted = wanted.min_hold(min_hold);
        let wanted = if let Some(time) = max_hold { wanted.max_hold(time) } else { wanted };
        let waits_for = match (recipe, way) {
            (Recipe::Slot(_), _) | (_, Way::Stall(..)) => ANY,
            _ => name,
        };
        let entry = (self.name.clone(), waits_for, invoked);
        // The turnstile of a semaphore has a queue lease, too.
        let unpolled =
            if let Way::Stall(..) = way { 2 * ttl.min(Request::MAX_QUEUE_LEASE) } else { Duration::ZERO };
        let patience = unpolled + wish.after_loss();
        {
            let mut record = lock(&self.record);
            record.waiting.insert(entry.clone());
            let state = AttemptState::Acquiring;
            let leaves_lost = !min_hold.is_zero();
            record.attempts.insert(owner.clone(), Attempt { patience, leaves_lost, state, since: invoked });
        }
        let outcome = acquire(wanted, way).await;
        lock(&self.record).waiting.remove(&entry);
        if !matches!(outcome, Ok(Some(_))) {
            self.set(&owner, AttemptState::Over(wish.after_loss()));
        }
        match outcome {
            Ok(Some(held)) => self.hold(held, &wish).await,
            Ok(None) => self.note(|| format!("has not acquired {name}")),
            Err(error) => self.fail(&error, || format!("has not acquired {name}")),
        }
    }

    fn draw_wish(&mut self) -> Wish {
        self.attempts += 1;
        let owner = format!("{}/{}", self.name, self.attempts);
        let mut ttl = self.between(self.ttl_ms.clone());
        let (mut min_hold, mut max_hold) = (Duration::ZERO, None);
        if self.plan.has_long_leases() {
            match self.random.u8(..4) {
                0 => ttl = self.between(2000..4000),
                1 => ttl = self.between(4000..10_000),
                _ => {}
            }
        }
        // On Azure a hold is notified of a break when it is renewed, and one with a longest time need not be.
        if self.is_calm() && self.plan.store != StoreKind::Azure {
            match self.random.u8(..8) {
                0 => min_hold = self.between(1..2000),
                1 => max_hold = Some(self.between(20..2000)),
                _ => {}
            }
        }
        let way = self.draw_way(ttl);
        Wish { owner, ttl, min_hold, max_hold, way, invoked: self.time.now() }
    }

    fn draw_way(&mut self, ttl: Duration) -> Way {
        match self.random.u8(..if self.is_calm() { 16 } else { 10 }) {
            0 => Way::Try,
            1..=5 => Way::Wait,
            6 | 7 => Way::WaitFor(self.between(1..1500)),
            8 | 9 => Way::Drop(self.random.u32(0..12), self.between(1..600)),
            10..=12 => Way::Try,
            _ => {
                let longest = 2 * ttl.min(Request::MAX_QUEUE_LEASE);
                let time = longest.mul_f64(self.random.f64());
                Way::Stall(self.random.u32(1..5), time, self.random.u8(..3) == 0)
            }
        }
    }

    /// Records an error.
    fn fail(&self, error: &Error, what: impl FnOnce() -> String) {
        if !error.is_temporary() && !error.is_not_acquired() {
            lock(&self.record).surprises.push(format!("{}: {}", self.name, error.chain()));
        }
        self.note(|| format!("{}: {}", what(), error.chain()));
    }

    async fn hold(&mut self, held: Held, wish: &Wish) {
        let guard = held.guard();
        let acquired = self.time.now();
        let token = guard.fencing_token().get();
        let mut section =
            Section::new(guard.name().as_str(), &self.name, guard.mode(), wish.invoked..acquired)
                .token(token);
        section.open = true;
        section.deadline = self.deadline(guard, wish);
        let at = {
            let mut record = lock(&self.record);
            record.sections.push(section);
            record.sections.len() - 1
        };
        self.set(&wish.owner, AttemptState::Holding(guard.name().as_str().to_owned(), token));
        self.note(|| format!("holds {} with token {token}", guard.name()));
        let (lasts, end) = self.draw_hold();
        let until = SystemClock.now() + lasts;
        let mut lost = pin!(guard.lost());
        let is_lost = loop {
            let renewed = guard.renewed();
            if guard.is_held() {
                let deadline = self.deadline(guard, wish);
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
                    self.check_loss(at, &reason, wish);
                    break true;
                }
                _ = renewed => {}
                () = SystemClock.sleep_until(until) => break false,
            }
        };
        if is_lost {
            self.set(&wish.owner, AttemptState::Over(wish.after_loss()));
            return self.update(at, |section, _| section.open = false);
        }
        self.end(held, end, (at, acquired), wish).await;
    }

    /// Ends a hold that was not lost.
    async fn end(&mut self, held: Held, end: End, (at, acquired): (usize, u64), wish: &Wish) {
        let guard = held.guard();
        let (is_held, expires) = (guard.is_held(), self.servers.expires(guard.name(), guard.fencing_token()));
        if is_held {
            let deadline = self.deadline(guard, wish);
            self.update(at, |section, _| section.deadline = deadline);
        }
        self.update(at, |section, now| (section.released, section.open) = (Some(now), false));
        self.note(|| format!("ends its hold of {}: {end:?}", guard.name()));
        let (shortest, longest) = self.stays_taken(guard, end, acquired, wish);
        self.set(&wish.owner, AttemptState::Over(longest));
        let (name, mode, token) = (guard.name().clone(), guard.mode(), guard.fencing_token().get());
        let ended = self.time.now();
        let outcome = finish(held, end, &mut self.random).await;
        self.note(|| format!("has ended its hold: {outcome:?}"));
        let (now, mut record) = (self.time.now(), lock(&self.record));
        // A renewal that is carried out late ends a lease that is longer than the TTL.
        let is_kept = (Duration::from_nanos(1)..=wish.ttl).contains(&shortest);
        match outcome {
            Ok(()) if is_kept && !matches!(end, End::Drop | End::DropRelease) => {
                // The clocks of the process and the server may differ.
                let until = ended + nanos(shortest - shortest / 500).saturating_sub(2 * MS);
                record.kept.push(Kept { lock: name.as_str().to_owned(), mode, token, time: ended..until });
            }
            // The renewal that ends a lease later reports a loss if it is carried out, not answered, and repeated after that.
            Err(Error::Lost { reason: LostReason::Gone, .. })
                if is_held && longest.is_zero() && expires.is_some_and(|expires| now < expires) =>
            {
                let what = format!("false loss: the release of token {token} of {name} by {}", wish.owner);
                record.seen.push((now, "false loss", what));
            }
            _ => {}
        }
    }

    /// Returns the shortest and the longest time for which the lock stays taken although its holder ends the hold now.
    fn stays_taken(&self, guard: &Guard, end: End, acquired: u64, wish: &Wish) -> (Duration, Duration) {
        let now = self.time.now();
        let min_hold = |since| wish.min_hold.saturating_sub(Duration::from_nanos(now - since));
        // A grant is older than its section if the future was not polled.
        let granted = if let Way::Stall(..) = wish.way { wish.invoked } else { acquired };
        let time = match end {
            End::LeaveToExpire if guard.is_held() => {
                let deadline = self.clock.to_run(guard.deadline().as_nanos());
                Duration::from_nanos(deadline.saturating_sub(now))
            }
            End::ReleaseAfter(delay) => delay,
            _ => Duration::ZERO,
        };
        let (shortest, longest) = (time.max(min_hold(granted)), time.max(min_hold(acquired)));
        // The store may carry out the last renewal of the hold after its end.
        (shortest, if longest.is_zero() { longest } else { longest.max(wish.ttl) })
    }

    /// Records a loss that must have a reason, or is a violation by itself.
    fn check_loss(&self, at: usize, reason: &LostReason, wish: &Wish) {
        let (now, mut record) = (self.time.now(), lock(&self.record));
        let section = &record.sections[at];
        let what = format!("{} of {} with token {:?}: {reason}", section.lock, wish.owner, section.token);
        let is_too_soon = match reason {
            // A grant that is received late has only the rest of a lease.
            LostReason::DeadlineReached if now - section.acquired < nanos(wish.ttl) / 2 => return,
            LostReason::DeadlineReached => {
                record.losses.push(Loss { at: now, process: self.process, lease: wish.ttl, what });
                return;
            }
            LostReason::Gone => now < section.deadline && self.plan.store.keeps_leases(),
            LostReason::MaxHold => {
                wish.max_hold.is_none_or(|max| now < wish.invoked + nanos(max - max / 500))
            }
            _ => false,
        };
        if is_too_soon {
            record.seen.push((now, "loss", format!("loss: {what}")));
        }
    }

    /// Returns the time of the run at which `guard` ends if it is not renewed. That is before its lease ends at the server.
    fn deadline(&self, guard: &Guard, wish: &Wish) -> u64 {
        let (now, deadline) = (self.time.now(), self.clock.to_run(guard.deadline().as_nanos()));
        let expires = self.servers.expires(guard.name(), guard.fencing_token());
        let found = |what: &str| {
            let what = format!("{} holds {} until after {what}", self.name, guard.name());
            lock(&self.record).seen.push((now, "deadline", what));
        };
        if guard.is_held() && expires.is_some_and(|expires| deadline > expires) {
            found("the end of its lease");
        }
        if wish.max_hold.is_some_and(|max| guard.is_held() && deadline > now + nanos(max + max / 500)) {
            found("its longest time");
        }
        deadline
    }

    /// Breaks the lock, so that its holder stops at once, or at its next renewal.
    async fn break_lock(&self, name: &'static str) {
        self.note(|| format!("breaks {name}"));
        lock(&self.record).breaks.push((name, self.time.now()));
        match self.locks.break_lock(name).await {
            Ok(holders) => {
                let (now, tokens) = (self.time.now(), holders.iter().filter_map(|holder| holder.token));
                lock(&self.record).broken.extend(tokens.map(|token| (name, token.get(), now)));
            }
            Err(error) => self.fail(&error, || format!("has not broken {name}")),
        }
    }

    fn draw_hold(&mut self) -> (Duration, End) {
        let mut lasts = match self.random.u8(..4) {
            0 => self.between(300..1500),
            _ => self.between(0..100),
        };
        if self.is_calm() && self.random.u8(..8) == 0 {
            // Some of the long leases are renewed.
            lasts = self.between(1500..6000);
        }
        // A lease that is left to expire looks like a leak at the end of a busy run.
        let leases_end =
            if self.is_calm() { self.plan.late_time(WORK_END) } else { self.plan.time(FAULTS_END) };
        let may_expire = self.time.now() < nanos(leases_end);
        let end = match self.random.u8(..if self.is_calm() { 12 } else { 10 }) {
            0..=4 => End::Release,
            5 => End::DropRelease,
            8 if may_expire => End::LeaveToExpire,
            9 if may_expire => End::ReleaseAfter(self.between(1..1000)),
            10 | 11 => End::StallRelease(self.between(1..500)),
            _ => End::Drop,
        };
        (lasts, end)
    }

    fn set(&self, owner: &str, state: AttemptState) {
        if let Some(attempt) = lock(&self.record).attempts.get_mut(owner) {
            (attempt.state, attempt.since) = (state, self.time.now());
        }
    }

    fn update(&self, at: usize, change: impl FnOnce(&mut Section, u64)) {
        change(&mut lock(&self.record).sections[at], self.time.now());
    }
}
