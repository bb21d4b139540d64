//! The children of one lock's node, as known to this session, so that a request need not list them to know that it waits.
//!
//! A claim behind another conflicting request of this session waits for that request without a list. Only the first request of the
//! session lists, and its list serves all requests in it. So the cost of a claim does not depend on the number of waiters.
//!
//! # Safety of a grant
//!
//! A request is granted only after a list has shown it, and when every conflicting request ahead of it in that list is known to be gone.
//! A later request has a greater sequence: while the request's own node exists, the lock's node is not deleted and its sequences do not
//! restart. Each claim reads from the servers that its own node still exists.
//!
//! 1. All lists and creates of one session are numbered in the order in which they are sent, which is the order in which the servers
//!    carry them out.
//! 2. A list that was sent after the create of a request shows the request, or the request is gone.
//! 3. A list that was sent before the newest applied list is dropped: it may show an older node of the same name, with other sequences.

use std::{
    cell::OnceCell,
    collections::{BTreeMap, VecDeque},
    sync::{Arc, Mutex, MutexGuard, Weak},
    time::Duration,
};

use futures_util::future::{FutureExt, Shared};
use polylock_core::{Clock, Mode, Moment, SystemClock, sync::lock};
use tokio::sync::{Notify, oneshot};

use crate::nodes::{Child, Rank};

/// The minimum time between a list and the next check for missed events by a list, for each known request of the lock.
const LIST_INTERVAL: Duration = Duration::from_millis(1);

/// The number of known requests from which a create is sent without a list. One list then serves several creates.
const MAX_KNOWN_WITH_LIST: usize = 16;

/// The time without use after which a lock's node is checked, and the longest pause between two checks.
const CHECK_PAUSES: (Duration, Duration) = (Duration::from_secs(5), Duration::from_secs(300));

/// The locks in which a session has requests, and those with a node that it has created.
#[derive(Debug, Default)]
pub(crate) struct Directories {
    used: Mutex<BTreeMap<String, Weak<Directory>>>,
    created: Mutex<BTreeMap<String, Check>>,
    /// Notified when the first node is created, and when the session has ended.
    pub(crate) first_created: Notify,
}

/// The time of the next check of a lock's node, unless it is in use, and the pause before that check.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Check {
    at: Moment,
    pause: Duration,
}

impl Check {
    fn after(pause: Duration) -> Self {
        Self { at: SystemClock.now() + pause, pause }
    }
}

/// The node of one lock. It exists while a request of this session has a node in it or creates one.
#[derive(Debug)]
pub(crate) struct Directory {
    pub(crate) path: String,
    directories: Arc<Directories>,
    state: Mutex<Children>,
    /// Held by the claim that lists.
    pub(crate) listing: tokio::sync::Mutex<()>,
}

/// The known children.
#[derive(Debug, Default)]
struct Children {
    /// The number of the last create or list that was sent.
    sent: u64,
    /// The number of the last list that was applied; `applied_at` is the time of that.
    applied: u64,
    applied_at: Option<Moment>,
    /// In the order of their ranks. A request joins near the end and mostly leaves at the beginning.
    known: VecDeque<Box<KnownRequest>>,
}

#[derive(Debug)]
struct KnownRequest {
    child: Child,
    /// Set for a request of this session with an answered create.
    own: Option<Own>,
}

/// A request of this session.
#[derive(Debug)]
struct Own {
    /// The number of its create.
    created: u64,
    /// True if a list has shown the request, and thereby all requests that were ahead of it at that time.
    is_listed: bool,
    /// Dropped when the request is gone. Only a request that another one waits for has one.
    removed: OnceCell<(oneshot::Sender<()>, Removed)>,
}

/// The position of a request in the queue of its lock.
#[derive(Debug)]
pub(crate) enum Position {
    /// The request's node is gone.
    Gone,
    /// No conflicting request is ahead of it: it holds the lock if its node still exists.
    First,
    /// `last` is the last conflicting request ahead of it; `ahead` is the number of such requests, if the caller wants it.
    Behind { ahead: Option<u32>, last: Predecessor },
}

/// Completes when a request is gone.
pub(crate) type Removed = Shared<oneshot::Receiver<()>>;

/// The request that another request waits for.
#[derive(Debug, Clone)]
pub(crate) enum Predecessor {
    /// A request of this session: its node, and a future that completes when it is gone.
    Own(Child, Removed),
    /// A request of another session.
    Other(Child),
}

