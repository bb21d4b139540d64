//! The packets that prove for how long the servers keep a session. Pure: the store and its model in the tests share it.
//!
//! The leader ends a session one timeout after the last packet of its client that it knows of. A follower that receives a packet reports
//! it with its reply to the next ping of the leader, and the leader sends a ping every half tick. A follower without contact to the leader
//! still replies to reads, so a reply alone does not show that the leader knows of the packet. These three packets do, in this order:
//!
//! 1. Any packet, to which the server has replied.
//! 2. A `sync` that is sent at least half a tick after that reply. The leader's answer follows all its earlier pings on the connection to
//!    the follower. It has sent the last of them at most half a tick before, so that ping has met the first packet, and the follower has
//!    reported it.
//! 3. A transaction that is sent after the reply to the `sync`. It follows that report on the connection to the leader, so a leader that
//!    commits it knows of the first packet. A `sync` is not enough: a leader without followers answers it until it notices. A majority
//!    commits the transaction, so every later leader is elected after the first packet was sent, and begins all timeouts anew.
//!
//! So the session lasts for one timeout after the first packet was sent. If it moves to another server in between, the leader counts the
//! move as a packet.

use std::{collections::VecDeque, time::Duration};

use polylock_core::Moment;

/// The packets of one session, and the time that they prove.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Proof {
    /// The timeout that the servers granted.
    timeout: Duration,
    /// The longest half tick of the servers.
    pub(super) half_tick: Duration,
    /// The last packets that prove something, oldest first: the opening of the session, and each `sync`.
    answered: VecDeque<Answered>,
    until: Moment,
}

/// A packet to which a server has replied.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Answered {
    sent: Moment,
    at: Moment,
}

impl Proof {
    /// Begins with a session that was requested at `sent` and opened at `now`. Its opening is a transaction, which the leader knows of.
    pub(super) fn new(timeout: Duration, sent: Moment, now: Moment) -> Self {
        // Servers that grant this timeout have a tick of half of it at most: their shortest session is two ticks long.
        let half_tick = timeout / 4;
        let answered = VecDeque::from([Answered { sent, at: now }]);
        Self { timeout, half_tick, answered, until: sent + Self::known(timeout) }
    }

    /// Returns the time for which the servers keep a session with this timeout after a packet that the leader knows of. A twelfth is left
    /// for clocks that run at different rates.
    fn known(timeout: Duration) -> Duration {
        timeout * 11 / 12
    }

    /// Returns the time until which the servers keep the session.
    pub(super) fn until(&self) -> Moment {
        self.until
    }

    /// Records the reply to a `sync` that was sent at `sent`.
    pub(super) fn synced(&mut self, sent: Moment, now: Moment) {
        self.answered.push_back(Answered { sent, at: now });
        // Older ones prove less than the first one that is kept.
        while self.answered.get(1).is_some_and(|second| second.at + self.timeout < sent) {
            self.answered.pop_front();
        }
    }

    /// Records the commit of a transaction that was sent at `sent`.
    pub(super) fn committed(&mut self, sent: Moment) {
        let last_before = |moment| self.answered.iter().rev().find(|one| one.at <= moment);
        let Some(sync) = last_before(sent) else { return };
        let first = self.answered.iter().rev().find(|one| one.at + self.half_tick <= sync.sent);
        if let Some(first) = first {
            self.until = self.until.max(first.sent + Self::known(self.timeout));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(48);

    fn at(seconds: u64) -> Moment {
        Moment::from_nanos(1_000_000_000_000) + Duration::from_secs(seconds)
    }

    /// Replies come after a second.
    fn proof(syncs: impl IntoIterator<Item = u64>) -> Proof {
        let mut proof = Proof::new(TIMEOUT, at(0), at(1));
        syncs.into_iter().for_each(|sent| proof.synced(at(sent), at(sent + 1)));
        proof
    }

    #[test]
    fn a_session_lasts_for_its_timeout_after_its_opening() {
        assert_eq!(proof([]).until(), at(44));
    }

    #[test]
    fn neither_a_sync_nor_a_transaction_proves_anything_alone() {
        let synced = proof((3..40).step_by(3));
        assert_eq!(synced.until(), at(44));
        let mut committed = proof([]);
        committed.committed(at(30));
        assert_eq!(committed.until(), at(44));
    }

    #[test]
    fn a_transaction_proves_the_last_packet_half_a_tick_before_the_last_sync() {
        let mut proof = proof([10, 11, 23, 24, 25]);
        // The reply to the packet that was sent at 11 is too late for the sync at 23, by which it would be half a tick old.
        for (sent, until) in [(24, 10 + 44), (25, 11 + 44), (26, 11 + 44)] {
            proof.committed(at(sent));
            assert_eq!(proof.until(), at(until), "{sent}");
        }
    }

    #[test]
    fn a_transaction_before_the_reply_to_the_sync_does_not_count() {
        let mut proof = proof([10, 24]);
        proof.committed(at(24));
        assert_eq!(proof.until(), at(44));
    }

    #[test]
    fn a_session_in_use_always_has_its_longest_lease() {
        let mut proof = proof([]);
        for now in 1..300 {
            if now % 3 == 1 {
                proof.synced(at(now - 1), at(now));
            }
            if now >= 20 {
                proof.committed(at(now));
                let lease = proof.until().since(at(now));
                assert!(lease >= TIMEOUT / 2 && lease < TIMEOUT * 2 / 3, "{now}: {lease:?}");
            }
        }
    }
}
