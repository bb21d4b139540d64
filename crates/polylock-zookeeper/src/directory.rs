//! The children of one lock's node, as far as this session knows them: so that a request need not list them to know that it waits.
//!
//! A claim that finds another conflicting request of this session before it waits for that one without a list. Only the first of them
//! lists, and its list serves all that were in it. So the cost of a claim does not depend on the number of waiters.
//!
//! # Why a request is never granted too early
//!
//! A request is granted only after a list that has shown it, and when every conflicting request that this list has shown before it
//! is known to be gone. Whoever comes later has a greater sequence, because the node of the lock is not deleted, and does not count
//! anew, while the request's own node is in it. That the own node is still there, the claim reads from the servers each time.
//!
//! 1. All lists and creates of one session are numbered in the order in which they are sent, which is the order in which the servers
//!    carry them out.
//! 2. A list that was sent after the create of a request shows it, or it is gone.
//! 3. A list that was sent before one that has been applied is dropped: an older one may be of another node of the same name, with
//!    other sequences.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    time::Duration,
};

use polylock_core::{Clock, Mode, Moment, SystemClock};
use tokio::sync::{Notify, watch};

use crate::nodes::{Child, Rank};

/// For so long nobody lists a lock again to see that nothing was missed: for each of its requests.
const LIST_AGAIN: Duration = Duration::from_millis(1);

/// With so many requests in a lock, those that come are not listed with their create, but together.
const MANY: usize = 16;

/// For how long a lock must have been unused until its node is looked at, and the longest pause between two looks.
const UNUSED: (Duration, Duration) = (Duration::from_secs(5), Duration::from_secs(300));

/// The locks in which a session has requests, and those whose nodes it has created.
#[derive(Debug, Default)]
pub(crate) struct Directories {
    used: Mutex<HashMap<String, Weak<Directory>>>,
    created: Mutex<HashMap<String, Look>>,
    /// One was created, or the session has ended.
    pub(crate) some_created: Notify,
}

/// When a lock's node is to be looked at next, unless it is in use, and the pause before that look.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Look {
    at: Moment,
    pause: Duration,
}

impl Look {
    fn after(pause: Duration) -> Self {
        Self { at: SystemClock.now() + pause, pause }
    }
}

/// The node of one lock, while a request of this session is in it or about to be.
#[derive(Debug)]
pub(crate) struct Directory {
    pub(crate) path: String,
    directories: Arc<Directories>,
    state: Mutex<Children>,
    /// Held by the one claim that lists.
    pub(crate) listing: tokio::sync::Mutex<()>,
}

/// What is known of the children.
#[derive(Debug, Default)]
struct Children {
    /// The number of the last create or list that was sent.
    sent: u64,
    /// The number of the last list that was applied, and when that was.
    applied: u64,
    applied_at: Option<Moment>,
    known: BTreeMap<Rank, Known>,
}

#[derive(Debug)]
struct Known {
    child: Child,
    /// If it is a request of this session whose create has been answered.
    own: Option<Own>,
}

/// A request of this session.
#[derive(Debug)]
struct Own {
    /// The number of its create.
    created: u64,
    /// Whether a list has shown it, and so all that were before it then.
    is_listed: bool,
    /// Dropped when it is gone.
    gone: watch::Sender<()>,
}

/// Where a request stands among the others of its lock.
#[derive(Debug)]
pub(crate) enum Position {
    /// It is not there any more.
    Gone,
    /// Nobody is in its way: it holds the lock if it is still there.
    First,
    /// This is the last one in its way, and as many are, if that was wanted.
    Behind { ahead: Option<u32>, last: Predecessor },
}

/// The request that another one waits for.
#[derive(Debug, Clone)]
pub(crate) enum Predecessor {
    /// One of this session: its node, and what ends when it is gone.
    Own(Child, watch::Receiver<()>),
    /// Another one.
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
    /// The lock whose node this is.
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

    /// The session has ended, and all its nodes with it.
    pub(crate) fn end(&self) {
        let used: Vec<_> = self.used().values().filter_map(Weak::upgrade).collect();
        used.iter().for_each(|directory| directory.state().known.clear());
        self.created().clear();
        self.some_created.notify_one();
    }

    /// The session has created the node of a lock.
    pub(crate) fn add_created(&self, path: &str) {
        let mut created = self.created();
        if created.is_empty() {
            self.some_created.notify_one();
        }
        created.insert(path.to_owned(), Look::after(UNUSED.0));
    }

