//! Holds that go from one process to another by their handles, and breaks of holds that an earlier look at the store has shown.

use std::time::Duration;

use polylock_core::{Error, FencingToken, HoldHandle, LostReason, Mode, sync::lock};

use super::{
    both::step::Step,
    holds::{Key, Offer},
    network::nanos,
    plan::StoreKind,
    ways::{Passing, SHORTEST_PARK, Way},
    workload::{Client, Wish, key_of},
};
use crate::recipe::Held;

/// The number of holds, counted from the last one, that someone who has looked at the store a while ago may want to break.
const REMEMBERED: usize = 8;

impl Client {
    /// Adopts and breaks holds of all processes, until it is to end.
    pub async fn run_operator(mut self) {
        loop {
            let pause = self.between(0..60);
            self.sleep(pause).await;
            if self.is_to_end() {
                return;
            }
            match self.random.u8(..8) {
                0 => self.break_shown().await,
                _ => self.adopt_offered().await,
            }
        }
    }

    /// Decides about a hold, and offers its handle if other processes may have it from now on.
    pub fn draw_passing(&mut self, held: &Held, wish: &Wish) -> Passing {
        let Held::Lock(guard) = held else { return Passing::None };
        let has_limits = !wish.min_hold.is_zero() || wish.max_hold.is_some();
        if !self.plan.has_handles() || has_limits || !self.may_expire() {
            return Passing::None;
        }
        let key = key_of(guard);
        let is_shared = lock(&self.record).holds.of(&key).is_shared;
        let draw = self.handles.u8(..8);
        if draw < 3
            && let Ok(handle) = guard.handle()
        {
            self.offer(&handle, &wish.owner, key);
        }
        // The transitional store has no conversions, and each of its two stores has.
        let can_convert = matches!(
            self.plan.store,
            StoreKind::Queue
                | StoreKind::Redis
                | StoreKind::Mysql
                | StoreKind::Postgres
                | StoreKind::Both
                | StoreKind::Service
        ) && self.place.step != Some(Step::Both)
            && !guard.name().as_str().contains('\0');
        match self.handles.u8(..8) {
            0 | 1 if self.plan.store != StoreKind::Azure || !is_shared => Passing::Leaves,
            2..=4 if (draw < 3 || is_shared) && can_convert && guard.mode() == Mode::Exclusive => {
                Passing::Downgrades
            }
            _ => Passing::None,
        }
    }

    /// Offers a handle to all processes.
    fn offer(&self, handle: &HoldHandle, owner: &str, key: Key) {
        let record = &mut *lock(&self.record);
        record.holds.of(&key).is_shared = true;
        record.holds.offer(Offer {
            owner: owner.to_owned(),
            text: handle.to_text(),
            key,
            step: self.place.step,
        });
    }

    /// Passes a hold on, or converts it.
    pub async fn pass_on(&mut self, held: Held, passing: Passing, at: usize, wish: &Wish) {
        let Held::Lock(mut guard) = held else { return };
        let (key, began) = (key_of(&guard), self.time.now());
        self.note(|| format!("passes its hold of {} on: {passing:?}", guard.name()));
        self.update(at, |section, now| (section.released, section.open) = (Some(now), false));
        if passing == Passing::Downgrades {
            self.begin_conversion(&key, wish, began);
            let converted = guard.downgrade(Mode::Shared).await;
            if let Some(attempt) = lock(&self.record).attempts.get_mut(&wish.owner) {
                attempt.converting.remove(&self.name);
            }
            self.note(|| format!("has converted its hold: {converted:?}"));
            match converted {
                Ok(()) => {
                    self.converted(&key, &key_of(&guard), wish);
                    let mut wish = Wish { invoked: began, way: Way::Wait, ..wish.clone() };
                    // Another process may have converted it before.
                    wish.invoked = self.converted_since(&wish);
                    return Box::pin(self.hold(Held::Lock(guard), &wish)).await;
                }
                // The drop of the guard releases it, unless it was lost.
                Err(_) => return self.leave(&key, false, wish.ttl, wish),
            }
        }
        self.suspend(&key, wish, began);
        let passed = guard.into_handle().await;
        if !matches!(passed, Err(Error::Lost { reason: LostReason::Broken(_), .. })) {
            self.resume(&key, wish);
        }
        self.note(|| format!("has passed its hold on: {passed:?}"));
        match passed {
            Ok(handle) => {
                let lease = wish.ttl.min(handle.ttl());
                // The clocks of the process and the server may differ.
                let until = began + nanos(lease - lease / 500).saturating_sub(2_000_000);
                let record = &mut *lock(&self.record);
                let hold = record.holds.of(&key);
                if !hold.is_over() && self.plan.store.keeps_leases() {
                    hold.confirm(until);
                }
                record.holds.offer(Offer {
                    owner: wish.owner.clone(),
                    text: handle.to_text(),
                    key: key.clone(),
                    step: self.place.step,
                });
            }
            Err(error) => {
                self.check_refusal(&key, &error);
                // The store keeps a hold that is marked until its holder has released it, which core does here.
                let is_released = matches!(error, Error::Lost { reason: LostReason::Broken(_), .. });
                return self.leave(&key, is_released, wish.ttl, wish);
            }
        }
        self.leave(&key, false, wish.ttl, wish);
    }