impl Predecessor {
    pub(crate) fn rank(&self) -> Rank {
        match self {
            Self::Own(child, _) | Self::Other(child) => child.rank(),
        }
    }

    /// The name of its node.
    pub(crate) fn name(&self) -> &str {
        match self {
            Self::Own(child, _) | Self::Other(child) => &child.name,
        }
    }
}

impl Directories {
    /// Returns the lock with the node `path`.
    pub(crate) fn enter(self: &Arc<Self>, path: String) -> Arc<Directory> {
        let mut used = self.used();
        if let Some(directory) = used.get(&path).and_then(Weak::upgrade) {
            return directory;
        }
        let directory = Arc::new(Directory {
            path: path.clone(),
            directories: self.clone(),
            state: Mutex::default(),
            listing: tokio::sync::Mutex::default(),
        });
        used.insert(path, Arc::downgrade(&directory));
        directory
    }

    /// Removes all requests and nodes: the session has ended.
    pub(crate) fn clear(&self) {
        let used: Vec<_> = self.used().values().filter_map(Weak::upgrade).collect();
        used.iter().for_each(|directory| directory.state().known.clear());
        self.created().clear();
        self.first_created.notify_one();
    }

    /// Adds the node of a lock that the session has created.
    pub(crate) fn add_created(&self, path: &str) {
        let mut created = self.created();
        if created.is_empty() {
            self.first_created.notify_one();
        }
        created.insert(path.to_owned(), Check::after(CHECK_PAUSES.0));
    }

    /// Removes and returns the nodes with a check due by `now` that are not in use. Returns also the time of the next check; `None` if
    /// there is none.
    pub(crate) fn take_unused(&self, now: Moment) -> (Vec<(String, Check)>, Option<Moment>) {
        let mut created = self.created();
        let used = self.used();
        let is_due = |(path, check): &(&String, &Check)| check.at <= now && !used.contains_key(*path);
        let due: Vec<_> = created.iter().filter(is_due).map(|(path, check)| (path.clone(), *check)).collect();
        drop(used);
        created.retain(|path, _| due.binary_search_by_key(&path, |(path, _)| path).is_err());
        // Nodes in use are checked after their last use.
        let next = created.values().map(|check| check.at.max(now + CHECK_PAUSES.0 / 10)).min();
        (due, next)
    }

    /// Schedules the next check of `path`, which other sessions still use.
    pub(crate) fn check_again(&self, path: String, check: Check) {
        self.created().entry(path).or_insert_with(|| Check::after((check.pause * 2).min(CHECK_PAUSES.1)));
    }

    fn used(&self) -> MutexGuard<'_, BTreeMap<String, Weak<Directory>>> {
        lock(&self.used)
    }

    fn created(&self) -> MutexGuard<'_, BTreeMap<String, Check>> {
        lock(&self.created)
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        if let Some(check) = self.directories.created().get_mut(&self.path) {
            *check = Check::after(CHECK_PAUSES.0);
        }
        let mut used = self.directories.used();
        // It may be in use again already.
        if used.get(&self.path).is_some_and(|other| other.strong_count() == 0) {
            used.remove(&self.path);
        }
    }
}

impl Directory {
    /// Sends a create and, unless the request will certainly wait, a list after it. Returns the numbers of the create and of the list.
    pub(crate) fn send_create<C, L>(
        &self,
        mode: Mode,
        lists: bool,
        create: impl FnOnce() -> C,
        list: impl FnOnce() -> L,
    ) -> (u64, C, Option<(u64, L)>) {
        let mut state = self.state();
        let created = state.next_number();
        let create = create();
        let waits = || state.known.iter().any(|known| known.own.is_some() && known.conflicts_with(mode));
        let lists = lists || (state.known.len() < MAX_KNOWN_WITH_LIST && !waits());
        let list = lists.then(|| (state.next_number(), list()));
        (created, create, list)
    }

    /// Sends a list, and returns its number.
    pub(crate) fn send_list<L>(&self, list: impl FnOnce() -> L) -> (u64, L) {
        let mut state = self.state();
        (state.next_number(), list())
    }