    /// Takes out the nodes that are to be looked at by `now`, and are not in use. Returns also when to look next; `None` if there are no
    /// others.
    pub(crate) fn take_unused(&self, now: Moment) -> (Vec<(String, Look)>, Option<Moment>) {
        let mut created = self.created();
        let used = self.used();
        let taken = created.extract_if(|path, look| look.at <= now && !used.contains_key(path)).collect();
        drop(used);
        // Those in use are looked at when they have been left.
        let next = created.values().map(|look| look.at.max(now + UNUSED.0 / 10)).min();
        (taken, next)
    }

    /// Others use the node of `path` still, which was just looked at.
    pub(crate) fn look_again(&self, path: String, look: Look) {
        self.created().entry(path).or_insert_with(|| Look::after((look.pause * 2).min(UNUSED.1)));
    }

    fn used(&self) -> MutexGuard<'_, HashMap<String, Weak<Directory>>> {
        self.used.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn created(&self) -> MutexGuard<'_, HashMap<String, Look>> {
        self.created.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        if let Some(look) = self.directories.created().get_mut(&self.path) {
            *look = Look::after(UNUSED.0);
        }
        let mut used = self.directories.used();
        // It may be in use again already.
        if used.get(&self.path).is_some_and(|other| other.strong_count() == 0) {
            used.remove(&self.path);
        }
    }
}

impl Directory {
    /// Sends a create and, unless the request will wait in any case, a list behind it. Returns the create's number, and the list's.
    pub(crate) fn send_create<C, L>(
        &self,
        mode: Mode,
        lists: bool,
        create: impl FnOnce() -> C,
        list: impl FnOnce() -> L,
    ) -> (u64, C, Option<(u64, L)>) {
        let mut state = self.state();
        let created = state.next();
        let create = create();
        let waits = || state.known.values().any(|known| known.own.is_some() && known.conflicts_with(mode));
        let lists = lists || (state.known.len() < MANY && !waits());
        let list = lists.then(|| (state.next(), list()));
        (created, create, list)
    }

    /// Sends a list. Returns its number.
    pub(crate) fn send_list<L>(&self, list: impl FnOnce() -> L) -> (u64, L) {
        let mut state = self.state();
        (state.next(), list())
    }

    /// A request of this session has its node, by the create of this number.
    pub(crate) fn join(&self, child: &Child, created: u64) {
        let mut state = self.state();
        // The reply to a list may have been taken before the reply to the create.
        let is_listed = state.known.contains_key(&child.rank());
        let own = Own { created, is_listed, gone: watch::Sender::new(()) };
        state.known.insert(child.rank(), Known { child: child.clone(), own: Some(own) });
    }

    /// A node is gone for certain.
    pub(crate) fn remove(&self, rank: Rank) {
        self.state().known.remove(&rank);
    }

    /// Applies the list of this number: all requests of the lock.
    pub(crate) fn apply(&self, number: u64, requests: &[Child]) {
        let mut state = self.state();
        if number < state.applied {
            return;
        }
        (state.applied, state.applied_at) = (number, Some(SystemClock.now()));
        let mut before = std::mem::take(&mut state.known);
        for child in requests {
            let rank = child.rank();
            let own = before.remove(&rank).and_then(|known| known.own);
            let own = own.map(|own| Own { is_listed: true, ..own });
            state.known.insert(rank, Known { child: child.clone(), own });
        }
        let is_newer = |known: &Known| known.own.as_ref().is_some_and(|own| own.created > number);
        state.known.extend(before.into_iter().filter(|(_, known)| is_newer(known)));
    }

    /// Whether it is time to list the lock again, to see that nothing was missed.
    pub(crate) fn list_is_due(&self) -> bool {
        let state = self.state();
        let count = u32::try_from(state.known.len()).unwrap_or(u32::MAX);
        state.applied_at.is_none_or(|at| SystemClock.now() >= at + LIST_AGAIN * count)
    }

    /// Whether a list has shown the request.
    pub(crate) fn is_listed(&self, rank: Rank) -> bool {
        self.state().known.get(&rank).is_some_and(Known::is_listed)
    }

