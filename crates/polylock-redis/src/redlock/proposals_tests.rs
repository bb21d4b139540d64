//! Tests the state machine against servers that behave like the scripts, with messages in any order, repeated and lost.

use std::time::Duration;

use polylock_core::{LockName, Moment, RequestId};
use proptest::prelude::*;

use super::{
    proposals::{DefiniteReply, Outcome, Proposals, Sent, UNKNOWN},
    tally::quorum,
};

const SERVERS: usize = 3;

fn at(ms: u64) -> Moment {
    Moment::default() + Duration::from_millis(ms)
}

fn name() -> LockName {
    LockName::new("n").unwrap()
}

/// One server, reduced to one request.
#[derive(Debug, Clone, Default)]
struct Server {
    vote: Option<i64>,
    last: i64,
    /// True if another request has the vote.
    taken: bool,
}

#[derive(Debug, Clone, Copy)]
enum Message {
    Propose { sent: Sent, number: i64, withdrawn: i64 },
    Restore { sent: Sent, number: i64 },
    Withdraw { number: i64 },
}

struct Run {
    proposals: Proposals,
    id: RequestId,
    servers: Vec<Server>,
    /// The messages in transit, each with its server, and true if there are other copies.
    net: Vec<(usize, Message, bool)>,
    number: i64,
    /// The number of a proposal or a hold that is not withdrawn.
    live: Option<i64>,
    held: bool,
    releasing: Option<i64>,
    /// By server, true if a release has removed a vote.
    removed: Vec<bool>,
    finished: bool,
    lost: bool,
    /// True if the request was released before its first claim.
    was_unknown: bool,
}

impl Run {
    fn new() -> Self {
        Self {
            proposals: Proposals::new(SERVERS),
            id: RequestId::from_bytes([7; 16]),
            servers: vec![Server::default(); SERVERS],
            net: Vec::new(),
            number: 0,
            live: None,
            held: false,
            releasing: None,
            removed: vec![false; SERVERS],
            finished: false,
            lost: false,
            was_unknown: false,
        }
    }

    /// Proposes to the servers in this bit mask. The others are reconnecting.
    fn propose(&mut self, mask: u8) {
        if self.live.is_some() || self.releasing.is_some() {
            return;
        }
        self.number += 10;
        let withdrawn = self.proposals.propose(self.id, &name(), self.number, at(0), at(1000));
        assert!(withdrawn < self.number);
        self.live = Some(self.number);
        for server in (0..SERVERS).filter(|server| mask & (1 << server) != 0) {
            let Some(sent) = self.proposals.on_send(self.id, server, self.number) else {
                assert!(self.was_unknown, "it is live");
                continue;
            };
            self.net.push((server, Message::Propose { sent, number: self.number, withdrawn }, false));
        }
    }

    fn withdraw(&mut self) {
        if self.releasing.is_none() && !self.held && self.live.take().is_some() {
            self.proposals.withdraw(self.id, at(1000));
            self.send_withdrawals();
        }
    }

    fn release(&mut self) {
        if self.releasing.is_none() && self.number > 0 {
            self.releasing = Some(if self.held { self.live.expect("it holds") } else { 0 });
            (self.live, self.held) = (None, false);
            self.proposals.release(self.id, at(1000));
        }
        self.send_withdrawals();
    }

    fn send_withdrawals(&mut self) {
        for server in 0..SERVERS {
            if let Some(number) = self.proposals.withdrawal(self.id, server) {
                assert!(self.live.is_none_or(|live| number < live), "{number} is live");
                self.proposals.on_withdrawal_sent(self.id, server, at(0));
                self.net.push((server, Message::Withdraw { number }, false));
            }
        }
    }

    fn restore(&mut self, server: usize) {
        if let (true, Some(number)) = (self.held, self.live) {
            match self.proposals.on_send(self.id, server, number) {
                Some(sent) => self.net.push((server, Message::Restore { sent, number }, false)),
                None => assert!(self.was_unknown, "it is live"),
            }
        }
    }

    /// Releases the request before its first claim, as if another client might have claimed it.
    fn release_unknown(&mut self) {
        if self.number == 0 && self.releasing.is_none() {
            self.was_unknown = true;
            self.proposals.release_unknown(self.id, &name(), at(0), at(1000));
            self.send_withdrawals();
        }
    }

    /// Grants the live number if a majority has voted for it: the client has received these votes.
    fn grant(&mut self) {
        let Some(number) = self.live.filter(|_| !self.held) else { return };
        let votes = self.servers.iter().filter(|server| server.vote == Some(number)).count();
        if votes >= quorum(SERVERS) {
            assert!(self.proposals.grant(self.id, number, at(1000), at(1000)));
            self.held = true;
        }
    }

