//! Redlock: votes of independent servers, with the bookkeeping of the client.
//!
//! Modelled: proposals with numbers, withdrawals, renewals, votes that are given again, and the release; any of these messages executed
//! late, after its client has given it up, or never; acknowledgements that are lost; a server that is restarted, and the delay until
//! its votes count. The client's record of proposals is the store's own state machine, and so are its counts of votes.
//!
//! Two clients compete. The messages of one may be late or lost; those of its rival are executed at once by the servers that it reaches.
//!
//! Abstracted away: breaks, several requests of one client, and clocks that run differently. A reply arrives with the execution of its
//! message, or never. Numbers are a counter that grows with the ticks, as those of clients grow with the clocks of the servers.
//!
//! A restart of a server: with all of its data, an older state of it, none, a copy of another server's, or without the vote that has expired
//! by a clock that was ahead.
//!
//! It mirrors `redlock/backend.rs`, `redlock/keep_alive.rs`, `redlock/withdrawals.rs` and `redlock/scripts/` of `polylock-redis`, and uses
//! its `proposals.rs`, `server_votes.rs` and `tally.rs`.
#![doc = include_str!("safety.md")]

mod bug;
#[expect(dead_code, reason = "the part that the model does not use")]
#[path = "../../../polylock-redis/src/redlock/proposals.rs"]
mod proposals;
mod server;
#[path = "../../../polylock-redis/src/redlock/server_votes.rs"]
mod server_votes;
mod steps;
#[cfg_attr(not(test), expect(dead_code, reason = "the model has no breaks"))]
#[path = "../../../polylock-redis/src/redlock/tally.rs"]
mod tally;

use std::{
    array,
    hash::{DefaultHasher, Hash, Hasher},
};

use polylock_core::{FencingToken, LockName, Mode, Moment, RequestId, invariant};
use stateright::{Model, Property};

use crate::{check::Protocol, time::is_before_deadline};
pub use bug::Bug;
use proposals::{DefiniteReply, Outcome, Proposals, Sent};
pub use server::Restart;
use server::{Reply, Server, TTL};
use tally::{Ballot, Extension, Renewals, Renewed, quorum};

const CLIENTS: usize = 2;
const SERVERS: usize = 3;
/// The numbers that the clock advances in a tick: more than are proposed in one.
const NUMBERS_PER_TICK: i64 = 16;

/// The events that may still happen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Budget {
    /// The proposals of each client.
    proposals: [u8; CLIENTS],
    ticks: u8,
    /// A server that is restarted, or a lost reply.
    faults: u8,
    renewals: u8,
}

/// The bounds of the explorations.
const BUDGETS: [Budget; 2] = [
    Budget { proposals: [1, 1], ticks: 1, faults: 1, renewals: 1 },
    Budget { proposals: [2, 0], ticks: 0, faults: 0, renewals: 0 },
];

/// The client with messages that may be late or lost.
const CLIENT: usize = 0;
/// The client with messages that are executed at once, by the servers that it reaches.
const RIVAL: usize = 1;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
enum Stage {
    #[default]
    Idle,
    Proposing,
    /// The proposal has failed.
    Between,
    Held,
    Releasing,
    Ended,
}

/// A message that may leave a vote.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct VoteMessage {
    sent: Option<Sent>,
    number: i64,
    withdrawn: i64,
    restores: bool,
}

/// The messages of a client to one server.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
struct Channel {
    votes: Vec<VoteMessage>,
    withdrawal: Option<i64>,
    /// True if a keep-alive is on its way.
    extends: bool,
    /// True if a withdrawal has removed a vote.
    has_removed: bool,
}

/// A client with one request.
#[derive(Debug, Clone)]
struct Client {
    stage: Stage,
    proposals: Proposals,
    number: i64,
    began: u8,
    ballot: Option<Ballot>,
    /// The greatest number that servers have accepted, in the replies.
    seen: i64,
    channels: [Channel; SERVERS],
    renewal: Option<(Renewals, u8)>,
    /// The servers that have lost a vote, in the replies to the renewal.
    absent: [bool; SERVERS],
    /// Token, tick, lease.
    grant: Option<(i64, u8, u8)>,
    outcome: Option<Outcome>,
    /// True if the request held the lock once.
    has_held: bool,
}

impl Client {
    fn new() -> Self {
        Self {
            stage: Stage::Idle,
            proposals: Proposals::new(SERVERS),
            number: 0,
            began: 0,
            ballot: None,
            seen: 0,
            channels: Default::default(),
            renewal: None,
            absent: [false; SERVERS],
            grant: None,
            outcome: None,
            has_held: false,
        }
    }

