//! One Redis server with a vote for one lock: the effects of the scripts.

use super::bug::{Bug, VOTE_DELAY};

/// The lease of a vote, in ticks.
pub(super) const TTL: u8 = 1;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Vote {
    pub(super) client: usize,
    pub(super) number: i64,
    expires: u8,
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

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub(super) struct Server {
    vote: Option<Vote>,
    /// The last number accepted.
    pub(super) last: i64,
    membership: Membership,
}

impl Server {
    pub(super) fn vote(&self, now: u8) -> Option<Vote> {
        self.vote.filter(|vote| vote.expires > now)
    }

    fn vote_of(&self, client: usize, now: u8) -> Option<Vote> {
        self.vote(now).filter(|vote| vote.client == client)
    }

    fn accept(&mut self, number: i64) {
        self.last = self.last.max(number);
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
        number >= self.last
    }

    /// Removes an expired vote.
    pub(super) fn expire(&mut self, now: u8) {
        self.vote = self.vote(now);
    }

    /// Loses all data.
    pub(super) fn forget(&mut self) {
        *self = Self { membership: Membership::New, ..Self::default() };
    }

    pub(super) fn propose(
        &mut self,
        client: usize,
        number: i64,
        withdrawn: i64,
        now: u8,
        bug: Option<Bug>,
    ) -> Reply {
        self.vote = self.vote(now);
        match &mut self.vote {
            Some(vote) if vote.client == client && vote.number > withdrawn => {
                vote.expires = now + TTL;
                let number = vote.number;
                self.accept(number);
                return Reply::Yes(number);
            }
            Some(vote) if vote.client != client => return Reply::Held,
            _ => {}
        }
        if number <= self.last && bug != Some(Bug::NumbersRepeat) {
            return Reply::Stale(self.last);
        }
        self.accept(number);
        self.vote = Some(Vote { client, number, expires: now + TTL });
        Reply::Yes(number)
    }

    /// Returns the number of the vote that was removed.
    pub(super) fn withdraw(&mut self, client: usize, number: i64, now: u8, bug: Option<Bug>) -> Option<i64> {
        let is_named = |vote: &Vote| vote.number <= number || bug == Some(Bug::LiveVoteIsWithdrawn);
        let removed = self.vote_of(client, now).filter(is_named).map(|vote| vote.number);
        if removed.is_some() {
            self.vote = None;
        }
        if bug != Some(Bug::WithdrawnNumberIsAccepted) {
            self.accept(number + 1);
        }
        removed
    }

    /// Returns true if the vote was extended, or given again.
    pub(super) fn extend(&mut self, client: usize, number: i64, restores: bool, now: u8) -> bool {
        self.vote = self.vote(now);
        let is_extended = self.vote.is_some_and(|vote| vote.client == client && vote.number == number);
        let may_replace = self.vote.is_none_or(|vote| vote.client == client && vote.number < number);
        if is_extended || restores && may_replace && self.last <= number {
            self.accept(number);
            self.vote = Some(Vote { client, number, expires: now + TTL });
            return true;
        }
        false
    }
}
