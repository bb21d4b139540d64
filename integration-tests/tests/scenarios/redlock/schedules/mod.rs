//! Thousands of random schedules: messages that arrive late, twice, in another order or never, servers that stop or lose their data
//! independently of each other, clients that cancel at any time. The servers run the real scripts, and the schedule determines when
//! they receive which message. The clients are the store's own state machines, driven by the rules of its backend; each rule can be
//! broken.
//!
//! All clients and servers use the time of the schedule, so exclusion must be complete.

mod client;
mod node;
mod planted;

#[path = "../../../../../crates/polylock-redis/src/redlock/membership.rs"]
mod membership;
#[expect(dead_code, reason = "the part that a schedule does not use")]
#[path = "../../../../../crates/polylock-redis/src/redlock/proposals.rs"]
mod proposals;
#[path = "../../../../../crates/polylock-redis/src/redlock/server_votes.rs"]
mod server_votes;
#[path = "../../../../../crates/polylock-redis/src/redlock/tally.rs"]
mod tally;

use std::ops::Range;

use polylock_core::{Mode, RequestId};
use polylock_integration_tests::servers::redis;
use polylock_testkit::history::{self, Section};

use client::{Break, Client, State};
use node::{Call, Change, Id, NodeReply, Nodes, Script, TTL, Vote};
use proposals::Sent;

/// The behaviour of clients and servers.
#[derive(Debug, Clone, Copy)]
struct Rules {
    /// The percentage of events in which a server loses its data.
    forgets: u64,
    /// The percentage of events in which a hold is broken.
    breaks: u64,
    /// True if a failed proposal is withdrawn.
    withdraws: bool,
    /// True if the votes of all servers count, restarted or not.
    trusts: bool,
    /// True if clients count them although the servers' replies forbid it.
    ignores_membership: bool,
    /// True if a withdrawal names the number that is proposed when it is delivered.
    reads_number_late: bool,
    /// True if a server without a withdrawal counts as one that has confirmed.
    confirms_for_others: bool,
    /// True if restored votes are not recorded.
    forgets_restored: bool,
    changes: &'static [Change],
}

const SOUND: Rules = Rules {
    forgets: 0,
    breaks: 1,
    withdraws: true,
    trusts: false,
    ignores_membership: false,
    reads_number_late: false,
    confirms_for_others: false,
    forgets_restored: false,
    changes: &[],
};

/// Splitmix64, so that a schedule can be repeated from its seed.
#[derive(Debug)]
struct Random(u64);

impl Random {
    const fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    const fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    const fn percent(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    fn index(&mut self, length: usize) -> usize {
        usize::try_from(self.below(length as u64)).unwrap()
    }
}

/// A message in transit, or its reply.
#[derive(Debug, Clone)]
struct Message {
    client: usize,
    node: usize,
    call: Call,
    member: node::MembershipArgs,
    /// The run of the server that it was sent to.
    run: String,
    sent_at: u64,
    /// The client's record of it, if it may leave a vote.
    sent: Option<Sent>,
    /// True if there is, or was, another copy of it.
    is_repeated: bool,
    /// The reply, if it is in transit.
    reply: Option<NodeReply>,
}

/// The outcome of all schedules of one kind.
#[derive(Debug, Default)]
struct Outcome {
    schedules: u64,
    grants: usize,
    renewals: u64,
    retries: u64,
    forgotten: u64,
    breaks: usize,
    /// The first violation, with its seed.
    violation: Option<(u64, String)>,
}

struct Schedule<'n> {
    rules: Rules,
    random: Random,
    now: u64,
    nodes: &'n mut Nodes,
    clients: Vec<Client>,
    net: Vec<Message>,
    /// The time by server until which no message is delivered to it or from it.
    paused: Vec<u64>,
    sections: Vec<Section>,
    /// The votes that releases have removed: request, server and number of the release.
    removals: Vec<(Id, usize, i64)>,
    breaks: Vec<Break>,
    forgotten: u64,
    violations: Vec<String>,
}

