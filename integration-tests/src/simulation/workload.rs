//! The clients of a run. Each acquires, holds and releases locks in turn, in all the ways that programs do, and records its sections.
//!
//! A further kind of action, such as adopting the hold of another process, is a branch of [`Client::run`]; the entries that it may leave
//! in the store are the state of its [`Attempt`].

use std::{
    collections::BTreeSet,
    ops::Range,
    pin::pin,
    sync::{Arc, Mutex},
    time::Duration,
};

use fastrand::Rng;
use futures_util::{FutureExt, future::join_all};
use polylock_core::{
    Clock, Error, Guard, Locks, LostReason, Mode, OwnerId, Request, SystemClock, sync::lock,
};
use polylock_testkit::history::Section;

use super::{
    both::fleet::Place,
    clock::LocalClock,
    holds::{HoldRecord, Key},
    network::nanos,
    plan::{MOST_LOCKS, Plan, StoreKind, Style, between},
    record::{Attempt, AttemptState, Kept, Loss, Record},
    servers::Servers,
    time::{MS, Time},
    timeline::Timeline,
    ways::{End, Passing, SHORTEST_PARK, Way, acquire, finish},
};
use crate::recipe::{Held, Recipe};

/// The names of the locks.
const NAMES: [&str; MOST_LOCKS] = ["orders", "jobs", "cron"];

/// The number of slots of each semaphore. There is one semaphore of each name.
const SLOTS: u32 = 2;

/// The lock of a request that need not be in the queue of a certain one: it is for a slot, or its future is not polled.
pub const ANY: &str = "any";

/// The time by which a store may give a longer lease than it was asked for: a second in Azure.
const LEASE_UNIT: Duration = Duration::from_millis(100);

/// One life of a client.
#[derive(Debug)]
pub struct Client {
    /// Its name: the process, and its number.
    pub name: String,
    /// Its process.
    pub process: usize,
    /// The step of its process.
    pub place: Place,
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
    /// The decisions about handles, apart from the others so that runs without handles stay the same.
    pub handles: Rng,
    /// The record of the run.
    pub record: Arc<Mutex<Record>>,
    /// The events of the run.
    pub timeline: Arc<Timeline>,
}

/// A request, and the limits of its hold.
#[derive(Debug, Clone)]
pub struct Wish {
    /// The owner of the attempt.
    pub owner: String,
    /// The lease.
    pub ttl: Duration,
    /// The shortest time of the hold.
    pub min_hold: Duration,
    /// The longest time of the hold.
    pub max_hold: Option<Duration>,
    /// The way in which it is acquired.
    pub way: Way,
    /// The time of the run at which it began.
    pub invoked: u64,
}

impl Wish {
    /// Returns the time for which the store may have the hold once it is lost: one with a shortest time is left to expire.
    #[must_use]
    pub const fn after_loss(&self) -> Duration {
        if self.min_hold.is_zero() { Duration::ZERO } else { self.ttl }
    }
}

