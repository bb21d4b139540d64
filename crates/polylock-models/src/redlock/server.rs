//! One Redis server with a vote for one lock: the effects of the scripts.

use super::bug::{Bug, VOTE_DELAY};

/// The lease of a vote, in ticks.
pub(super) const TTL: u8 = 1;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Vote {
    pub(super) client: usize,
    pub(super) number: i64,
    expires: u8,
    /// True if a restart has brought it back, or has copied it, and its client has not used it since.
    pub(super) of_file: bool,
    /// True if it has never been in a file: its client may have had no reply about one that was, and leaves it to expire.
    pub(super) is_own: bool,
}

/// The reply to a proposal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reply {
    Yes(i64),
    Held,
    Stale(i64),
}

/// The membership of a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
enum Membership {
    #[default]
    Confirmed,
    /// The server has lost its data, and no client has noticed it.
    New,
    /// The first client has observed it in this tick.
    Observed(u8),
}

/// The votes and numbers of a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub(super) struct Data {
    vote: Option<Vote>,
    /// The last number accepted.
    pub(super) last: i64,
}

/// What a server has in its memory after a restart. Its clock may be wrong then, and its file any file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Restart {
    /// Nothing.
    Empty,
    /// All of its data.
    Kept,
    /// Its data without the vote, which has expired by a clock that is ahead.
    ClockAhead,
    /// The data before its last change: it was not durable for a while, or its file is an old one.
    OldFile,
    /// The data of this server.
    Copy(usize),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub(super) struct Server {
    pub(super) data: Data,
    /// The data before its last change.
    before: Data,
    membership: Membership,
}

impl Server {
    pub(super) fn vote(&self, now: u8) -> Option<Vote> {
        self.data.vote.filter(|vote| vote.expires > now)
    }

    fn vote_of(&self, client: usize, now: u8) -> Option<Vote> {
        self.vote(now).filter(|vote| vote.client == client)
    }

    fn accept(&mut self, number: i64) {
        self.data.last = self.data.last.max(number);
    }

    /// Returns true if the server's votes count. It is observed by this call.
    pub(super) fn counts(&mut self, now: u8, bug: Option<Bug>) -> bool {
        match self.membership {
            Membership::New => self.membership = Membership::Observed(now),
            Membership::Observed(since) if now >= since + VOTE_DELAY => {
                self.membership = Membership::Confirmed;
            }
            _ => {}
        }
        self.membership == Membership::Confirmed || bug == Some(Bug::NoVoteDelay)
    }

    /// Returns true if a message with this number may leave a vote.
    pub(super) fn may_accept(&self, number: i64) -> bool {
        number >= self.data.last
    }

    /// Removes an expired vote.
    pub(super) fn expire(&mut self, now: u8) {
        self.data.vote = self.vote(now);
    }

    /// Records the data that it had before the last step.
    pub(super) fn record(&mut self, before: Data) {
        if self.data != before {
            self.before = before;
        }
    }

    /// Returns true if its votes count, or will count when a client sees it.
    pub(super) fn is_confirmed(&self) -> bool {
        self.membership == Membership::Confirmed
    }

    /// Is restarted. `other` is the data to copy.
    pub(super) fn restart(&mut self, kind: Restart, other: Data, bug: Option<Bug>) {
        let of_file = |data: Data| Data {
            vote: data.vote.map(|vote| Vote { of_file: true, is_own: false, ..vote }),
            ..data
        };
        self.data = match kind {
            Restart::Empty => Data::default(),
            Restart::Kept => self.data,
            Restart::ClockAhead => Data { vote: None, ..self.data },
            Restart::OldFile => of_file(self.before),
            Restart::Copy(_) => of_file(other),
        };
        self.before = self.data;
        let trusted = match kind {
            Restart::Empty | Restart::Kept => None,
            Restart::ClockAhead => Some(Bug::ClockAheadIsTrusted),
            Restart::OldFile => Some(Bug::OldFileIsTrusted),
            Restart::Copy(_) => Some(Bug::CopyIsTrusted),
        };
        if trusted.is_none() || bug != trusted {
            self.membership = Membership::New;
        }
    }

    pub(super) fn propose(
        &mut self,
        client: usize,
        number: i64,
        withdrawn: i64,
        now: u8,
        bug: Option<Bug>,
    ) -> Reply {
        self.expire(now);
        match &mut self.data.vote {
            Some(vote) if vote.client == client && vote.number > withdrawn => {
                (vote.expires, vote.of_file) = (now + TTL, false);
                let number = vote.number;
                self.accept(number);
                return Reply::Yes(number);
            }
            Some(vote) if vote.client != client => return Reply::Held,
            _ => {}
        }
        if number <= self.data.last && bug != Some(Bug::NumbersRepeat) {
            return Reply::Stale(self.data.last);
        }
        self.accept(number);
        self.data.vote = Some(Vote { client, number, expires: now + TTL, of_file: false, is_own: true });
        Reply::Yes(number)
    }

    /// Returns the number of the vote that was removed.
    pub(super) fn withdraw(&mut self, client: usize, number: i64, now: u8, bug: Option<Bug>) -> Option<i64> {
        let is_named = |vote: &Vote| vote.number <= number || bug == Some(Bug::LiveVoteIsWithdrawn);
        let removed = self.vote_of(client, now).filter(is_named).map(|vote| vote.number);
        if removed.is_some() {
            self.data.vote = None;
        }
        if bug != Some(Bug::WithdrawnNumberIsAccepted) {
            self.accept(number + 1);
        }
        removed
    }

    /// Returns true if the vote was extended, or given again.
    pub(super) fn extend(&mut self, client: usize, number: i64, restores: bool, now: u8) -> bool {
        self.expire(now);
        let is_extended = self.data.vote.is_some_and(|vote| vote.client == client && vote.number == number);
        let may_replace = self.data.vote.is_none_or(|vote| vote.client == client && vote.number < number);
        if is_extended || restores && may_replace && self.data.last <= number {
            self.accept(number);
            let is_own = !is_extended || self.data.vote.is_some_and(|vote| vote.is_own);
            self.data.vote = Some(Vote { client, number, expires: now + TTL, of_file: false, is_own });
            return true;
        }
        false
    }
}