impl Schedule<'_> {
    fn run(&mut self) {
        for _ in 0..70 * self.nodes.count() {
            self.now += 1 + self.random.below(10);
            match self.random.below(100) {
                0..68 => self.deliver(true),
                68..72 => drop(self.pick(true)),
                72..91 => {
                    let client = self.random.index(self.clients.len());
                    self.act(client);
                }
                91..94 => {
                    let client = self.random.index(self.clients.len());
                    self.repeat_withdrawals(client);
                }
                94..96 => {
                    let node = self.random.index(self.nodes.count());
                    self.paused[node] = self.now + self.random.below(TTL);
                }
                96..99 => self.now += TTL / 4 + self.random.below(TTL),
                _ => {}
            }
            if self.random.percent(self.rules.forgets) {
                self.forget();
            }
            if self.random.percent(self.rules.breaks) {
                self.break_lock();
            }
            self.deadlines();
        }
    }

    /// Ends the schedule: every client releases, and no message is lost any more.
    fn end(&mut self) {
        self.paused.fill(0);
        for client in 0..self.clients.len() {
            self.stop(client);
        }
        loop {
            while !self.net.is_empty() {
                self.now += 1;
                self.deliver(false);
            }
            for client in 0..self.clients.len() {
                self.repeat_withdrawals(client);
            }
            if self.net.is_empty() {
                break;
            }
        }
    }

    fn pick(&mut self, spare: bool) -> Option<Message> {
        let reachable = |message: &Message| self.paused[message.node] <= self.now;
        let reachable: Vec<usize> =
            (0..self.net.len()).filter(|index| reachable(&self.net[*index])).collect();
        if reachable.is_empty() {
            return None;
        }
        let index = reachable[self.random.index(reachable.len())];
        // Sent again, because its reply is missing.
        if spare && self.net[index].reply.is_none() && self.random.percent(5) {
            self.net[index].is_repeated = true;
            return Some(self.net[index].clone());
        }
        Some(self.net.swap_remove(index))
    }

    fn deliver(&mut self, twice: bool) {
        let Some(mut message) = self.pick(twice) else { return };
        if let Some(reply) = message.reply.take() {
            return self.receive(message, &reply);
        }
        let (node, mut call) = (message.node, message.call);
        // Planted: by then, it may be the number of a live proposal.
        if let (true, Call::Release { id, number }) = (self.rules.reads_number_late, &mut call) {
            *number = self.clients[message.client].number_of(*id);
        }
        let reply = self.nodes.receive(node, call, &message.member, self.now);
        if let (Call::Release { id, number }, Vote::Yes(_)) = (call, reply.vote) {
            self.removals.push((id, node, number));
        }
        self.net.push(Message { reply: Some(reply), ..message });
    }

    /// A server loses its data, in a restart or without one. No connection outlives a restart.
    fn forget(&mut self) {
        let node = self.random.index(self.nodes.count());
        if self.random.percent(50) {
            self.net.retain(|message| message.node != node);
            self.nodes.restart(node);
        } else {
            // A withdrawn proposal that is delivered to a server which has forgotten the withdrawal leaves a vote for its lease. That
            // has no effect, and would be counted as left behind.
            let clients = &self.clients;
            let is_late = |message: &Message| {
                let (Call::Propose { id, number, .. } | Call::Renew { id, number, .. }) = message.call else {
                    return false;
                };
                let (request, proposals) = (RequestId::from_bytes(id), &clients[message.client].proposals);
                let is_withdrawn = !proposals.is_known(request) || number <= proposals.withdrawn(request);
                message.reply.is_none() && (message.is_repeated || is_withdrawn)
            };
            self.net.retain(|message| message.node != node || !is_late(message));
            self.nodes.forget(node);
        }
        self.forgotten += 1;
    }

    fn send(&mut self, client: usize, node: usize, call: Call, sent: Option<Sent>) {
        let member = self.membership_args(client, node);
        let (run, sent_at) = (self.nodes.run(node), self.now);
        let message =
            Message { client, node, call, member, run, sent_at, sent, is_repeated: false, reply: None };
        self.net.push(message);
    }

    fn section(&mut self, client: usize, released: Option<u64>) {
        let this = &self.clients[client];
        let State::Held { acquired, token, deadline, .. } = this.state else { return };
        let section = Section::new("name", client.to_string(), Mode::Exclusive, this.invoked()..acquired);
        let section = section.token(u64::try_from(token).unwrap()).deadline(deadline);
        self.sections.push(match released {
            Some(at) => section.released(at),
            None => section,
        });
    }

    /// Returns all violations.
    fn violations(&mut self) -> Vec<String> {
        let mut found = history::overlaps(&self.sections);
        found.extend(history::token_regressions(&self.sections));
        found.extend(history::repeated_tokens(&self.sections));
        let left = self.nodes.locked(None);
        let left = (left > 0).then(|| format!("left behind: a vote on {left} servers"));
        found.iter().map(ToString::to_string).chain(self.violations.drain(..)).chain(left).collect()
    }
}

/// Runs the schedules of these seeds until a violation contains these words.
fn run(nodes: usize, clients: usize, seeds: Range<u64>, rules: Rules, words: &str) -> Outcome {
    // No persistence is required.
    let server = redis::start(&[]).unwrap();
    let mut nodes = Nodes::new(server.url(), &server.name(), nodes, rules.changes);
    let mut outcome = Outcome::default();
    for seed in seeds {
        nodes.clear();
        nodes.confirm();
        let count = nodes.count();
        let mut schedule = Schedule {
            rules,
            random: Random(seed),
            now: TTL,
            nodes: &mut nodes,
            clients: (0..clients).map(|index| Client::new(index, count)).collect(),
            net: Vec::new(),
            paused: vec![0; count],
            sections: Vec::new(),
            removals: Vec::new(),
            breaks: Vec::new(),
            forgotten: 0,
            violations: Vec::new(),
        };
        schedule.run();
        schedule.end();
        let violations = schedule.violations();
        outcome.schedules += 1;
        outcome.grants += schedule.sections.len();
        outcome.renewals += schedule.clients.iter().map(|client| client.renewals).sum::<u64>();
        outcome.retries += schedule.clients.iter().map(|client| client.retries).sum::<u64>();
        outcome.forgotten += schedule.forgotten;
        outcome.breaks += schedule.breaks.iter().filter(|known| known.succeeded.is_some()).count();
        if let Some(violation) = violations.into_iter().find(|violation| violation.contains(words)) {
            outcome.violation = Some((seed, violation));
            break;
        }
    }
    outcome
}

