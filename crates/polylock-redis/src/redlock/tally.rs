//! Counts the replies of servers. Pure functions, which the store and its model in the tests share.

/// Returns the size of a majority of `servers`, including those that do not reply.
pub(super) const fn quorum(servers: usize) -> usize {
    servers / 2 + 1
}

/// The replies to one proposal. Of several replies of one server, the first one counts.
#[derive(Debug, Clone)]
pub(super) struct Ballot {
    /// By server: the number of a vote that counts, or 0 for any other reply.
    pub(super) replies: Box<[Option<i64>]>,
}

impl Ballot {
    pub(super) fn new(servers: usize) -> Self {
        Self { replies: vec![None; servers].into() }
    }

    /// Records that `server` has voted for `number`, and that its vote counts.
    pub(super) fn vote(&mut self, server: usize, number: i64) {
        self.replies[server].get_or_insert(number);
    }

    /// Records that `server` has not voted, that its vote does not count, or that it can't be reached.
    pub(super) fn no_vote(&mut self, server: usize) {
        self.replies[server].get_or_insert(0);
    }

    /// Returns the number that a majority of all servers has voted for.
    pub(super) fn elected(&self) -> Option<i64> {
        let votes = |number| self.replies.iter().filter(|reply| **reply == Some(number)).count();
        let numbers = self.replies.iter().copied().flatten().filter(|number| *number > 0);
        let quorum = quorum(self.replies.len());
        numbers.into_iter().find(|number| votes(*number) >= quorum)
    }

    /// Returns true if further replies can't change the outcome.
    pub(super) fn is_decided(&self) -> bool {
        let without_vote = self.replies.iter().filter(|reply| **reply == Some(0)).count();
        self.elected().is_some() || self.replies.len() - without_vote < quorum(self.replies.len())
    }
}

/// The replies to one renewal. Of several replies of one server, the first one counts.
#[derive(Debug, Clone)]
pub(super) struct Renewals {
    /// The replies, by server.
    pub(super) replies: Box<[Option<Extension>]>,
}

/// A server's reply to a renewal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Extension {
    /// The server has extended its vote for this number, and its vote counts.
    Extended(i64),
    /// The server's vote was marked by a break.
    Marked,
    /// The server has no vote for the request.
    Absent,
}

/// The outcome of a renewal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Renewed {
    /// A majority has extended the vote for this number.
    Extended(i64),
    /// Too few unmarked votes for one number can be left for a majority.
    Lost,
}

impl Renewals {
    pub(super) fn new(servers: usize) -> Self {
        Self { replies: vec![None; servers].into() }
    }

    /// Records the reply of `server`.
    pub(super) fn reply(&mut self, server: usize, extension: Extension) {
        self.replies[server].get_or_insert(extension);
    }

    /// Returns the outcome, as soon as further replies can't change it.
    ///
    /// A renewal that does not know the number extends every vote of its request. A vote for a smaller number is withdrawn, and its withdrawal
    /// may arrive at any time, so it does not add to a majority for the greater one.
    pub(super) fn outcome(&self) -> Option<Renewed> {
        let count = |wanted| self.replies.iter().filter(|reply| **reply == wanted).count();
        let quorum = quorum(self.replies.len());
        let numbers = self.replies.iter().filter_map(|reply| match reply {
            Some(Extension::Extended(number)) => Some(*number),
            _ => None,
        });
        let votes = |number| count(Some(Extension::Extended(number)));
        let (most, number) = numbers.map(|number| (votes(number), number)).max().unwrap_or_default();
        if most >= quorum {
            return Some(Renewed::Extended(number));
        }
        (most + count(None) < quorum).then_some(Renewed::Lost)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_majority_counts_all_servers_and_one_number() {
        let mut ballot = Ballot::new(5);
        for (server, number) in [7, 7, 9, 9].into_iter().enumerate() {
            ballot.vote(server, number);
            ballot.vote(server, 9);
            assert_eq!((ballot.elected(), ballot.is_decided()), (None, false), "one reply of each counts");
        }
        ballot.vote(4, 9);
        assert_eq!((ballot.elected(), ballot.is_decided()), (Some(9), true));
        let mut ballot = Ballot::new(4);
        ballot.vote(0, 1);
        ballot.vote(1, 1);
        ballot.no_vote(2);
        assert_eq!((ballot.elected(), ballot.is_decided()), (None, false));
        ballot.no_vote(3);
        assert_eq!((ballot.elected(), ballot.is_decided()), (None, true));
    }

    #[test]
    fn marks_on_a_minority_do_not_end_a_hold() {
        let outcome = |replies: &[Extension]| {
            let mut renewals = Renewals::new(5);
            for (server, reply) in replies.iter().enumerate() {
                renewals.reply(server, *reply);
                renewals.reply(0, Extension::Absent);
            }
            renewals.outcome()
        };
        let (yes, marked, absent) = (Extension::Extended(7), Extension::Marked, Extension::Absent);
        assert_eq!(outcome(&[marked, marked, yes, yes]), None);
        assert_eq!(outcome(&[marked, marked, yes, yes, yes]), Some(Renewed::Extended(7)));
        assert_eq!(outcome(&[yes, yes, marked, absent]), None, "the fifth may have an unmarked vote");
        assert_eq!(outcome(&[yes, yes, marked, absent, marked]), Some(Renewed::Lost));
    }

    #[test]
    fn votes_for_different_numbers_are_no_majority() {
        let outcome = |numbers: &[i64]| {
            let mut renewals = Renewals::new(5);
            for (server, number) in numbers.iter().enumerate() {
                renewals.reply(server, Extension::Extended(*number));
            }
            renewals.outcome()
        };
        assert_eq!(outcome(&[7, 9, 9]), None);
        assert_eq!(outcome(&[7, 9, 9, 7]), None, "the fifth may have a vote for either");
        assert_eq!(outcome(&[7, 9, 9, 7, 9]), Some(Renewed::Extended(9)));
        assert_eq!(outcome(&[7, 9, 9, 8]), None);
        assert_eq!(outcome(&[7, 9, 8, 6]), Some(Renewed::Lost), "no number can have three");
    }
}
