//! The server of a store that hands a lock over: the entries of one lock, and the operations on them.

use polylock_core::{
    FencingToken, Mode, invariant,
    queue::{self, QueueEntry},
};

use super::bug::{Bug, CLIENTS, MODES, PROCESS};

/// The lease of a hold, in ticks.
pub(super) const TTL: u8 = 1;
/// The lease of a queue entry, in ticks.
pub(super) const QUEUE_LEASE: u8 = 1;

/// What distinguishes the servers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Kind {
    /// True if the operations on a lock are transactions behind a lock of their own, and keep-alives are not; otherwise each operation is
    /// one step.
    pub(super) has_transactions: bool,
    pub(super) bug: Option<Bug>,
}

impl Kind {
    pub(super) fn has(self, bug: Bug) -> bool {
        self.bug == Some(bug)
    }
}

/// A notification of a grant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Notification {
    pub(super) position: u8,
    pub(super) token: u8,
    pub(super) lease: u8,
}

/// The reply to a claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Reply {
    /// The token and the lease.
    Granted(u8, u8),
    /// The position in the queue; 0 if there is no entry, because the request was released.
    Queued(u8),
    Expired,
}

/// The outcome of a keep-alive.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Kept {
    Held,
    Queued,
    Gone,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Entry {
    pub(super) request: usize,
    pub(super) number: u8,
    pub(super) is_held: bool,
    pub(super) token: u8,
    pub(super) expires: u8,
}

impl Entry {
    fn queue_entry(&self) -> QueueEntry {
        QueueEntry { seq: self.number.into(), mode: MODES[self.request], held: self.is_held }
    }
}

/// The clock of an operation, and the present time: a transaction reads its clock when it begins.
#[derive(Debug, Clone, Copy)]
pub(super) struct Clock {
    pub(super) read: u8,
    pub(super) now: u8,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Server {
    /// In order of arrival.
    pub(super) entries: Vec<Entry>,
    /// The last number drawn: for queue positions and tokens.
    pub(super) last: u8,
    /// The notes of releases: the time until which a copy of a claim is valid.
    released: [Option<u8>; CLIENTS],
    /// True if the client of a process is subscribed.
    pub(super) is_connected: [bool; 2],
    /// The notifications on their way.
    pub(super) notifications: [Vec<Notification>; CLIENTS],
    pub(super) last_token: u8,
    /// False once a token was not greater than all before.
    pub(super) tokens_grow: bool,
    /// False once a grant has overtaken an earlier live entry.
    pub(super) is_in_order: bool,
}

impl Server {
    pub(super) fn new() -> Self {
        Self {
            entries: Vec::new(),
            last: 0,
            released: [None; CLIENTS],
            is_connected: [true; 2],
            notifications: Default::default(),
            last_token: 0,
            tokens_grow: true,
            is_in_order: true,
        }
    }

    pub(super) fn draw(&mut self) -> u8 {
        self.last += 1;
        self.last
    }

    fn delete_expired_holds(&mut self, now: u8) {
        self.entries.retain(|entry| !entry.is_held || entry.expires > now);
    }

    /// Makes entry `index` a hold until `expires`, and returns its token.
    fn grant(&mut self, index: usize, expires: u8, token: Option<u8>, now: u8) -> u8 {
        let token = token.unwrap_or_else(|| self.draw());
        let entry = self.entries[index];
        // An absent client is passed over.
        let counts = |other: &&Entry| {
            other.expires > now && (other.is_held || self.is_connected[PROCESS[other.request]])
        };
        let live: Vec<QueueEntry> = self.entries.iter().filter(counts).map(Entry::queue_entry).collect();
        self.is_in_order &= queue::watched(&live, entry.number.into(), MODES[entry.request]).is_none();
        let [earlier, later] = [self.last_token, token].map(FencingToken::new);
        self.tokens_grow &= earlier.zip(later).is_some_and(|(a, b)| invariant::token_grows(a, b));
        self.last_token = token;
        self.entries[index] = Entry { is_held: true, token, expires, ..entry };
        token
    }