#[test]
fn random_schedules_break_no_guarantee_and_leave_no_vote() {
    for (nodes, clients, schedules) in [(3, 2, 400), (3, 3, 200), (5, 3, 150)] {
        for forgets in [0, 1] {
            let outcome = run(nodes, clients, 0..schedules, Rules { forgets, ..SOUND }, "");
            println!("{nodes} servers, {clients} clients: {outcome:?}");
            assert_eq!(outcome.violation, None);
            // Otherwise the test proves nothing.
            assert!(outcome.grants as u64 > schedules && outcome.renewals > 5 && outcome.retries > 100);
            assert!(outcome.breaks > 5);
            assert_eq!(outcome.forgotten > 100, forgets > 0);
        }
    }
}

/// A vote for 10 is withdrawn, but the withdrawal is late. Meanwhile the server votes for 20 of the same request, by a proposal or
/// because the others have extended it. Returns true if it keeps that vote when the withdrawal of 10 arrives.
fn keeps_the_later_vote(later: Call, changes: &[Change]) -> bool {
    let server = redis::start(&[]).unwrap();
    let mut nodes = Nodes::new(server.url(), "n", 1, changes);
    let id = [7; 16];
    let first = Call::Propose { id, number: 10, withdrawn: 0 };
    let votes = [first, later, Call::Release { id, number: 10 }]
        .map(|call| nodes.receive(0, call, &node::MembershipArgs::default(), 0).vote);
    assert_eq!(votes[..2], [Vote::Yes(10), Vote::Yes(20)]);
    nodes.locked(Some(id)) == 1
}

#[test]
fn a_late_withdrawal_leaves_a_later_vote_of_the_same_request() {
    let id = [7; 16];
    let proposed = Call::Propose { id, number: 20, withdrawn: 10 };
    let restored = Call::Renew { id, number: 20, restores: true };
    for later in [proposed, restored] {
        assert!(keeps_the_later_vote(later, &[]));
        // Planted: a withdrawal that does not compare.
        let from = "(number == 0 or entry[1] <= number)";
        assert!(!keeps_the_later_vote(later, &[Change { script: Script::Release, from, to: "true" }]));
    }
}

/// A command is sent at 0 and delivered at 950, to a server that has lost its data at 900 and with it a vote whose lease ends at 1890.
/// Returns true if its votes count at 1010 when the client counts the delay from `since`.
fn counts_too_early(since: u64) -> bool {
    let server = redis::start(&[]).unwrap();
    let mut nodes = Nodes::new(server.url(), "n", 1, &[]);
    nodes.confirm();
    let mut membership = membership::Membership::default();
    let member = |membership: &membership::Membership, now| {
        let observed = membership.argument("run0", "fresh", client::DELAY, client::at(now));
        node::MembershipArgs { run: "run0".to_owned(), observed }
    };
    let late = member(&membership, 0);
    nodes.forget(0);
    let propose = |number| Call::Propose { id: [7; 16], number, withdrawn: 0 };
    let reply = nodes.receive(0, propose(10), &late, 950);
    let first = membership.observe("run0", &reply.membership, client::at(since));
    assert_eq!(first, membership::Observed::Delayed { is_first: true });
    let reply = nodes.receive(0, propose(20), &member(&membership, 1010), 1010);
    membership.observe("run0", &reply.membership, client::at(1010)) == membership::Observed::Counts
}

#[test]
fn the_delay_of_a_server_counts_from_the_first_reply() {
    assert!(!counts_too_early(960), "since the reply has arrived");
    // Planted: since the command was sent.
    assert!(counts_too_early(0));
}

/// A repeated proposal of a client that does not know the request finds its vote.
#[test]
fn a_vote_that_is_not_withdrawn_counts_for_a_repeated_proposal() {
    let server = redis::start(&[]).unwrap();
    let mut nodes = Nodes::new(server.url(), "n", 1, &[]);
    let (id, none) = ([7; 16], node::MembershipArgs::default());
    for number in [10, 20, 5] {
        let call = Call::Propose { id, number, withdrawn: 0 };
        assert_eq!(nodes.receive(0, call, &none, 0).vote, Vote::Yes(10));
    }
    let late = Call::Propose { id, number: 10, withdrawn: 0 };
    assert_eq!(nodes.receive(0, Call::Release { id, number: 10 }, &none, 0).vote, Vote::Yes(10));
    assert_eq!(nodes.receive(0, late, &none, 0).vote, Vote::Stale(11));
}