    /// Returns the parts that do not belong to one server.
    fn view(&self, index: usize) -> impl Hash + PartialEq + '_ {
        let record = self.proposals.record(id(index));
        let record = record.map(|record| (record.number, record.withdrawn, record.phase));
        let Self { stage, number, began, seen, grant, outcome, has_held, .. } = self;
        let renewal = self.renewal.as_ref().map(|(_, sent)| sent);
        ((stage, number, began, seen), (grant, outcome, has_held, renewal, record))
    }

    /// Returns the parts that belong to one server.
    fn view_of(&self, index: usize, server: usize) -> impl Hash + PartialEq + '_ {
        let record = self.proposals.record(id(index)).map(|record| &record.servers[server]);
        let ballot = self.ballot.as_ref().map(|ballot| ballot.replies[server]);
        let renewals = self.renewal.as_ref().map(|(renewals, _)| renewals.replies[server]);
        (&self.channels[server], self.absent[server], record, ballot, renewals)
    }

    /// Removes what makes no difference any more.
    fn normalize(&mut self, servers: &[Server; SERVERS]) {
        if self.stage == Stage::Ended {
            for (channel, server) in self.channels.iter_mut().zip(servers) {
                // The server would refuse it.
                channel.votes.retain(|message| server.may_accept(message.number));
            }
            (self.number, self.began, self.seen) = (0, 0, 0);
            (self.ballot, self.renewal, self.grant) = (None, None, None);
            self.absent = [false; SERVERS];
            self.channels
                .iter_mut()
                .for_each(|channel| (channel.extends, channel.has_removed) = (false, false));
        }
    }

    fn believes(&self, now: u8) -> bool {
        let is_live = |(_, sent, lease)| is_before_deadline(now, sent, lease);
        self.stage == Stage::Held && self.grant.is_some_and(is_live)
    }
}

/// Returns the id of the request of `client`.
fn id(client: usize) -> RequestId {
    RequestId::from_bytes([u8::try_from(client).unwrap_or(u8::MAX); 16])
}

/// A state of the model.
#[derive(Debug, Clone)]
pub struct State {
    now: u8,
    budget: Budget,
    servers: [Server; SERVERS],
    clients: [Client; CLIENTS],
    last_token: i64,
    tokens_grow: bool,
    has_false_loss: bool,
    held_votes_stay: bool,
}

impl State {
    fn view(&self) -> impl Hash + PartialEq + '_ {
        let [first, second] = &self.clients;
        let counts = (self.now, self.budget, self.last_token, self.tokens_grow);
        // The servers are alike, so their order makes no difference.
        let server = |at: usize| {
            let mut hasher = DefaultHasher::new();
            (&self.servers[at], first.view_of(0, at), second.view_of(1, at)).hash(&mut hasher);
            hasher.finish()
        };
        let mut servers: [u64; SERVERS] = array::from_fn(server);
        servers.sort_unstable();
        (counts, servers, first.view(0), second.view(1), (self.has_false_loss, self.held_votes_stay))
    }
}

impl PartialEq for State {
    fn eq(&self, other: &Self) -> bool {
        self.view() == other.view()
    }
}

impl Hash for State {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.view().hash(state);
    }
}

/// A step. Numbers are those of servers, and of messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// The client proposes a number: greater than all before if true, otherwise by a clock that is behind.
    Propose(bool),
    /// The rival proposes a number, in the same way, to the servers of this mask, and receives their replies.
    Rival(usize, bool),
    /// The rival releases the lock.
    RivalReleases,
    /// The deadline of the rival's hold ends it.
    RivalLoses,
    /// The server executes a message that may leave a vote, the one with this index, and the client receives the reply.
    Vote(usize, usize),
    /// The server executes such a message, and the reply is lost.
    VoteWithoutReply(usize, usize),
    /// The time limit for the replies has passed.
    TimeOut,
    /// The server executes the withdrawal, and acknowledges it.
    Withdraw(usize),
    /// The server executes the withdrawal, and the acknowledgement is lost.
    WithdrawWithoutReply(usize),
    /// The withdrawal is sent again.
    Repeat(usize),
    /// The holder sends a keep-alive.
    KeepAlive,
    /// The server executes the keep-alive, and the client receives the reply.
    Extend(usize),
    /// The time limit for the replies to the keep-alive has passed.
    RenewalTimesOut,
    /// The client releases the lock, or gives the request up.
    Release,
    /// The deadline of the hold ends it.
    Lose,
    /// The server is restarted, and all connections to it break.
    Restart(usize, Restart),
    /// A tick passes.
    Tick,
}

