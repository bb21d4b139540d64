//! The state of the leader: the order of all changes, and the sessions, which expire by its clock.

use std::collections::BTreeMap;

use polylock_zookeeper::{simulation::Change, zookeeper_client::Error};

use super::{
    connection::Answer,
    tree::{Effect, Tree},
};

/// The leader.
#[derive(Debug)]
pub struct Leader {
    /// The server that is the leader.
    pub member: usize,
    /// The number of elections.
    pub term: u64,
    /// The time since which there is no leader with a majority.
    pub lost_since: Option<u64>,
    /// The state after all transactions.
    pub tree: Tree,
    /// All transactions.
    pub log: Vec<Entry>,
    /// The sessions.
    pub sessions: Sessions,
    /// The sessions of created nodes, by their tokens.
    pub created: BTreeMap<i64, i64>,
    /// The sessions that have ended, with the times of the run.
    pub ended: BTreeMap<i64, u64>,
}

/// Changes that were checked.
enum Prepared {
    /// One change, with the sequence of a created node.
    One((Option<Effect>, i64)),
    All(Vec<Effect>),
    /// The change with this index was refused.
    Refused(usize, Error),
}

/// A transaction.
#[derive(Debug)]
pub struct Entry {
    /// Its id.
    pub zxid: i64,
    /// The changes of nodes.
    pub effects: Vec<Effect>,
    /// The session that it ends.
    pub ends: Option<i64>,
}

impl Leader {
    /// Creates the leader of the first term.
    #[must_use]
    pub fn new(tree: Tree, sessions: Sessions) -> Self {
        let (created, ended) = (BTreeMap::new(), BTreeMap::new());
        Self { member: 0, term: 1, lost_since: None, tree, log: Vec::new(), sessions, created, ended }
    }

    /// Makes `member` the leader, at this time of its clock. All sessions get their full timeout.
    pub fn begin_term(&mut self, member: usize, now: u64) {
        (self.member, self.term, self.lost_since) = (member, self.term + 1, None);
        self.sessions.begin_term(now);
    }

    fn commit(&mut self, effects: Vec<Effect>, ends: Option<i64>) -> i64 {
        let zxid = self.tree.zxid + 1;
        self.tree.apply(zxid, &effects);
        self.log.push(Entry { zxid, effects, ends });
        zxid
    }

    /// Carries out changes of a session at the place of its connection.
    ///
    /// # Errors
    /// The errors of the servers.
    pub fn change(
        &mut self,
        (session, place): (i64, Place),
        changes: &[Change],
        is_transaction: bool,
        is_checked: bool,
    ) -> Result<Answer, Error> {
        let checked = if is_checked { self.sessions.check(session, place) } else { Ok(()) };
        let prepared = checked.and_then(|()| match changes {
            [change] if !is_transaction => self.tree.check(session, change).map(Prepared::One),
            _ => Ok(self.prepare(session, changes)),
        });
        // A refusal is a transaction, too.
        let effects = match &prepared {
            Ok(Prepared::One((effect, _))) => effect.iter().cloned().collect(),
            Ok(Prepared::All(effects)) => effects.clone(),
            Ok(Prepared::Refused(..)) | Err(_) => Vec::new(),
        };
        let zxid = self.commit(effects, None);
        Ok(match prepared? {
            Prepared::One((Some(Effect::Create(path, ..)), sequence)) => {
                self.created.insert(zxid, session);
                Answer::Created(self.tree.state(&path).ok_or(Error::NoNode)?, sequence)
            }
            Prepared::Refused(index, error) => Answer::Refused(index, error),
            Prepared::One(_) | Prepared::All(_) => Answer::Done,
        })
    }

    /// Checks a transaction, each change after the ones before it.
    fn prepare(&self, session: i64, changes: &[Change]) -> Prepared {
        if let [change] = changes {
            return match self.tree.check(session, change) {
                Ok((effect, _)) => Prepared::All(effect.into_iter().collect()),
                Err(error) => Prepared::Refused(0, error),
            };
        }
        let (mut tree, mut effects) = (self.tree.clone(), Vec::new());
        for (index, change) in changes.iter().enumerate() {
            match tree.check(session, change) {
                Ok((effect, _)) => {
                    tree.apply(self.tree.zxid + 1, effect.as_slice());
                    effects.extend(effect);
                }
                Err(error) => return Prepared::Refused(index, error),
            }
        }
        Prepared::All(effects)
    }