    /// Where a request of this session stands, with the number of those before it only if that is wanted; `None` if that takes a
    /// list.
    pub(crate) fn position(&self, child: &Child, counts: bool) -> Option<Position> {
        let state = self.state();
        let Some(own) = state.known.get(&child.rank()) else { return Some(Position::Gone) };
        let before = state.known.range(..child.rank()).rev().map(|(_, known)| known);
        let mut before = before.filter(|known| known.conflicts_with(child.mode));
        let Some(last) = before.next() else { return own.is_listed().then_some(Position::First) };
        let last = match &last.own {
            Some(_) if counts && !own.is_listed() => return None,
            Some(other) => Predecessor::Own(last.child.clone(), other.gone.subscribe()),
            // Yet another one may have come between.
            None if !own.is_listed() => return None,
            None => Predecessor::Other(last.child.clone()),
        };
        let ahead = counts.then(|| u32::try_from(before.count()).unwrap_or(u32::MAX).saturating_add(1));
        Some(Position::Behind { ahead, last })
    }

    fn state(&self) -> MutexGuard<'_, Children> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Children {
    const fn next(&mut self) -> u64 {
        self.sent += 1;
        self.sent
    }
}

impl Known {
    const fn conflicts_with(&self, mode: Mode) -> bool {
        mode.conflicts_with(self.child.mode)
    }

    fn is_listed(&self) -> bool {
        self.own.as_ref().is_some_and(|own| own.is_listed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nodes::{Guid, requests};
    use proptest::prelude::*;

    /// What the servers have, and the replies that are on their way.
    #[derive(Default)]
    struct Servers {
        next: i64,
        children: Vec<Child>,
        replies: Vec<Reply>,
    }

    enum Reply {
        Created(Child, u64),
        Listed(u64, Vec<Child>),
        Deleted(Rank),
    }

    impl Servers {
        fn create(&mut self, mode: Mode) -> Child {
            let (guid, sequence) = (Guid::random(), self.next);
            self.next += 1;
            let name = format!("{guid}_{}_{sequence:010}", mode.code());
            let child = Child { name, guid, mode, sequence };
            self.children.push(child.clone());
            child
        }

        fn list(&self) -> Vec<Child> {
            requests(self.children.iter().map(|child| child.name.clone()).collect())
        }

        fn has(&self, rank: Rank) -> bool {
            self.children.iter().any(|child| child.rank() == rank)
        }

        fn delete(&mut self, rank: Rank) {
            self.children.retain(|child| child.rank() != rank);
        }

        /// Whether nobody conflicts with it who came before.
        fn admits(&self, one: &Child) -> bool {
            !self
                .children
                .iter()
                .any(|other| other.rank() < one.rank() && other.mode.conflicts_with(one.mode))
        }
    }

    fn directory() -> Arc<Directory> {
        Arc::<Directories>::default().enter("/n".to_owned())
    }

    fn take(directory: &Directory, reply: Reply, own: &mut Vec<Child>) {
        match reply {
            Reply::Created(child, number) => {
                directory.join(&child, number);
                own.push(child);
            }
            Reply::Listed(number, children) => directory.apply(number, &children),
            Reply::Deleted(rank) => directory.remove(rank),
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2_000))]

        /// Requests of this session and of others come and go, nodes are deleted by strangers, the lock's node is deleted and made
        /// again, and replies are taken in any order.
        #[test]
        fn nobody_is_first_who_is_not_and_everybody_is_at_last(
            steps in prop::collection::vec((0..10_u8, any::<prop::sample::Index>(), prop::sample::select(&Mode::ALL[..])), 1..80),
        ) {
            let (directory, mut servers, mut own) = (directory(), Servers::default(), Vec::<Child>::new());
            for (step, index, mode) in steps {
                let chosen = (!own.is_empty()).then(|| own[index.index(own.len().max(1))].clone());
                match (step, chosen) {
                    (0 | 1, _) => {
                        let servers = std::cell::RefCell::new(&mut servers);
                        let (number, child, list) = directory.send_create(
                            mode, false, || servers.borrow_mut().create(mode), || servers.borrow().list(),
                        );
                        let servers = servers.into_inner();
                        servers.replies.push(Reply::Created(child, number));
                        servers.replies.extend(list.map(|(number, list)| Reply::Listed(number, list)));
                    }
                    (2, _) => drop(servers.create(mode)),
                    // Another session's request leaves, or a stranger deletes one of this session.
                    (3, _) if !servers.children.is_empty() => {
                        let at = index.index(servers.children.len());
                        servers.children.remove(at);
                    }
                    (4, _) if servers.children.is_empty() => servers.next = 0,
                    (5 | 6, _) if !servers.replies.is_empty() => {
                        let at = index.index(servers.replies.len());
                        take(&directory, servers.replies.remove(at), &mut own);
                    }
                    (7, Some(child)) => {
                        own.retain(|other| other.guid != child.guid);
                        servers.delete(child.rank());
                        servers.replies.push(Reply::Deleted(child.rank()));
                    }
                    (8 | 9, Some(child)) => match directory.position(&child, false) {
                        None => {
                            let (number, list) = directory.send_list(|| servers.list());
                            servers.replies.push(Reply::Listed(number, list));
                        }
                        Some(Position::First) if servers.has(child.rank()) => {
                            prop_assert!(servers.admits(&child), "{child:?} of {:?}", servers.children);
                        }
                        Some(Position::Gone) => {
                            prop_assert!(!servers.has(child.rank()));
                            own.retain(|other| other.guid != child.guid);
                        }
                        Some(Position::Behind { last, .. }) if !servers.has(last.rank()) => {
                            directory.remove(last.rank());
                        }
                        _ => {}
                    },
                    _ => {}
                }
            }
            for reply in std::mem::take(&mut servers.replies) {
                take(&directory, reply, &mut own);
            }
            for child in own.iter().filter(|child| servers.has(child.rank())) {
                let mut lists = 0;
                loop {
                    match directory.position(child, false) {
                        None => {
                            lists += 1;
                            let (number, list) = directory.send_list(|| servers.list());
                            directory.apply(number, &list);
                        }
                        Some(Position::Behind { last, .. }) if !servers.has(last.rank()) => {
                            directory.remove(last.rank());
                        }
                        Some(Position::First) => break prop_assert!(servers.admits(child)),
                        Some(Position::Behind { .. }) => break prop_assert!(!servers.admits(child)),
                        Some(Position::Gone) => prop_assert!(false, "it is there"),
                    }
                }
                prop_assert!(lists < 2);
            }
        }
    }

