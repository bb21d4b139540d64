//! The clients of a schedule: the store's own state machines, driven one event at a time by the rules of `redlock/backend.rs`.

use std::{collections::HashSet, time::Duration};

use polylock_core::{LockName, Moment, RequestId};

use super::{
    Message, Schedule,
    membership::{Membership, Observed},
    node::{Answer, Call, Id, Member, TTL, Vote},
    proposals::{Definite, Outcome, Proposals},
    tally::{Ballot, Extension, Renewals, Renewed, quorum},
};

/// By how much less than a lease a client counts on.
const MARGIN: u64 = 10;

/// For how long the votes of a server that has forgotten do not count.
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
    me: u8,
    requests: u64,
    /// The greatest number proposed or received.
    last: i64,
    /// The request under way, and the greatest number proposed for it.
    pub(super) id: Id,
    number: i64,
    /// When the first claim of the request was invoked.
    invoked: u64,
    /// By server, the withdrawals that were sent and are not answered; a later one of the same request takes their place.
    waits: Vec<(Id, usize, i64)>,
    pub(super) renewals: u64,
    pub(super) retries: u64,
}

#[derive(Debug)]
pub(super) enum State {
    Idle,
    Claims {
        began: u64,
        ballot: Ballot,
    },
    Holds {
        acquired: u64,
        token: i64,
        deadline: u64,
        renews: Option<Renewing>,
    },
    /// It releases the token that it held, or 0, and waits for the outcome.
    Releases(i64),
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
    pub(super) fn new(me: usize, nodes: usize) -> Self {
        Self {
            state: State::Idle,
            proposals: Proposals::new(nodes),
            membership: (0..nodes).map(|_| Membership::default()).collect(),
            me: u8::try_from(me).unwrap(),
            requests: 0,
            last: 0,
            id: [0; 16],
            number: 0,
            invoked: 0,
            waits: Vec::new(),
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
    /// `client` does something of its own.
    pub(super) fn act(&mut self, client: usize) {
        match self.clients[client].state {
            State::Idle if self.random.percent(30) => self.repeat_withdrawals(client),
            State::Idle => {
                let now = self.now;
                let one = &mut self.clients[client];
                one.requests += 1;
                one.id = [one.me; 16];
                one.id[..8].copy_from_slice(&one.requests.to_be_bytes());
                one.invoked = now;
                self.propose(client);
            }
            // Its time for the replies is up.
            State::Claims { .. } if self.random.percent(10) => self.fails(client),
            State::Claims { .. } => {}
            State::Holds { .. } if self.random.percent(30) => self.stop(client),
            State::Holds { .. } => self.renew(client),
            // The release is tried again.
            State::Releases(_) => self.withdraw(client),
        }
    }

    fn propose(&mut self, client: usize) {
        // Clocks differ a little.
        let clock = i64::try_from(self.now - self.random.below(20)).unwrap();
        let (now, until) = (at(self.now), at(self.now + 100 * TTL));
        let one = &mut self.clients[client];
        one.last = clock.max(one.last + 2);
        one.number = one.last;
        let (id, number, request) = (one.id, one.number, one.request());
        let name = LockName::new("name").unwrap();
        let withdrawn = one.proposals.propose(request, &name, number, now, until);
        one.state = State::Claims { began: self.now, ballot: Ballot::new(self.nodes.count()) };
        for node in 0..self.nodes.count() {
            let sent = self.clients[client].proposals.sends(request, node, number);
            assert!(sent.is_some(), "a new number is live");
            self.send(client, node, Call::Propose { id, number, withdrawn }, sent);
        }
    }

    fn renew(&mut self, client: usize) {
        let (now, nodes) = (self.now, self.nodes.count());
        let id = self.clients[client].id;
        let State::Holds { renews, token, .. } = &mut self.clients[client].state else { return };
        *renews = Some(Renewing { began: now, tally: Renewals::new(nodes), absent: Vec::new() });
        let call = Call::Renew { id, number: *token, restores: false };
        for node in 0..nodes {
            self.send(client, node, call, None);
        }
    }

    /// A reply has arrived.
    pub(super) fn receive(&mut self, message: Message, answer: &Answer) {
        let Message { client, node, call, sent, run, sent_at, .. } = message;
        let rules = self.rules;
        let one = &mut self.clients[client];
        let mut counts = true;
        if matches!(call, Call::Propose { .. } | Call::Renew { .. }) {
            let observed = one.membership[node].observe(&run, &answer.membership, at(self.now));
            counts = observed == Observed::Counts || rules.ignores_membership;
        }
        if let Some(sent) = sent {
            match answer.vote {
                Vote::Yes(number) => one.proposals.replied(sent, Definite::Voted(number)),
                // A message that is repeated may be carried out again later.
                _ if !message.is_repeated => one.proposals.replied(sent, Definite::Refused),
                _ => {}
            }
        }
        match call {
            Call::Propose { id, number, .. } if (id, number) == (one.id, one.number) => {
                self.claim_reply(client, node, answer.vote, counts);
            }
            Call::Renew { id, restores: false, .. } if id == one.id => {
                self.renewal_reply(client, node, sent_at, answer.vote, counts);
            }
            Call::Release { id, number } => {
                // A reply after the time-out is not seen.
                let wait = (id, node, number);
                let before = one.waits.len();
                one.waits.retain(|waits| *waits != wait);
                if one.waits.len() < before {
                    let removed = matches!(answer.vote, Vote::Yes(_));
                    let (request, repeated) = (RequestId::from_bytes(id), message.is_repeated);
                    one.proposals.acknowledged(request, node, number, removed, repeated, "");
                }
                self.released(client);
            }
            Call::Break { number } => self.break_reply(number, node, answer.vote),
            _ => {}
        }
    }

    fn claim_reply(&mut self, client: usize, node: usize, vote: Vote, counts: bool) {
        let now = self.now;
        let one = &mut self.clients[client];
        let State::Claims { began, ballot } = &mut one.state else { return };
        match vote {
            Vote::Yes(number) if counts => ballot.vote(node, number),
            vote => {
                if let Vote::Stale(last) = vote {
                    one.last = one.last.max(last);
                }
                ballot.other(node);
            }
        }
        let elected = ballot.elected().filter(|_| now < *began + TTL - MARGIN);
        let (deadline, decided) = (*began + TTL - MARGIN, ballot.is_decided());
        let request = one.request();
        if let Some(token) = elected
            && one.proposals.grant(request, token, at(now + 100 * TTL))
        {
            one.state = State::Holds { acquired: now, token, deadline, renews: None };
        } else if decided {
            self.fails(client);
        }
    }

    fn renewal_reply(&mut self, client: usize, node: usize, sent_at: u64, vote: Vote, counts: bool) {
        let one = &mut self.clients[client];
        let (id, request) = (one.id, one.request());
        let State::Holds { deadline, renews, token, .. } = &mut one.state else { return };
        let Some(renewing) = renews.as_mut().filter(|renewing| renewing.began == sent_at) else { return };
        match vote {
            Vote::Yes(_) if counts => renewing.tally.reply(node, Extension::Extended),
            Vote::No => {
                renewing.tally.reply(node, Extension::Absent);
                renewing.absent.push(node);
            }
            Vote::Marked => renewing.tally.reply(node, Extension::Marked),
            _ => {}
        }
        match renewing.tally.outcome() {
            Some(Renewed::Extended) => {
                let broken =
                    self.breaks.iter().find(|one| one.number == *token).and_then(|one| one.succeeded);
                if broken.is_some_and(|at| renewing.began > at) {
                    self.wrong.push(format!("extended after the break: {token}"));
                }
                *deadline = (*deadline).max(renewing.began + TTL - MARGIN);
                one.renewals += 1;
                let (number, absent) = (*token, std::mem::take(&mut renewing.absent));
                *renews = None;
                for node in absent {
                    let restores = Call::Renew { id, number, restores: true };
                    // Planted: it is not recorded that this server may have a vote again.
                    let sent = if self.rules.forgets_restored {
                        None
                    } else {
                        self.clients[client].proposals.sends(request, node, number)
                    };
                    self.send(client, node, restores, sent);
                }
            }
            Some(Renewed::Lost) => self.stop(client),
            None => {}
        }
    }

    /// The proposal has failed and is withdrawn. Perhaps another one follows.
    fn fails(&mut self, client: usize) {
        let now = self.now;
        let one = &mut self.clients[client];
        let request = one.request();
        if self.rules.withdraws {
            one.proposals.withdraw(request, at(now + 100 * TTL));
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
        if matches!(self.clients[client].state, State::Idle | State::Releases(_)) {
            return;
        }
        self.section(client, Some(now));
        let one = &mut self.clients[client];
        let request = one.request();
        if !self.rules.withdraws && matches!(one.state, State::Claims { .. }) {
            one.state = State::Idle;
            return;
        }
        let held = if let State::Holds { token, .. } = one.state { token } else { 0 };
        one.proposals.release(request, at(now + 100 * TTL));
        one.state = State::Releases(held);
        self.withdraw(client);
        self.released(client);
    }

    /// Sends the withdrawals that the current request owes.
    fn withdraw(&mut self, client: usize) {
        let (id, request) = (self.clients[client].id, self.clients[client].request());
        for node in 0..self.nodes.count() {
            self.withdraw_at(client, node, id, request);
        }
    }

    fn withdraw_at(&mut self, client: usize, node: usize, id: Id, request: RequestId) {
        let one = &mut self.clients[client];
        let Some(number) = one.proposals.withdrawal(request, node) else { return };
        // Those that were sent before have timed out.
        let late = one.waits.extract_if(.., |wait| (wait.0, wait.1) == (id, node)).collect::<Vec<_>>();
        for (_, _, number) in late {
            one.proposals.unanswered(request, node, number);
        }
        one.waits.push((id, node, number));
        // Planted: a server that cannot be reached counts as one that has confirmed.
        if self.rules.confirms_for_others && self.random.percent(30) {
            one.waits.pop();
            one.proposals.acknowledged(request, node, number, true, false, "");
        }
        self.send(client, node, Call::Release { id, number }, None);
    }

    /// Somebody breaks the lock of a holder.
    pub(super) fn break_lock(&mut self) {
        let client = self.random.index(self.clients.len());
        let State::Holds { token: number, .. } = self.clients[client].state else { return };
        if !self.breaks.iter().any(|one| one.number == number) {
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
        let Some(one) = self.breaks.iter_mut().find(|one| one.number == number) else { return };
        one.replied.insert(node);
        if matches!(vote, Vote::Yes(_)) {
            one.marked.insert(node);
        }
        if one.replied.len() >= quorum && !one.marked.is_empty() {
            one.succeeded.get_or_insert(now);
        }
    }

    /// Looks whether the outcome of the release is known.
    fn released(&mut self, client: usize) {
        let quorum = quorum(self.nodes.count());
        let one = &mut self.clients[client];
        let request = one.request();
        let State::Releases(held) = one.state else { return };
        let Some(outcome) = one.proposals.finish(request) else { return };
        one.state = State::Idle;
        let id = one.id;
        let left = self.nodes.locked(Some(id));
        if outcome == Outcome::Released && self.nodes.count() - left < quorum {
            self.wrong.push(format!("released too early: {left} servers have a vote"));
        }
        let removals = self.removals.iter().filter(|(of, _, number)| *of == id && *number >= held);
        let removed = removals.map(|(_, node, _)| node).collect::<HashSet<_>>().len();
        if matches!(outcome, Outcome::Lost(_)) && removed >= quorum {
            self.wrong.push(format!("lost for nothing: {removed} servers had a vote until the release"));
        }
    }

    /// Repeats the withdrawals that servers have not acknowledged, of all requests.
    pub(super) fn repeat_withdrawals(&mut self, client: usize) {
        for node in 0..self.nodes.count() {
            for (request, _) in self.clients[client].proposals.owed(node, at(self.now)) {
                self.withdraw_at(client, node, request.to_bytes(), request);
            }
        }
    }

    /// A client whose deadline has come holds no more, and releases.
    pub(super) fn deadlines(&mut self) {
        for client in 0..self.clients.len() {
            if let State::Holds { deadline, .. } = self.clients[client].state
                && deadline <= self.now
            {
                self.stop(client);
            }
        }
    }

    /// The part of a message by which `node` knows whether its votes count.
    pub(super) fn member(&mut self, client: usize, node: usize) -> Member {
        if self.rules.trusts {
            return Member::default();
        }
        let run = self.nodes.run(node);
        let fresh = format!("{:016x}", self.random.next());
        let observed = self.clients[client].membership[node].argument(&run, &fresh, DELAY, at(self.now));
        Member { run, observed }
    }
}

impl Client {
    /// The greatest number of a request by now.
    pub(super) fn number_of(&self, id: Id) -> i64 {
        if id == self.id { self.number } else { self.proposals.withdrawn(RequestId::from_bytes(id)) }
    }
}