    /// Hands the lock to each waiter that conflicts neither with a holder nor with a waiter ahead of it. The request `own` gets the whole
    /// lease, and no notification.
    fn settle(&mut self, clock: Clock, own: Option<usize>, token: Option<u8>, kind: Kind) {
        let held = self.entries.iter().filter(|entry| entry.is_held);
        let mut conflicts = held.fold(0, |conflicts, entry| conflicts | MODES[entry.request].conflicts());
        let mut index = 0;
        while index < self.entries.len() {
            let entry = self.entries[index];
            let mode = MODES[entry.request];
            if entry.is_held {
                index += 1;
                continue;
            }
            if entry.expires <= clock.read && !kind.has(Bug::DeadWaiterStays) {
                self.entries.remove(index);
                continue;
            }
            let is_dead = entry.expires <= clock.read;
            let is_blocked = mode.bit() & conflicts != 0 || is_dead;
            let is_own = own == Some(entry.request);
            let is_absent = !kind.has_transactions && !self.is_connected[PROCESS[entry.request]] && !is_own;
            if !is_blocked && !is_absent {
                let expires = if is_own { clock.read + TTL } else { entry.expires };
                let token = self.grant(index, expires, token.filter(|_| is_own), clock.now);
                if !is_own {
                    let lease = expires.saturating_sub(clock.now);
                    let notification = Notification { position: entry.number, token, lease };
                    let notifications = &mut self.notifications[entry.request];
                    notifications.push(notification);
                    notifications.sort_unstable();
                }
            }
            if (!is_blocked && !is_absent) || (is_blocked && !kind.has(Bug::ReaderOvertakes)) {
                conflicts |= mode.conflicts();
            }
            index += 1;
        }
    }

    pub(super) fn claim(
        &mut self,
        request: usize,
        expires: u8,
        token: Option<u8>,
        clock: Clock,
        kind: Kind,
    ) -> Reply {
        if clock.read >= expires && !kind.has(Bug::ClaimNeverExpires) {
            return Reply::Expired;
        }
        if self.released[request].is_some() {
            return Reply::Queued(0);
        }
        self.delete_expired_holds(clock.read);
        self.settle(clock, Some(request), token, kind);
        let own = self.entries.iter().position(|entry| entry.request == request);
        if let Some(index) = own.filter(|index| self.entries[*index].is_held) {
            let entry = &mut self.entries[index];
            if !kind.has_transactions {
                entry.expires = clock.now + TTL;
            }
            return Reply::Granted(entry.token, entry.expires.saturating_sub(clock.read));
        }
        if let Some(index) = own {
            self.entries[index].expires = clock.read + QUEUE_LEASE;
            return Reply::Queued(self.entries[index].number);
        }
        let number = self.draw();
        let expires = clock.read + QUEUE_LEASE;
        self.entries.push(Entry { request, number, is_held: false, token: 0, expires });
        let entries: Vec<QueueEntry> = self.entries.iter().map(Entry::queue_entry).collect();
        if queue::watched(&entries, number.into(), MODES[request]).is_none() {
            let token = self.grant(self.entries.len() - 1, clock.read + TTL, token, clock.now);
            return Reply::Granted(token, TTL);
        }
        Reply::Queued(number)
    }

    pub(super) fn keep_alive(&mut self, request: usize, now: u8) -> Kept {
        let entry = self.entries.iter_mut().find(|entry| entry.request == request && entry.expires > now);
        match entry {
            Some(entry) if entry.is_held => {
                entry.expires = now + TTL;
                Kept::Held
            }
            Some(entry) => {
                entry.expires = now + QUEUE_LEASE;
                Kept::Queued
            }
            None => Kept::Gone,
        }
    }

    /// Removes the entry of `request`. Copies of its claim are valid before `late`.
    pub(super) fn release(&mut self, request: usize, late: u8, clock: Clock, kind: Kind) {
        self.entries.retain(|entry| entry.request != request);
        for note in &mut self.released {
            *note = note.filter(|until| *until > clock.now);
        }
        if late > clock.now && !kind.has_transactions && !kind.has(Bug::ReleaseLeavesNoNote) {
            self.released[request] = Some(late);
        }
        self.delete_expired_holds(clock.read);
        self.settle(clock, None, None, kind);
    }

    /// Returns true if `request` has a live hold.
    pub(super) fn holds(&self, request: usize, now: u8) -> bool {
        self.entries.iter().any(|entry| entry.request == request && entry.is_held && entry.expires > now)
    }
}

/// Returns true if these requests may hold the lock at the same time.
pub(super) fn are_compatible(holders: impl Iterator<Item = usize>) -> bool {
    invariant::holders_are_compatible(holders.map(|request| MODES[request]).collect::<Vec<Mode>>())
}