    /// Executes a message at its server. The reply arrives if `replies` is true.
    fn deliver(&mut self, index: usize, repeats: bool, replies: bool) {
        let (at, message, is_repeated) = self.net[index];
        self.net[index].2 |= repeats;
        let is_repeated = is_repeated || repeats;
        if !repeats {
            self.net.swap_remove(index);
        }
        let server = &mut self.servers[at];
        match message {
            Message::Propose { sent, number, withdrawn } => {
                let reply = match server.vote {
                    Some(vote) if vote > withdrawn => DefiniteReply::Voted(vote),
                    None if server.taken => DefiniteReply::Refused,
                    _ if number <= server.last => DefiniteReply::Refused,
                    _ => {
                        (server.vote, server.last) = (Some(number), number);
                        DefiniteReply::Voted(number)
                    }
                };
                if replies && (!is_repeated || reply != DefiniteReply::Refused) {
                    self.proposals.on_reply(sent, reply);
                }
            }
            Message::Restore { sent, number } => {
                let free = server.vote.is_none_or(|vote| vote < number) && !server.taken;
                let reply = if server.vote == Some(number) || free && server.last <= number {
                    (server.vote, server.last) = (Some(number), number.max(server.last));
                    DefiniteReply::Voted(number)
                } else {
                    DefiniteReply::Refused
                };
                if replies && (!is_repeated || reply != DefiniteReply::Refused) {
                    self.proposals.on_reply(sent, reply);
                }
            }
            Message::Withdraw { number } => {
                let removed = server.vote.take_if(|vote| *vote <= number);
                assert!(
                    removed.is_none() || removed != self.live,
                    "a live vote is removed by a late withdrawal"
                );
                let removed = removed.is_some();
                if number != UNKNOWN {
                    server.last = server.last.max(number + 1);
                }
                self.removed[at] |= removed && self.releasing.is_some_and(|held| number >= held);
                if replies {
                    self.proposals.on_acknowledgement(self.id, at, number, removed, is_repeated, "");
                } else {
                    self.proposals.on_no_reply(self.id, at, number);
                }
            }
        }
    }

    fn check(&mut self) {
        let open = self.proposals.open_servers(self.id);
        for (at, server) in self.servers.iter().enumerate() {
            let may_vote = self.net.iter().any(|(to, message, _)| match message {
                Message::Propose { number, .. } | Message::Restore { number, .. } => {
                    *to == at && *number > server.last
                }
                Message::Withdraw { .. } => false,
            });
            assert!(
                open.contains(&at) || server.vote.is_none() && !may_vote,
                "server {at} counts as one without a vote: {server:?}"
            );
        }
        let removed = self.removed.iter().filter(|removed| **removed).count();
        // Includes the votes that are removed later.
        assert!(!self.lost || removed < quorum(SERVERS), "{removed} votes were there until the release");
        let Some(held) = self.releasing else { return };
        if self.finished {
            return;
        }
        let left = self.servers.iter().filter(|server| server.vote.is_some()).count();
        match self.proposals.finish(self.id) {
            Some(Outcome::Released) => {
                assert!(SERVERS - left >= quorum(SERVERS), "{left} votes are left");
                self.finished = true;
            }
            Some(Outcome::Lost(_)) => {
                assert!(
                    held > 0 && removed < quorum(SERVERS),
                    "{removed} votes were there until the release"
                );
                (self.finished, self.lost) = (true, true);
            }
            None => {}
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 3000, ..ProptestConfig::default() })]

    #[test]
    fn random_events_forget_no_vote_and_withdraw_no_live_vote(
        events in prop::collection::vec((0_u8..100, any::<prop::sample::Index>(), 0_u8..100), 1..120),
    ) {
        let mut run = Run::new();
        for (event, index, luck) in events {
            match event {
                0..12 => run.propose(if luck < 60 { 7 } else { luck }),
                12..20 => run.withdraw(),
                20..26 => run.release(),
                26..32 => run.restore(index.index(SERVERS)),
                32..40 => run.grant(),
                40..44 => run.send_withdrawals(),
                44..48 => {
                    let server = &mut run.servers[index.index(SERVERS)];
                    server.taken = !server.taken && server.vote.is_none();
                }
                // Also completes the release if a majority has confirmed it.
                48 => {
                    run.release_unknown();
                    drop(run.proposals.finish(run.id).filter(|_| run.number == 0));
                }
                // The data are lost without the withdrawals, or a lease has expired.
                49 => run.servers[index.index(SERVERS)].vote = None,
                _ if run.net.is_empty() => {}
                50..54 => drop(run.net.swap_remove(index.index(run.net.len()))),
                _ => run.deliver(index.index(run.net.len()), luck < 10, luck < 80),
            }
            run.check();
        }
        // From here on no message is lost: in the end no vote is left.
        run.release();
        while run.number > 0 && (!run.net.is_empty() || !run.proposals.open_servers(run.id).is_empty()) {
            if run.net.is_empty() {
                run.send_withdrawals();
            }
            run.deliver(0, false, true);
            run.check();
        }
        prop_assert!(run.servers.iter().all(|server| server.vote.is_none()));
        prop_assert!(!run.proposals.is_known(run.id) || !run.finished || run.number == 0);
    }
}