impl Client {
    /// Uses locks until it is to end.
    pub async fn run(mut self) {
        loop {
            let pause = self.between(0..100);
            self.sleep(pause).await;
            if self.is_to_end() {
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

    /// Waits, by the clock of the process.
    pub async fn sleep(&self, time: Duration) {
        SystemClock.sleep_until(SystemClock.now() + time).await;
    }

    /// Adds an event to the timeline.
    pub fn note(&self, what: impl FnOnce() -> String) {
        self.timeline.note(&self.name, what);
    }

    /// Returns a random duration, in milliseconds for Redis.
    pub fn between(&mut self, ms: Range<u64>) -> Duration {
        between(&mut self.random, ms) * self.plan.store.scale()
    }

    /// Returns true in a calm run.
    pub fn is_calm(&self) -> bool {
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
            let attempt = Attempt {
                patience,
                leaves_lost,
                state,
                since: invoked,
                users: BTreeSet::new(),
                longest: ttl,
                lock: String::new(),
                tokens: BTreeSet::new(),
                converting: BTreeSet::new(),
                converted_since: None,
                is_ended: false,
                ended_by: None,
            };
            record.attempts.insert(owner.clone(), attempt);
        }
        let outcome = acquire(wanted, way).await;
        lock(&self.record).waiting.remove(&entry);
        if !matches!(outcome, Ok(Some(_))) {
            self.set(&owner, AttemptState::Over(wish.after_loss()));
        }
        match outcome {
            Ok(Some(held)) => self.hold(held, &wish).await,
            Ok(None) => self.note(|| format!("has not acquired {name}")),
            Err(error) => {
                let gave_up_by = invoked + nanos(self.locks.options().outage);
                if matches!(way, Way::Wait) && error.is_temporary() && self.time.now() < gave_up_by {
                    let what = format!("{owner} has given up {name}: {}", error.chain());
                    lock(&self.record).seen.push((self.time.now(), "given up", what));
                }
                self.fail(&error, || format!("has not acquired {name}"));
            }
        }
    }

    /// Records an error.
    pub fn fail(&self, error: &Error, what: impl FnOnce() -> String) {
        // The first of several locks may have lasted for its longest time before the last one is granted.
        let is_short = error.lost() == Some(&LostReason::MaxHold);
        if !error.is_temporary() && !error.is_not_acquired() && !is_short {
            lock(&self.record).surprises.push(format!("{}: {}", self.name, error.chain()));
        }
        self.note(|| format!("{}: {}", what(), error.chain()));
    }

    /// Uses a hold, and ends it or passes it on.
    pub async fn hold(&mut self, held: Held, wish: &Wish) {
        let guard = held.guard();
        let acquired = self.time.now();
        let token = guard.fencing_token().get();
        let mut section =
            Section::new(guard.name().as_str(), &self.name, guard.mode(), wish.invoked..acquired)
                .token(token);
        section.open = true;
        section.deadline = self.deadline(guard, wish);
        let at = self.join(section, wish);
        self.note(|| format!("holds {} with token {token}", guard.name()));
        let (lasts, end) = self.draw_hold();
        let passing = self.draw_passing(&held, wish);
        let guard = held.guard();
        let until = SystemClock.now() + lasts;
        let mut lost = pin!(guard.lost());
        let loss = loop {
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
                    break Some(reason);
                }
                _ = renewed => {}
                () = SystemClock.sleep_until(until) => break None,
            }
        };
        if let Some(reason) = loss {
            let is_kept = matches!(reason, LostReason::Broken(_) | LostReason::MaxHold);
            return self.leave_lost(at, is_kept, wish);
        }
        match passing {
            Passing::None => self.end(held, end, (at, acquired), wish).await,
            passing => self.pass_on(held, passing, at, wish).await,
        }
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
        let key = key_of(guard);
        // A hold with a shortest time is ended at that time, or released if it is marked as broken.
        let is_end = !matches!(end, End::LeaveToExpire) || !wish.min_hold.is_zero();
        // A hold that is lost by its deadline is not released: another process may have renewed it.
        let is_end = is_end && guard.lost().now_or_never() != Some(LostReason::DeadlineReached);
        self.leave(&key, is_end, longest, wish);
        let (name, mode, token) = (guard.name().clone(), guard.mode(), guard.fencing_token().get());
        let ended = self.time.now();
        let outcome = finish(held, end, &mut self.random).await;
        self.note(|| format!("has ended its hold: {outcome:?}"));
        let (now, mut record) = (self.time.now(), lock(&self.record));
        // A hold that ends at a later time is not renewed any more, either.
        let is_confirmed = matches!(end, End::Release | End::StallRelease(_) | End::ReleaseAfter(_));
        if outcome.is_ok() && is_confirmed {
            let tokens = record.attempts.get(&wish.owner).map(|attempt| attempt.tokens.clone());
            // The end at a later time names the token.
            let last = if let End::ReleaseAfter(_) = end { key.1 } else { u64::MAX };
            for token in tokens.unwrap_or_default().into_iter().filter(|token| *token <= last) {
                record.holds.of(&(key.0.clone(), token)).gone.get_or_insert(now);
            }
        }
        if let Err(Error::Lost { reason: LostReason::Broken(_), .. }) = outcome {
            record.check_broken(&key, now);
        }
        if let (End::ReleaseAfter(_), Err(Error::Unavailable(_))) = (end, &outcome) {
            record.attempts.entry(wish.owner.clone()).and_modify(Attempt::unpark);
        }
        if let Err(Error::Lost { reason: LostReason::Gone, .. }) = &outcome {
            let resume = |attempt: &mut Attempt| attempt.resume(&self.name, key.1, now);
            record.attempts.entry(wish.owner.clone()).and_modify(resume);
        }
        let is_ended_elsewhere = record.may_have_ended_elsewhere(&key, wish.invoked);
        // Another process that has the hold may release it.
        let is_left_to_others =
            matches!(end, End::LeaveToExpire) && record.holds.get(&key).is_some_and(|hold| hold.is_shared);
        // A renewal that is carried out late ends a lease that is longer than the TTL.
        let is_kept = (Duration::from_nanos(1)..=wish.ttl).contains(&shortest);
        match outcome {
            Ok(()) if is_kept && !matches!(end, End::Drop | End::DropRelease) && !is_left_to_others => {
                // The clocks of the process and the server may differ.
                let until = ended + nanos(shortest - shortest / 500).saturating_sub(2 * MS);
                let (lock, renewed_by) = (name.as_str().to_owned(), (self.process, wish.ttl));
                record.kept.push(Kept { lock, mode, token, renewed_by, time: ended..until });
            }
            // The renewal that ends a lease later reports a loss if it is carried out, not answered, and repeated after that.
            Err(Error::Lost { reason: LostReason::Gone, .. })
                if is_held
                    && !is_ended_elsewhere
                    && longest.is_zero()
                    && expires.is_some_and(|expires| now < expires) =>
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
        let is_released = longest < SHORTEST_PARK && !matches!(end, End::LeaveToExpire);
        (shortest, if is_released { longest } else { longest.max(wish.ttl) })
    }

    /// Records a loss that must have a reason, or is a violation by itself.
    fn check_loss(&self, at: usize, reason: &LostReason, wish: &Wish) {
        let (now, mut record) = (self.time.now(), lock(&self.record));
        let section = &record.sections[at];
        let key = (section.lock.clone(), section.token.unwrap_or_default());
        if let LostReason::Broken(_) = reason {
            return record.check_broken(&key, now);
        }
        let is_over = record.holds.get(&key).is_some_and(HoldRecord::is_over);
        let what = format!("{} of {} with token {:?}: {reason}", section.lock, wish.owner, section.token);
        let is_too_soon = match reason {
            // A grant that is received late has only the rest of a lease.
            LostReason::DeadlineReached if now - section.acquired < nanos(wish.ttl) / 2 => return,
            LostReason::DeadlineReached => {
                record.losses.push(Loss { at: now, process: self.process, lease: wish.ttl, what });
                return;
            }
            LostReason::Gone => now < section.deadline && self.plan.store.keeps_leases() && !is_over,
            LostReason::MaxHold => {
                wish.max_hold.is_none_or(|max| now < wish.invoked + nanos(max - max / 500))
            }
            _ => false,
        };
        if is_too_soon {
            record.seen.push((now, "loss", format!("loss: {what}")));
        }
    }

    /// Returns the time of the run at which `guard` ends if it is not renewed, or now if it has ended. That is before its lease ends at the
    /// server.
    fn deadline(&self, guard: &Guard, wish: &Wish) -> u64 {
        let (now, deadline) = (self.time.now(), self.clock.to_run(guard.deadline().as_nanos()));
        if !guard.is_held() {
            return now;
        }
        let expires = self.servers.expires(guard.name(), guard.fencing_token());
        let found = |what: &str| {
            let what = format!("{} holds {} until after {what}", self.name, guard.name());
            lock(&self.record).seen.push((now, "deadline", what));
        };
        let (key, mut record) = (key_of(guard), lock(&self.record));
        let hold = record.holds.of(&key);
        if !hold.is_over() {
            hold.confirm(deadline);
        }
        let (is_over, gone) = (hold.is_over(), hold.gone);
        drop(record);
        if !is_over && expires.is_some_and(|expires| deadline > expires) {
            found("the end of its lease");
        }
        // The lease of a renewal that was sent after that. A store may round a lease up.
        let longest = wish.ttl + wish.ttl / 500 + self.plan.time(LEASE_UNIT);
        if gone.is_some_and(|gone| deadline > gone + nanos(longest)) {
            found("the lease that it had when another process released or converted it");
        }
        if wish.max_hold.is_some_and(|max| deadline > now + nanos(max + max / 500)) {
            found("its longest time");
        }
        deadline
    }

    /// Breaks the lock, so that its holder stops at once, or at its next renewal.
    async fn break_lock(&self, name: &'static str) {
        self.note(|| format!("breaks {name}"));
        let number = {
            let breaks = &mut lock(&self.record).breaks;
            breaks.push((name, self.time.now()..u64::MAX));
            breaks.len() - 1
        };
        let outcome = self.locks.break_lock(name).await;
        let now = self.time.now();
        lock(&self.record).breaks[number].1.end = now;
        match outcome {
            Ok(holders) => {
                let tokens = holders.iter().filter_map(|holder| holder.token);
                lock(&self.record).broken.extend(tokens.map(|token| (name.to_owned(), token.get(), now)));
            }
            Err(error) => self.fail(&error, || format!("has not broken {name}")),
        }
    }

    fn set(&self, owner: &str, state: AttemptState) {
        if let Some(attempt) = lock(&self.record).attempts.get_mut(owner) {
            attempt.set(state, self.time.now());
        }
    }

    /// Records that this client has a hold. Returns the number of its section.
    fn join(&self, section: Section, wish: &Wish) -> usize {
        let (now, record) = (self.time.now(), &mut *lock(&self.record));
        let key = (section.lock.clone(), section.token.unwrap_or_default());
        record.holds.of(&key).step = self.place.step;
        if let Some(attempt) = record.attempts.get_mut(&wish.owner) {
            attempt.join(&self.name, &key, wish.ttl, now);
            attempt.tokens.insert(key.1);
            attempt.lock.clone_from(&key.0);
            if attempt.may_be_over(&self.name, key.1) {
                record.holds.of(&key).end(now);
            } else if !record.holds.of(&key).is_over() {
                // A conversion has changed the token.
                attempt.set(AttemptState::Holding(key.0, key.1), now);
            }
        }
        record.sections.push(section);
        record.sections.len() - 1
    }

    /// Changes a section.
    pub fn update(&self, at: usize, change: impl FnOnce(&mut Section, u64)) {
        change(&mut lock(&self.record).sections[at], self.time.now());
    }
}

/// Returns the lock and the token of a hold.
#[must_use]
pub fn key_of(guard: &Guard) -> Key {
    (guard.name().as_str().to_owned(), guard.fencing_token().get())
}