    /// Records that a hold is left to other processes. If it is marked as broken, whatever token it has by now, that releases it.
    fn suspend(&self, key: &Key, wish: &Wish, now: u64) {
        let record = &mut *lock(&self.record);
        record.holds.of(key).is_shared = true;
        let Some(attempt) = record.attempts.get(&wish.owner) else { return };
        record.holds.suspend(&key.0, &attempt.tokens, now);
    }

    /// Records that it has not ended with that.
    fn resume(&self, key: &Key, wish: &Wish) {
        let record = &mut *lock(&self.record);
        let Some(attempt) = record.attempts.get(&wish.owner) else { return };
        record.holds.resume(&key.0, &attempt.tokens);
    }

    /// Records that a hold is converted, whatever token it has: another process may have converted it before.
    fn begin_conversion(&self, key: &Key, wish: &Wish, now: u64) {
        let record = &mut *lock(&self.record);
        let Some(attempt) = record.attempts.get_mut(&wish.owner) else { return };
        attempt.converting.insert(self.name.clone());
        attempt.converted_since.get_or_insert(now);
        record.holds.end(&key.0, &attempt.tokens, now);
    }

    /// Returns the time since which a hold may have its present token, which a conversion has drawn: its reply may have been lost.
    fn converted_since(&self, wish: &Wish) -> u64 {
        let record = lock(&self.record);
        let since = record.attempts.get(&wish.owner).and_then(|attempt| attempt.converted_since);
        since.map_or(wish.invoked, |since| since.min(wish.invoked))
    }

    /// Records that a hold with another token has replaced those before it.
    fn converted(&self, from: &Key, to: &Key, wish: &Wish) {
        let (now, record) = (self.time.now(), &mut *lock(&self.record));
        record.holds.convert(from, to, now);
        let Some(attempt) = record.attempts.get(&wish.owner) else { return };
        for token in attempt.tokens.range(..to.1) {
            record.holds.of(&(from.0.clone(), *token)).gone.get_or_insert(now);
        }
    }

    /// Records that this client has left a hold. If that ends it for all, the store has it for `keeps` at most.
    pub fn leave(&self, key: &Key, is_end: bool, keeps: Duration, wish: &Wish) {
        let is_park = is_end && keeps >= SHORTEST_PARK;
        let (now, record) = (self.time.now(), &mut *lock(&self.record));
        let Some(attempt) = record.attempts.get_mut(&wish.owner) else { return };
        // The end at a later time names the token, so a process that does not know of a conversion ends nothing with it.
        if !is_end || is_park && attempt.tokens.last().is_some_and(|last| *last > key.1) {
            let hold = record.holds.of(key);
            hold.left = hold.left.or((self.plan.store == StoreKind::Sqlite).then_some(now));
            let keeps = if hold.is_shared { keeps.max(attempt.longest) } else { keeps };
            return attempt.leave(&self.name, keeps, now);
        }
        attempt.end(&self.name, keeps, now);
        // A release ends the request, also by a process that does not know of a conversion.
        attempt.tokens.insert(key.1);
        record.holds.end(&key.0, &attempt.tokens, now);
    }

    /// Records that this client has lost a hold. It is the end for all if the store keeps the hold until this client releases it.
    pub fn leave_lost(&self, at: usize, is_kept: bool, wish: &Wish) {
        let key = {
            let section = &mut lock(&self.record).sections[at];
            section.open = false;
            (section.lock.clone(), section.token.unwrap_or_default())
        };
        self.leave(&key, is_kept, wish.after_loss(), wish);
    }

    /// Takes a handle, and adopts its hold.
    async fn adopt_offered(&mut self) {
        let offer = lock(&self.record).holds.take(&mut self.handles, self.place.step);
        let Some(Offer { owner, text, key, .. }) = offer else { return };
        let Ok(handle) = text.parse::<HoldHandle>() else {
            return lock(&self.record).surprises.push(format!("a handle of {} can't be read", key.0));
        };
        let ttl = if self.random.u8(..3) == 0 { handle.ttl() } else { self.draw_ttl() };
        let mut wish = Wish {
            owner,
            ttl,
            min_hold: Duration::ZERO,
            max_hold: None,
            way: Way::Wait,
            invoked: self.time.now(),
        };
        self.note(|| format!("adopts {handle:?} for {ttl:?}"));
        {
            let record = &mut *lock(&self.record);
            if let Some(attempt) = record.attempts.get_mut(&wish.owner) {
                attempt.join(&self.name, &key, ttl, wish.invoked);
            }
        }
        match self.locks.adopt_for(&handle, ttl).await {
            Ok(guard) => {
                let adopted = key_of(&guard);
                self.check_adopted(&adopted, guard.mode(), wish.invoked);
                if adopted != key {
                    wish.invoked = self.converted_since(&wish);
                }
                self.hold(Held::Lock(guard), &wish).await;
            }
            Err(error) => {
                self.note(|| format!("has not adopted {}: {}", key.0, error.chain()));
                self.check_refusal(&key, &error);
                self.leave(&key, false, ttl, &wish);
            }
        }
    }