/// The model.
#[derive(Debug)]
pub struct Redlock {
    bug: Option<Bug>,
    name: LockName,
}

impl Redlock {
    fn has(&self, bug: Bug) -> bool {
        self.bug == Some(bug)
    }

    fn propose(&self, state: &mut State, index: usize, is_greatest: bool) {
        let client = &mut state.clients[index];
        let greatest = state.servers.iter().map(|server| server.data.last).max().filter(|_| is_greatest);
        let clock = greatest.unwrap_or_default().max(i64::from(state.now) * NUMBERS_PER_TICK);
        client.number = (client.number + 2).max(client.seen + 1).max(clock + 1);
        (client.stage, client.began, client.seen) = (Stage::Proposing, state.now, 0);
        state.budget.proposals[index] -= 1;
        client.ballot = Some(Ballot::new(SERVERS));
        let number = client.number;
        let withdrawn =
            client.proposals.propose(id(index), &self.name, number, Moment::default(), Moment::NEVER);
        for (server, channel) in client.channels.iter_mut().enumerate() {
            let sent = client.proposals.on_send(id(index), server, number);
            if sent.is_some() {
                channel.votes.push(VoteMessage { sent, number, withdrawn, restores: false });
            }
        }
    }

    /// Executes a message that may leave a vote.
    fn vote(&self, state: &mut State, [index, at, message]: [usize; 3], is_lost: bool) {
        let State { now, servers, clients, .. } = state;
        let (client, server) = (&mut clients[index], &mut servers[at]);
        let VoteMessage { sent, number, withdrawn, restores } = client.channels[at].votes.remove(message);
        let reply = match restores {
            true if server.extend(index, number, true, *now) => Reply::Yes(number),
            true => Reply::Held,
            false => server.propose(index, number, withdrawn, *now, self.bug),
        };
        if is_lost {
            return;
        }
        let counts = server.counts(*now, self.bug);
        let definite = match reply {
            Reply::Yes(number) => DefiniteReply::Voted(number),
            _ => DefiniteReply::Refused,
        };
        if let Some(sent) = sent {
            client.proposals.on_reply(sent, definite);
        }
        let is_current = client.stage == Stage::Proposing && number == client.number && !restores;
        let Some(ballot) = client.ballot.as_mut().filter(|_| is_current) else { return };
        match reply {
            Reply::Yes(number) if counts => ballot.vote(at, number),
            Reply::Stale(last) => {
                client.seen = client.seen.max(last);
                ballot.no_vote(at);
            }
            _ => ballot.no_vote(at),
        }
        if ballot.is_decided() {
            self.decide(state, index);
        }
    }

    /// Ends a proposal.
    fn decide(&self, state: &mut State, index: usize) {
        let now = state.now;
        let client = &mut state.clients[index];
        let Some(ballot) = client.ballot.take() else { return };
        let sent = if self.has(Bug::DeadlineFromReply) { now } else { client.began };
        let elected =
            ballot.elected().filter(|token| client.seen <= *token && is_before_deadline(now, sent, TTL));
        match elected {
            Some(token) if client.proposals.grant(id(index), token, Moment::NEVER, Moment::NEVER) => {
                client.grant = Some((token, sent, TTL));
                (client.stage, client.has_held) = (Stage::Held, true);
                client.channels.iter_mut().for_each(|channel| channel.has_removed = false);
                let [earlier, later] = [state.last_token, token].map(FencingToken::new);
                state.tokens_grow &= earlier.zip(later).is_some_and(|(a, b)| invariant::token_grows(a, b));
                state.last_token = token;
            }
            _ => {
                client.stage = Stage::Between;
                if !self.has(Bug::FailedProposalStays) {
                    client.proposals.withdraw(id(index), Moment::NEVER);
                    self.send_withdrawals(client, index);
                }
            }
        }
    }

    fn send_withdrawals(&self, client: &mut Client, index: usize) {
        for server in 0..SERVERS {
            self.send_withdrawal(client, index, server);
        }
    }

    fn send_withdrawal(&self, client: &mut Client, index: usize, server: usize) {
        let channel = &mut client.channels[server];
        if channel.withdrawal.is_none()
            && let Some(number) = client.proposals.withdrawal(id(index), server)
        {
            client.proposals.on_withdrawal_sent(id(index), server, Moment::default());
            channel.withdrawal = Some(number);
        }
    }