    /// Ends a session at this time of the run, and deletes its nodes.
    pub fn end_session(&mut self, session: i64, now: u64) {
        if self.sessions.remove(session) {
            self.ended.insert(session, now);
            self.commit(self.tree.deletions(session), Some(session));
        }
    }
}

/// The sessions, as the leader tracks them. Times are those of its clock, in nanoseconds.
#[derive(Debug)]
pub struct Sessions {
    tick: u64,
    is_hasty: bool,
    opened: i64,
    open: BTreeMap<i64, Tracked>,
}

#[derive(Debug)]
struct Tracked {
    timeout: u64,
    expires: u64,
    /// True if its end waits for a majority only.
    is_closing: bool,
    /// The place of its connection.
    place: Option<Place>,
}

/// A server, and the number of times that it has begun to follow a leader.
pub type Place = (usize, u64);

impl Sessions {
    /// Creates a table that expires sessions at ticks. `is_hasty` is the planted bug: they expire too early.
    #[must_use]
    pub const fn new(tick: u64, is_hasty: bool) -> Self {
        Self { tick, is_hasty, opened: 0, open: BTreeMap::new() }
    }

    /// Returns the end of a session with a packet at `now`: the next tick after its timeout.
    const fn end(&self, timeout: u64, now: u64) -> u64 {
        let timeout = if self.is_hasty { timeout / 2 } else { timeout };
        ((now + timeout) / self.tick + 1) * self.tick
    }

    /// Opens a session at `place`.
    pub fn open(&mut self, timeout: u64, place: Place, now: u64) -> i64 {
        self.opened += 1;
        let tracked =
            Tracked { timeout, expires: self.end(timeout, now), is_closing: false, place: Some(place) };
        self.open.insert(self.opened, tracked);
        self.opened
    }

    /// Continues a session at `place`. Returns false if it has ended.
    pub fn continue_at(&mut self, session: i64, place: Place, now: u64) -> bool {
        self.touch(session, now);
        let tracked = self.open.get_mut(&session).filter(|tracked| !tracked.is_closing);
        tracked.map(|tracked| tracked.place = Some(place)).is_some()
    }

    /// Counts a packet of a session, unless its end has begun.
    pub fn touch(&mut self, session: i64, now: u64) {
        let tracked = self.open.get(&session).filter(|tracked| !tracked.is_closing);
        if let Some(timeout) = tracked.map(|tracked| tracked.timeout) {
            let end = self.end(timeout, now);
            self.open.entry(session).and_modify(|tracked| tracked.expires = tracked.expires.max(end));
        }
    }

    /// Checks that a session is open and connected to `place`.
    ///
    /// # Errors
    /// [`Error::SessionExpired`], [`Error::SessionMoved`].
    fn check(&mut self, session: i64, place: Place) -> Result<(), Error> {
        let tracked = self.open.get_mut(&session).filter(|tracked| !tracked.is_closing);
        let tracked = tracked.ok_or(Error::SessionExpired)?;
        if *tracked.place.get_or_insert(place) == place { Ok(()) } else { Err(Error::SessionMoved) }
    }

    /// Returns the end of a session, if it is open and sends nothing.
    #[must_use]
    pub fn expires(&self, session: i64) -> Option<u64> {
        self.open.get(&session).map(|tracked| tracked.expires)
    }

    /// Begins the end of the sessions that have expired, and returns them.
    pub fn expire(&mut self, now: u64) -> Vec<i64> {
        let expired = self.open.iter_mut().filter(|(_, tracked)| tracked.expires <= now);
        let close = |(session, tracked): (&i64, &mut Tracked)| {
            tracked.is_closing = true;
            *session
        };
        expired.map(close).collect()
    }

    fn begin_term(&mut self, now: u64) {
        let ends: Vec<_> = self.open.values().map(|tracked| self.end(tracked.timeout, now)).collect();
        for (tracked, end) in self.open.values_mut().zip(ends) {
            (tracked.expires, tracked.is_closing, tracked.place) = (end, false, None);
        }
    }

    fn remove(&mut self, session: i64) -> bool {
        self.open.remove(&session).is_some()
    }
}