    /// Checks that a hold, which was adopted after `began`, is one that the store still has, in its mode.
    fn check_adopted(&self, key: &Key, mode: Mode, began: u64) {
        let record = &mut *lock(&self.record);
        let hold = record.holds.of(key);
        hold.is_shared = true;
        let (is_gone, is_marked) =
            (hold.gone < Some(began) && hold.gone.is_some(), hold.marked.is_some_and(|at| at < began));
        let other_mode =
            record.section(&key.0, key.1).map(|section| section.mode).filter(|other| *other != mode);
        let mut found = |kind, what: &str| {
            let what = format!("adoption: {} has adopted token {} of {}, {what}", self.name, key.1, key.0);
            record.seen.push((self.time.now(), kind, what));
        };
        if is_gone {
            found("ghost", "which was released or converted before");
        }
        if is_marked {
            found("break", "which was broken before");
        }
        if let Some(other) = other_mode {
            found("mode", &format!("in the mode {mode}, and it is held in the mode {other}"));
        }
    }

    /// Records a violation if a process was refused a hold that the store has to have, or if nobody has asked for its break.
    fn check_refusal(&self, key: &Key, error: &Error) {
        let Error::Lost { reason, .. } = error else { return };
        if let LostReason::Broken(_) = reason {
            lock(&self.record).check_broken(key, self.time.now());
        }
    }

    /// Returns true if the store of this process shows the holds of processes in `step` with the tokens that their clients were told. A store
    /// alone has tokens of its own for the holds in both.
    fn is_shown(&self, step: Option<Step>) -> bool {
        step == self.place.step || self.place.step == Some(Step::Both)
    }

    /// Breaks a hold that the lock had some time ago, and may still have.
    async fn break_shown(&mut self) {
        let key = {
            let record = lock(&self.record);
            let names = record.sections.iter().rev().filter(|section| !section.lock.contains('\0'));
            let shown: Vec<Key> = names
                .filter_map(|section| Some((section.lock.clone(), section.token?)))
                .filter(|key| self.is_shown(record.holds.get(key).and_then(|hold| hold.step)))
                .take(REMEMBERED)
                .collect();
            drop(record);
            let number = self.random.usize(..REMEMBERED);
            match shown.into_iter().nth(number) {
                Some(key) => key,
                None => return,
            }
        };
        let Some(token) = FencingToken::new(key.1) else { return };
        // The store of another step may have given this token to another request, which both stores show by its own token once it has the
        // lock, and by the token of one store at the begin and at the end of its hold.
        let is_foreign = lock(&self.record).holds.of(&key).step != self.place.step;
        let (force, now) = (self.random.u8(..3) == 0 && !is_foreign, self.time.now());
        self.note(|| format!("breaks token {token} of {}, force: {force}", key.0));
        {
            let record = &mut *lock(&self.record);
            let hold = record.holds.of(&key);
            hold.broken.get_or_insert(now);
            if force {
                hold.forced.get_or_insert(now);
            }
        }
        let may_mislead = self.plan.store == StoreKind::Azure || is_foreign;
        let misled = may_mislead.then(|| {
            let misled = &mut lock(&self.record).misled;
            misled.push((key.0.clone(), now..u64::MAX));
            misled.len() - 1
        });
        let order = self.locks.break_lock(&key.0).token(token);
        let outcome = if force { order.force().await } else { order.await };
        let now = self.time.now();
        if let Some(number) = misled {
            lock(&self.record).misled[number].1.end = now;
        }
        self.note(|| format!("has broken {outcome:?}"));
        let record = &mut *lock(&self.record);
        match outcome {
            Ok(holders) => {
                for holder in holders {
                    if holder.token == Some(token) {
                        record.holds.of(&key).marked.get_or_insert(now);
                        if !force {
                            record.broken.push((key.0.clone(), key.1, now));
                        }
                    } else {
                        let what = format!(
                            "innocent hold: a break of token {token} of {} has broken token {:?}",
                            key.0, holder.token
                        );
                        record.seen.push((now, "break", what));
                    }
                }
            }
            Err(error) if !error.is_temporary() && !is_foreign => {
                record.surprises.push(format!("{}: {}", self.name, error.chain()));
            }
            Err(_) => {}
        }
    }
}
