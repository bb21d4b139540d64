//! The clients of a schedule: the store's own state machines, driven one event at a time by the rules of `redlock/backend.rs`.

use std::{collections::HashSet, time::Duration};

use polylock_core::{LockName, Moment, RequestId};

use super::{
    Message, Schedule,
    membership::{Membership, Observed},
    node::{Call, Id, MembershipArgs, NodeReply, TTL, Vote},
    proposals::{DefiniteReply, Outcome, Proposals},
    tally::{Ballot, Extension, Renewals, Renewed, quorum},
};

/// The time by which a client's deadline is before the end of the lease.
const MARGIN: u64 = 10;

/// The time for which the votes of a server that has lost its data do not count.
pub(super) const DELAY: Duration = Duration::from_millis(TTL);

pub(super) fn at(ms: u64) -> Moment {
    Moment::default() + Duration::from_millis(ms)
}

/// One client.
#[derive(Debug)]
pub(super) struct Client {
    pub(super) state: State,
    pub(super) proposals: Proposals,
    pub(super) membership: Vec<Membership>,
    index: u8,
    requests: u64,
    /// The greatest number proposed or received.
    last: i64,
    /// The request under way, and the greatest number proposed for it.
    pub(super) id: Id,
    number: i64,
    /// The time at which the first claim of the request was invoked.
    invoked: u64,
    /// The withdrawals without a reply, each with its server; a later one of the same request replaces them.
    pending: Vec<(Id, usize, i64)>,
    pub(super) renewals: u64,
    pub(super) retries: u64,
}

#[derive(Debug)]
pub(super) enum State {
    Idle,
    Claiming {
        began: u64,
        ballot: Ballot,
    },
    Held {
        acquired: u64,
        token: i64,
        deadline: u64,
        renewal: Option<Renewing>,
    },
    /// The token that is being released; 0 if none was held.
    Releasing(i64),
}

/// A break of the hold with this number, and the servers that have taken part.
#[derive(Debug)]
pub(super) struct Break {
    pub(super) number: i64,
    marked: HashSet<usize>,
    replied: HashSet<usize>,
    pub(super) succeeded: Option<u64>,
}

/// A renewal under way.
#[derive(Debug)]
pub(super) struct Renewing {
    began: u64,
    tally: Renewals,
    absent: Vec<usize>,
}

impl Client {
    pub(super) fn new(index: usize, nodes: usize) -> Self {
        Self {
            state: State::Idle,
            proposals: Proposals::new(nodes),
            membership: (0..nodes).map(|_| Membership::default()).collect(),
            index: u8::try_from(index).unwrap(),
            requests: 0,
            last: 0,
            id: [0; 16],
            number: 0,
            invoked: 0,
            pending: Vec::new(),
            renewals: 0,
            retries: 0,
        }
    }

    pub(super) const fn invoked(&self) -> u64 {
        self.invoked
    }

    fn request(&self) -> RequestId {
        RequestId::from_bytes(self.id)
    }
}