    fn withdraw(&self, state: &mut State, index: usize, at: usize, is_lost: bool) {
        let State { now, servers, clients, .. } = state;
        let client = &mut clients[index];
        let channel = &mut client.channels[at];
        let Some(number) = channel.withdrawal.take() else { return };
        let is_executed = !is_lost || !self.has(Bug::MissingReplyAcknowledges);
        let removed = is_executed.then(|| servers[at].withdraw(index, number, *now, self.bug)).flatten();
        channel.has_removed |= removed.is_some();
        let held = client.grant.filter(|_| client.stage == Stage::Held).map(|(token, ..)| token);
        state.held_votes_stay &= removed.is_none() || removed != held;
        if !is_lost || self.has(Bug::MissingReplyAcknowledges) {
            client.proposals.on_acknowledgement(id(index), at, number, removed.is_some(), false, "");
        } else if self.has(Bug::LostReleaseIsForgotten) {
            client.proposals.on_unsent(id(index), at);
        } else {
            client.proposals.on_no_reply(id(index), at, number);
        }
        self.finish(state, index);
    }

    /// Ends the release if its outcome is known.
    fn finish(&self, state: &mut State, index: usize) {
        let client = &mut state.clients[index];
        if client.stage == Stage::Releasing && client.proposals.outcome(id(index)).is_some() {
            client.outcome = client.proposals.finish(id(index));
            client.stage = Stage::Ended;
            let removed = client.channels.iter().filter(|channel| channel.has_removed).count();
            state.has_false_loss |=
                matches!(client.outcome, Some(Outcome::Lost(_))) && removed >= quorum(SERVERS);
        }
    }

    fn extend(&self, state: &mut State, index: usize, at: usize) {
        let State { now, servers, clients, .. } = state;
        let (client, server) = (&mut clients[index], &mut servers[at]);
        client.channels[at].extends = false;
        let Some((token, ..)) = client.grant else { return };
        let is_extended = server.extend(index, token, false, *now);
        let counts = server.counts(*now, self.bug);
        let Some((renewals, sent)) = client.renewal.as_mut().filter(|_| client.stage == Stage::Held) else {
            return;
        };
        client.absent[at] = !is_extended;
        let extension = if is_extended { Extension::Extended(token) } else { Extension::Absent };
        if !is_extended || counts {
            renewals.reply(at, extension);
        }
        let sent = if self.has(Bug::DeadlineFromReply) { *now } else { *sent };
        match renewals.outcome() {
            Some(Renewed::Extended(_)) => {
                client.renewal = None;
                if client.believes(*now) && is_before_deadline(*now, sent, TTL) {
                    client.grant = Some((token, sent, TTL));
                    self.restore(client, index, token);
                }
            }
            Some(Renewed::Lost) => {
                client.renewal = None;
                client.stage = Stage::Ended;
            }
            None => {}
        }
    }

    /// Ends a renewal with too few replies. If one server has extended its vote, those without one get it again.
    fn time_out_renewal(&self, client: &mut Client) {
        if let (Some((renewals, _)), Some((token, ..))) = (client.renewal.take(), client.grant)
            && renewals.replies.contains(&Some(Extension::Extended(token)))
        {
            self.restore(client, CLIENT, token);
        }
    }

    /// Makes the servers that have lost a vote vote again.
    fn restore(&self, client: &mut Client, index: usize, token: i64) {
        for at in (0..SERVERS).filter(|at| client.absent[*at]) {
            let is_recorded = !self.has(Bug::RestoredVoteIsNotRecorded);
            let sent = is_recorded.then(|| client.proposals.on_send(id(index), at, token));
            if sent != Some(None) {
                let sent = sent.flatten();
                client.channels[at].votes.push(VoteMessage {
                    sent,
                    number: token,
                    withdrawn: 0,
                    restores: true,
                });
            }
        }
    }

    fn release(&self, state: &mut State, index: usize) {
        let client = &mut state.clients[index];
        client.stage = Stage::Releasing;
        client.renewal = None;
        client.proposals.release(id(index), Moment::NEVER);
        self.send_withdrawals(client, index);
        self.finish(state, index);
        if index == RIVAL {
            (0..SERVERS).for_each(|at| self.withdraw(state, RIVAL, at, false));
            if !state.clients[RIVAL].has_held {
                state.clients[RIVAL] = Client::new();
            }
        }
    }
}