#[test]
fn a_retried_release_keeps_the_replies_to_the_first_attempt() {
    let mut proposals = Proposals::new(3);
    let id = RequestId::from_bytes([1; 16]);
    let hold = |proposals: &mut Proposals| {
        proposals.propose(id, &name(), 10, at(0), at(1000));
        for server in 0..2 {
            let sent = proposals.on_send(id, server, 10).unwrap();
            proposals.on_reply(sent, DefiniteReply::Voted(10));
        }
        assert!(proposals.grant(id, 10, at(1000), at(1000)));
        proposals.release(id, at(1000));
    };
    hold(&mut proposals);
    proposals.on_acknowledgement(id, 0, 10, true, false, "");
    proposals.on_no_reply(id, 1, 10);
    assert_eq!(proposals.finish(id), None, "the third server received no proposal, and confirms nothing");
    assert!(proposals.report_unconfirmed(id) && !proposals.report_unconfirmed(id), "reported once");
    proposals.release(id, at(1000));
    assert_eq!((proposals.withdrawal(id, 0), proposals.withdrawal(id, 1)), (None, Some(10)));
    // The first attempt may have removed the vote.
    proposals.on_acknowledgement(id, 1, 10, false, false, "");
    assert_eq!(proposals.finish(id), Some(Outcome::Released));
    assert_eq!(proposals.len(), 0);

    hold(&mut proposals);
    proposals.on_acknowledgement(id, 0, 10, false, false, "");
    let lost = Outcome::Lost(String::new());
    assert_eq!(proposals.finish(id), Some(lost.clone()), "the third server never had a vote");
    proposals.release(id, at(1000));
    assert_eq!(proposals.finish(id), Some(lost), "released before");
}

/// 1. A request is released before its first claim, and the release is under way.
/// 2. The record of the release expires.
/// 3. The request is claimed, and a server votes for it.
/// 4. The server's acknowledgement of the release arrives.
///
/// The first two steps leave no record, so the test begins with the third one.
#[test]
fn an_acknowledgement_from_before_the_first_proposal_confirms_no_later_withdrawal() {
    let mut proposals = Proposals::new(3);
    let id = RequestId::from_bytes([1; 16]);
    proposals.propose(id, &name(), 10, at(0), at(1000));
    let sent = proposals.on_send(id, 0, 10).unwrap();
    proposals.on_reply(sent, DefiniteReply::Voted(10));
    proposals.withdraw(id, at(1000));
    proposals.on_acknowledgement(id, 0, UNKNOWN, false, false, "");
    assert_eq!(proposals.withdrawal(id, 0), Some(10));
    proposals.on_acknowledgement(id, 0, 10, true, false, "");
    assert_eq!(proposals.withdrawal(id, 0), None);
}

#[test]
fn records_of_expired_holds_are_removed() {
    let mut proposals = Proposals::new(5);
    let mut most = 0;
    for hold in 0..40_000_u64 {
        let id = RequestId::from_bytes(u128::from(hold).to_be_bytes());
        let number = i64::try_from(hold).unwrap() + 1;
        proposals.propose(id, &name(), number, at(hold), at(hold + 60_000));
        for server in 0..5 {
            let sent = proposals.on_send(id, server, number).unwrap();
            proposals.on_reply(sent, DefiniteReply::Voted(number));
        }
        assert!(proposals.grant(id, number, at(hold + 1000), at(hold + 1000)));
        most = most.max(proposals.len());
    }
    assert!(most < 4000, "{most} records of leases that last a second, one of which begins each millisecond");
}

#[test]
fn replies_to_two_withdrawals_may_arrive_in_reverse_order() {
    let (mut proposals, id) = (Proposals::new(3), RequestId::random());
    proposals.propose(id, &name(), 10, at(0), at(1000));
    for server in 0..3 {
        let sent = proposals.on_send(id, server, 10).unwrap();
        proposals.on_reply(sent, DefiniteReply::Voted(10));
    }
    assert!(proposals.grant(id, 10, at(1000), at(1000)));
    proposals.release(id, at(1000));
    for server in 0..3 {
        proposals.on_withdrawal_sent(id, server, at(1));
        assert!(proposals.is_under_way(id, server, at(0)) && !proposals.is_under_way(id, server, at(1)));
    }
    // The first message removes the first server's vote, and the reply to the second one arrives before its reply.
    proposals.on_withdrawal_sent(id, 0, at(2));
    proposals.on_acknowledgement(id, 0, 10, false, false, "");
    proposals.on_acknowledgement(id, 0, 10, true, false, "");
    assert_eq!(proposals.outcome(id), None);
    proposals.on_acknowledgement(id, 1, 10, false, false, "");
    proposals.on_acknowledgement(id, 2, 10, true, false, "");
    assert_eq!(proposals.finish(id), Some(Outcome::Released), "a majority had a vote");
    assert_eq!(proposals.len(), 0);
}