    /// Adds a request of this session after the reply to its create, which has this number.
    pub(crate) fn join(&self, child: &Child, created: u64) {
        let mut state = self.state();
        // The reply to a list may have been processed before the reply to the create.
        let position = state.find(child.rank());
        let own = Own { created, is_listed: position.is_ok(), removed: OnceCell::new() };
        let known = Box::new(KnownRequest { child: child.clone(), own: Some(own) });
        match position {
            Ok(position) => state.known[position] = known,
            Err(position) => state.known.insert(position, known),
        }
    }

    /// Removes a request with a node that is certainly gone.
    pub(crate) fn remove(&self, rank: Rank) {
        let mut state = self.state();
        if let Ok(position) = state.find(rank) {
            state.known.remove(position);
        }
    }

    /// Applies the list with this number, which shows all requests of the lock.
    pub(crate) fn apply(&self, number: u64, requests: &[Child]) {
        let mut state = self.state();
        if number < state.applied {
            return;
        }
        (state.applied, state.applied_at) = (number, Some(SystemClock.now()));
        let by_rank = |known: Box<KnownRequest>| (known.child.rank(), known);
        let previous = std::mem::take(&mut state.known);
        let mut previous: BTreeMap<_, _> = previous.into_iter().map(by_rank).collect();
        let listed = requests.iter().map(|child| {
            let own = previous.remove(&child.rank()).and_then(|known| known.own);
            let own = own.map(|own| Own { is_listed: true, ..own });
            by_rank(Box::new(KnownRequest { child: child.clone(), own }))
        });
        let mut known: BTreeMap<_, _> = listed.collect();
        let is_newer = |known: &KnownRequest| known.own.as_ref().is_some_and(|own| own.created > number);
        known.extend(previous.into_iter().filter(|(_, known)| is_newer(known)));
        state.known = known.into_values().collect();
    }

    /// Returns true if it is time to list the lock again, as a check for missed events.
    pub(crate) fn list_is_due(&self) -> bool {
        let state = self.state();
        let count = u32::try_from(state.known.len()).unwrap_or(u32::MAX);
        state.applied_at.is_none_or(|at| SystemClock.now() >= at + LIST_INTERVAL * count)
    }

    /// Returns true if a list has shown the request.
    pub(crate) fn is_listed(&self, rank: Rank) -> bool {
        let state = self.state();
        state.find(rank).is_ok_and(|position| state.known[position].is_listed())
    }

    /// Returns the position of a request of this session, with the number of conflicting requests ahead of it only if `counts`; `None` if
    /// that requires a list.
    pub(crate) fn position(&self, child: &Child, counts: bool) -> Option<Position> {
        let state = self.state();
        let Ok(position) = state.find(child.rank()) else { return Some(Position::Gone) };
        let own = &state.known[position];
        let ahead = state.known.range(..position).rev();
        let mut ahead = ahead.filter(|known| known.conflicts_with(child.mode));
        let Some(last) = ahead.next() else { return own.is_listed().then_some(Position::First) };
        let last = match &last.own {
            Some(_) if counts && !own.is_listed() => return None,
            Some(other) => {
                let channel = || {
                    let (sender, receiver) = oneshot::channel();
                    (sender, receiver.shared())
                };
                let (_, removed) = other.removed.get_or_init(channel);
                Predecessor::Own(last.child.clone(), removed.clone())
            }
            // Another request may have come in between.
            None if !own.is_listed() => return None,
            None => Predecessor::Other(last.child.clone()),
        };
        let ahead = counts.then(|| u32::try_from(ahead.count()).unwrap_or(u32::MAX).saturating_add(1));
        Some(Position::Behind { ahead, last })
    }

    fn state(&self) -> MutexGuard<'_, Children> {
        lock(&self.state)
    }
}

impl Children {
    /// Returns the index of the request with this rank, or the index at which it would be.
    fn find(&self, rank: Rank) -> Result<usize, usize> {
        self.known.binary_search_by_key(&rank, |known| known.child.rank())
    }

    const fn next_number(&mut self) -> u64 {
        self.sent += 1;
        self.sent
    }
}

impl KnownRequest {
    const fn conflicts_with(&self, mode: Mode) -> bool {
        mode.conflicts_with(self.child.mode)
    }

    fn is_listed(&self) -> bool {
        self.own.as_ref().is_some_and(|own| own.is_listed)
    }
}

#[cfg(test)]
mod tests;