impl Schedule<'_> {
    /// Performs a random step of `client`.
    pub(super) fn act(&mut self, client: usize) {
        match self.clients[client].state {
            State::Idle if self.random.percent(30) => self.repeat_withdrawals(client),
            State::Idle => {
                let now = self.now;
                let this = &mut self.clients[client];
                this.requests += 1;
                this.id = [this.index; 16];
                this.id[..8].copy_from_slice(&this.requests.to_be_bytes());
                this.invoked = now;
                self.propose(client);
            }
            // The timeout has expired.
            State::Claiming { .. } if self.random.percent(10) => self.fail_proposal(client),
            State::Claiming { .. } => {}
            State::Held { .. } if self.random.percent(30) => self.stop(client),
            State::Held { .. } => self.renew(client),
            // The release is retried.
            State::Releasing(_) => self.withdraw(client),
        }
    }

    fn propose(&mut self, client: usize) {
        // Clocks differ a little.
        let clock = i64::try_from(self.now - self.random.below(20)).unwrap();
        let (now, until) = (at(self.now), at(self.now + 100 * TTL));
        let this = &mut self.clients[client];
        this.last = clock.max(this.last + 2);
        this.number = this.last;
        let (id, number, request) = (this.id, this.number, this.request());
        let name = LockName::new("name").unwrap();
        let withdrawn = this.proposals.propose(request, &name, number, now, until);
        this.state = State::Claiming { began: self.now, ballot: Ballot::new(self.nodes.count()) };
        for node in 0..self.nodes.count() {
            let sent = self.clients[client].proposals.on_send(request, node, number);
            assert!(sent.is_some(), "a new number is live");
            self.send(client, node, Call::Propose { id, number, withdrawn }, sent);
        }
    }

    fn renew(&mut self, client: usize) {
        let (now, nodes) = (self.now, self.nodes.count());
        let id = self.clients[client].id;
        let State::Held { renewal, token, .. } = &mut self.clients[client].state else { return };
        *renewal = Some(Renewing { began: now, tally: Renewals::new(nodes), absent: Vec::new() });
        let call = Call::Renew { id, number: *token, restores: false };
        for node in 0..nodes {
            self.send(client, node, call, None);
        }
    }

    /// A reply has arrived.
    pub(super) fn receive(&mut self, message: Message, reply: &NodeReply) {
        let Message { client, node, call, sent, run, sent_at, .. } = message;
        let rules = self.rules;
        let this = &mut self.clients[client];
        let mut counts = true;
        if matches!(call, Call::Propose { .. } | Call::Renew { .. }) {
            let observed = this.membership[node].observe(&run, &reply.membership, at(self.now));
            counts = observed == Observed::Counts || rules.ignores_membership;
        }
        if let Some(sent) = sent {
            match reply.vote {
                Vote::Yes(number) => this.proposals.on_reply(sent, DefiniteReply::Voted(number)),
                // A repeated message may be executed again later.
                _ if !message.is_repeated => this.proposals.on_reply(sent, DefiniteReply::Refused),
                _ => {}
            }
        }
        match call {
            Call::Propose { id, number, .. } if (id, number) == (this.id, this.number) => {
                self.claim_reply(client, node, reply.vote, counts);
            }
            Call::Renew { id, restores: false, .. } if id == this.id => {
                self.renewal_reply(client, node, sent_at, reply.vote, counts);
            }
            Call::Release { id, number } => {
                // A reply after the timeout is ignored.
                let wait = (id, node, number);
                let before = this.pending.len();
                this.pending.retain(|pending| *pending != wait);
                if this.pending.len() < before {
                    let removed = matches!(reply.vote, Vote::Yes(_));
                    let (request, repeated) = (RequestId::from_bytes(id), message.is_repeated);
                    this.proposals.on_acknowledgement(request, node, number, removed, repeated, "");
                }
                self.check_release(client);
            }
            Call::Break { number } => self.break_reply(number, node, reply.vote),
            _ => {}
        }
    }

    fn claim_reply(&mut self, client: usize, node: usize, vote: Vote, counts: bool) {
        let now = self.now;
        let this = &mut self.clients[client];
        let State::Claiming { began, ballot } = &mut this.state else { return };
        match vote {
            Vote::Yes(number) if counts => ballot.vote(node, number),
            vote => {
                if let Vote::Stale(last) = vote {
                    this.last = this.last.max(last);
                }
                ballot.no_vote(node);
            }
        }
        let elected = ballot.elected().filter(|_| now < *began + TTL - MARGIN);
        let (deadline, decided) = (*began + TTL - MARGIN, ballot.is_decided());
        let request = this.request();
        if let Some(token) = elected
            && this.proposals.grant(request, token, at(now + TTL), at(now + 100 * TTL))
        {
            this.state = State::Held { acquired: now, token, deadline, renewal: None };
        } else if decided {
            self.fail_proposal(client);
        }
    }

    fn renewal_reply(&mut self, client: usize, node: usize, sent_at: u64, vote: Vote, counts: bool) {
        let this = &mut self.clients[client];
        let (id, request) = (this.id, this.request());
        let State::Held { deadline, renewal, token, .. } = &mut this.state else { return };
        let Some(renewing) = renewal.as_mut().filter(|renewing| renewing.began == sent_at) else { return };
        match vote {
            Vote::Yes(_) if counts => renewing.tally.reply(node, Extension::Extended(*token)),
            Vote::No => {
                renewing.tally.reply(node, Extension::Absent);
                renewing.absent.push(node);
            }
            Vote::Marked => renewing.tally.reply(node, Extension::Marked),
            _ => {}
        }
        match renewing.tally.outcome() {
            Some(Renewed::Extended(_)) => {
                let broken =
                    self.breaks.iter().find(|known| known.number == *token).and_then(|known| known.succeeded);
                if broken.is_some_and(|at| renewing.began > at) {
                    self.violations.push(format!("extended after the break: {token}"));
                }
                *deadline = (*deadline).max(renewing.began + TTL - MARGIN);
                this.renewals += 1;
                let (number, absent) = (*token, std::mem::take(&mut renewing.absent));
                *renewal = None;
                for node in absent {
                    let restores = Call::Renew { id, number, restores: true };
                    // Planted: it is not recorded that this server may have a vote again.
                    let sent = if self.rules.forgets_restored {
                        None
                    } else {
                        self.clients[client].proposals.on_send(request, node, number)
                    };
                    self.send(client, node, restores, sent);
                }
            }
            Some(Renewed::Lost) => self.stop(client),
            None => {}
        }
    }

    /// Withdraws the proposal, which has failed. Another one may follow.
    fn fail_proposal(&mut self, client: usize) {
        let now = self.now;
        let this = &mut self.clients[client];
        let request = this.request();
        if self.rules.withdraws {
            this.proposals.withdraw(request, at(now + 100 * TTL));
        }
        if self.random.percent(60) {
            self.clients[client].retries += 1;
            self.withdraw(client);
            self.propose(client);
        } else {
            self.stop(client);
        }
    }

    /// Gives up or releases.
    pub(super) fn stop(&mut self, client: usize) {
        let now = self.now;
        if matches!(self.clients[client].state, State::Idle | State::Releasing(_)) {
            return;
        }
        self.section(client, Some(now));
        let this = &mut self.clients[client];
        let request = this.request();
        if !self.rules.withdraws && matches!(this.state, State::Claiming { .. }) {
            this.state = State::Idle;
            return;
        }
        let held = if let State::Held { token, .. } = this.state { token } else { 0 };
        this.proposals.release(request, at(now + 100 * TTL));
        this.state = State::Releasing(held);
        self.withdraw(client);
        self.check_release(client);
    }

    /// Sends the withdrawals of the current request.
    fn withdraw(&mut self, client: usize) {
        let (id, request) = (self.clients[client].id, self.clients[client].request());
        for node in 0..self.nodes.count() {
            self.withdraw_at(client, node, id, request);
        }
    }

    fn withdraw_at(&mut self, client: usize, node: usize, id: Id, request: RequestId) {
        let this = &mut self.clients[client];
        let Some(number) = this.proposals.withdrawal(request, node) else { return };
        // Those that were sent before have timed out.
        let late = this.pending.extract_if(.., |wait| (wait.0, wait.1) == (id, node)).collect::<Vec<_>>();
        for (_, _, number) in late {
            this.proposals.on_no_reply(request, node, number);
        }
        this.pending.push((id, node, number));
        // Planted: a server that cannot be reached counts as one that has confirmed.
        if self.rules.confirms_for_others && self.random.percent(30) {
            this.pending.pop();
            this.proposals.on_acknowledgement(request, node, number, true, false, "");
        }
        self.send(client, node, Call::Release { id, number }, None);
    }

    /// Breaks the lock of a random holder.
    pub(super) fn break_lock(&mut self) {
        let client = self.random.index(self.clients.len());
        let State::Held { token: number, .. } = self.clients[client].state else { return };
        if !self.breaks.iter().any(|known| known.number == number) {
            self.breaks.push(Break {
                number,
                marked: HashSet::new(),
                replied: HashSet::new(),
                succeeded: None,
            });
        }
        for node in 0..self.nodes.count() {
            self.send(client, node, Call::Break { number }, None);
        }
    }

    fn break_reply(&mut self, number: i64, node: usize, vote: Vote) {
        let (now, quorum) = (self.now, quorum(self.nodes.count()));
        let Some(known) = self.breaks.iter_mut().find(|known| known.number == number) else { return };
        known.replied.insert(node);
        if matches!(vote, Vote::Yes(_)) {
            known.marked.insert(node);
        }
        if known.replied.len() >= quorum && !known.marked.is_empty() {
            known.succeeded.get_or_insert(now);
        }
    }

    /// Checks the outcome of the release as soon as it is known.
    fn check_release(&mut self, client: usize) {
        let quorum = quorum(self.nodes.count());
        let this = &mut self.clients[client];
        let request = this.request();
        let State::Releasing(held) = this.state else { return };
        let Some(outcome) = this.proposals.finish(request) else { return };
        this.state = State::Idle;
        let id = this.id;
        let left = self.nodes.locked(Some(id));
        if outcome == Outcome::Released && self.nodes.count() - left < quorum {
            self.violations.push(format!("released too early: {left} servers have a vote"));
        }
        let removals = self.removals.iter().filter(|(of, _, number)| *of == id && *number >= held);
        let removed = removals.map(|(_, node, _)| node).collect::<HashSet<_>>().len();
        if matches!(outcome, Outcome::Lost(_)) && removed >= quorum {
            self.violations.push(format!("lost for nothing: {removed} servers had a vote until the release"));
        }
    }

    /// Repeats the withdrawals that servers have not acknowledged, of all requests.
    pub(super) fn repeat_withdrawals(&mut self, client: usize) {
        for node in 0..self.nodes.count() {
            for (request, _) in self.clients[client].proposals.unacknowledged(node, at(self.now)) {
                self.withdraw_at(client, node, request.to_bytes(), request);
            }
        }
    }

    /// Stops the clients whose deadline has been reached.
    pub(super) fn deadlines(&mut self) {
        for client in 0..self.clients.len() {
            if let State::Held { deadline, .. } = self.clients[client].state
                && deadline <= self.now
            {
                self.stop(client);
            }
        }
    }

    /// Returns the part of a message from which `node` determines if its votes count.
    pub(super) fn membership_args(&mut self, client: usize, node: usize) -> MembershipArgs {
        if self.rules.trusts {
            return MembershipArgs::default();
        }
        let run = self.nodes.run(node);
        let fresh = format!("{:016x}", self.random.next());
        let observed = self.clients[client].membership[node].argument(&run, &fresh, DELAY, at(self.now));
        MembershipArgs { run, observed }
    }
}

impl Client {
    /// Returns the greatest number of a request.
    pub(super) fn number_of(&self, id: Id) -> i64 {
        if id == self.id { self.number } else { self.proposals.withdrawn(RequestId::from_bytes(id)) }
    }
}