    #[test]
    fn a_request_that_waits_for_another_of_its_session_is_not_listed_until_that_has_gone() {
        let (directory, mut servers) = (directory(), Servers::default());
        let join = |servers: &mut Servers| {
            let child = servers.create(Mode::Exclusive);
            let (number, (), list) = directory.send_create(Mode::Exclusive, false, || (), || servers.list());
            directory.join(&child, number);
            let listed = list.map(|(number, list)| directory.apply(number, &list)).is_some();
            (child, listed)
        };
        let (first, listed) = join(&mut servers);
        assert!(listed && matches!(directory.position(&first, false), Some(Position::First)));
        let waiting: Vec<_> = (0..3)
            .map(|_| {
                let (child, listed) = join(&mut servers);
                assert!(!listed);
                child
            })
            .collect();
        let Some(Position::Behind { ahead: None, last: Predecessor::Own(last, gone) }) =
            directory.position(&waiting[0], false)
        else {
            panic!("it waits");
        };
        assert!(last == first && gone.has_changed().is_ok());
        directory.remove(first.rank());
        assert!(gone.has_changed().is_err(), "it is woken");
        servers.delete(first.rank());
        assert!(directory.position(&waiting[0], false).is_none(), "it takes a list");
        let (number, list) = directory.send_list(|| servers.list());
        directory.apply(number, &list);
        for child in &waiting {
            assert!(matches!(directory.position(child, false), Some(Position::First)), "one list serves all");
            directory.remove(child.rank());
        }
    }

    #[test]
    fn nodes_are_looked_at_when_they_have_been_left_and_seldom_while_others_use_them() {
        let directories = Arc::<Directories>::default();
        let [a, b] = ["/a", "/b"].map(|path| directories.enter(path.to_owned()));
        assert!(Arc::ptr_eq(&a, &directories.enter("/a".to_owned())));
        directories.add_created("/a");
        drop(b);
        let soon = SystemClock.now() + UNUSED.0 * 2;
        assert!(
            directories.take_unused(soon).0.is_empty(),
            "one is in use, and the other one is another session's"
        );
        drop(a);
        let mut pause = UNUSED.0;
        while pause < UNUSED.1 {
            let now = SystemClock.now();
            let (taken, next) = directories.take_unused(now + UNUSED.1 * 2);
            let [(path, look)] = &taken[..] else { panic!("{taken:?}") };
            assert_eq!((path.as_str(), next, look.pause), ("/a", None, pause));
            assert!(directories.take_unused(now + UNUSED.1 * 2).0.is_empty());
            directories.look_again(path.clone(), *look);
            pause = (pause * 2).min(UNUSED.1);
        }
        assert!(directories.used().is_empty());
    }
}
