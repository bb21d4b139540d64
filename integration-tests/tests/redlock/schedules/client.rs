//! The clients of a schedule: the rules of `redlock/backend.rs`, one step at a time.

use super::{Call, Message, Schedule, TTL, Vote, node::Id};

/// By how much less than a lease a client counts on.
const MARGIN: u64 = 10;

/// One client.
#[derive(Debug)]
pub(super) struct Client {
    pub(super) state: State,
    me: u8,
    requests: u64,
    /// The greatest number proposed or heard of.
    last: u64,
    /// The request under way, the greatest number proposed for it, and the greatest that was taken back.
    id: Id,
    number: u64,
    undone: u64,
    /// Which nodes have yet to give back their votes, for which request and number.
    owed: Vec<(Id, u64, Vec<usize>)>,
    pub(super) renewals: u64,
    pub(super) retries: u64,
}

#[derive(Debug, Clone)]
pub(super) enum State {
    Idle,
    Asks {
        invoked: u64,
        began: u64,
        /// The tokens of the votes, by node.
        yes: Vec<(usize, u64)>,
        no: usize,
    },
    Holds {
        invoked: u64,
        acquired: u64,
        token: u64,
        deadline: u64,
        /// When a renewal began, and which nodes have agreed and which have not.
        renews: Option<(u64, Vec<usize>, Vec<usize>)>,
    },
}

impl Client {
    pub(super) fn new(me: usize) -> Self {
        Self {
            state: State::Idle,
            me: u8::try_from(me).unwrap(),
            requests: 0,
            last: 0,
            id: [0; 16],
            number: 0,
            undone: 0,
            owed: Vec::new(),
            renewals: 0,
            retries: 0,
        }
    }
}

impl Schedule<'_> {
    /// `client` does something of its own.
    pub(super) fn act(&mut self, client: usize) {
        match &self.clients[client].state {
            State::Idle if self.random.percent(30) => self.ask_back(client),
            State::Idle => {
                let one = &mut self.clients[client];
                one.requests += 1;
                one.id = [one.me; 16];
                one.id[..8].copy_from_slice(&one.requests.to_be_bytes());
                (one.number, one.undone) = (0, 0);
                self.propose(client, self.now);
            }
            // Its time for the answers is up.
            State::Asks { .. } if self.random.percent(10) => self.fails(client),
            State::Asks { .. } => {}
            State::Holds { .. } if self.random.percent(30) => self.stop(client),
            State::Holds { .. } => self.renew(client),
        }
    }

    fn propose(&mut self, client: usize, invoked: u64) {
        // Clocks differ a little.
        let clock = self.now - self.random.below(20);
        let one = &mut self.clients[client];
        one.last = clock.max(one.last + 2);
        one.number = one.last;
        one.state = State::Asks { invoked, began: self.now, yes: Vec::new(), no: 0 };
        let call = Call::Propose(one.id, one.number);
        self.send(client, call);
    }

    fn renew(&mut self, client: usize) {
        let now = self.now;
        let one = &mut self.clients[client];
        let State::Holds { renews, token, .. } = &mut one.state else { return };
        *renews = Some((now, Vec::new(), Vec::new()));
        let call = Call::Renew(one.id, *token, now);
        self.send(client, call);
    }

    pub(super) fn hear(&mut self, Message { client, node, call, .. }: Message, vote: Vote) {
        let (now, quorum, all, rules) = (self.now, self.nodes.quorum(), self.nodes.count(), self.rules);
        let one = &mut self.clients[client];
        match (call, &mut one.state) {
            (Call::Release(id, number), _) => {
                for (_, _, nodes) in one.owed.iter_mut().filter(|owed| (owed.0, owed.1) == (id, number)) {
                    nodes.retain(|owing| *owing != node);
                }
            }
            (Call::Propose(id, number), State::Asks { invoked, began, yes, no })
                if (id, number) == (one.id, one.number) =>
            {
                match vote {
                    Vote::Yes(token) if token > one.undone || !rules.skips_undone => {
                        if !yes.iter().any(|(voter, _)| *voter == node) {
                            yes.push((node, token));
                        }
                        let greatest = yes.iter().map(|(_, token)| *token).max().unwrap_or(token);
                        let token = if rules.counts { greatest } else { token };
                        let votes = yes.iter().filter(|(_, other)| *other == token || rules.counts).count();
                        if votes >= quorum && now < *began + TTL - MARGIN {
                            one.number = one.number.max(token);
                            one.state = State::Holds {
                                invoked: *invoked,
                                acquired: now,
                                token,
                                deadline: *began + TTL - MARGIN,
                                renews: None,
                            };
                        }
                        return;
                    }
                    Vote::Stale(last) => one.last = one.last.max(last),
                    _ => {}
                }
                *no += 1;
                if all < quorum + *no {
                    self.fails(client);
                }
            }
            (Call::Renew(id, number, of), State::Holds { deadline, renews, .. }) if id == one.id => {
                let Some((began, yes, no)) = renews.as_mut().filter(|(began, _, _)| *began == of) else {
                    return;
                };
                let said = if matches!(vote, Vote::Yes(_)) { &mut *yes } else { &mut *no };
                if !said.contains(&node) {
                    said.push(node);
                }
                if yes.len() >= quorum {
                    *deadline = (*deadline).max(*began + TTL - MARGIN);
                    one.renewals += 1;
                    let call = Call::BringBack(id, number);
                    let back = no.drain(..).map(|node| Message { client, node, call, answer: None });
                    self.net.extend(back);
                    *renews = None;
                }
            }
            _ => {}
        }
    }

    /// The proposal has failed; all take it back. Perhaps it is tried again.
    fn fails(&mut self, client: usize) {
        let now = self.now;
        let State::Asks { invoked, began, yes, no } = self.clients[client].state.clone() else { return };
        // Planted: those that do not answer do not count.
        let most = yes.len() > no && now < began + TTL - MARGIN;
        if let (false, true, Some((_, token))) = (self.rules.of_all, most, yes.first()) {
            let (token, deadline) = (*token, began + TTL - MARGIN);
            self.clients[client].state =
                State::Holds { invoked, acquired: now, token, deadline, renews: None };
            return;
        }
        self.stop(client);
        if self.random.percent(60) {
            self.clients[client].retries += 1;
            self.propose(client, invoked);
        }
    }

    /// Gives up or releases.
    pub(super) fn stop(&mut self, client: usize) {
        let now = self.now;
        let failed = matches!(self.clients[client].state, State::Asks { .. });
        if matches!(self.clients[client].state, State::Idle) {
            return;
        }
        self.section(client, Some(now));
        let all = (0..self.nodes.count()).collect();
        let one = &mut self.clients[client];
        one.state = State::Idle;
        one.undone = one.number;
        if failed && !self.rules.undoes {
            return;
        }
        // What was owed for a smaller number is owed for this one.
        one.owed.retain(|(id, _, _)| *id != one.id);
        one.owed.push((one.id, one.number, all));
        let call = Call::Release(one.id, one.number);
        self.send(client, call);
    }

    /// Asks those who owe a vote once more.
    pub(super) fn ask_back(&mut self, client: usize) {
        self.clients[client].owed.retain(|(_, _, nodes)| !nodes.is_empty());
        for (id, number, nodes) in self.clients[client].owed.clone() {
            let call = Call::Release(id, number);
            self.net.extend(nodes.into_iter().map(|node| Message { client, node, call, answer: None }));
        }
    }

    /// Whose time is up holds no more, and gives back what is left.
    pub(super) fn deadlines(&mut self) {
        for client in 0..self.clients.len() {
            if let State::Holds { deadline, .. } = self.clients[client].state
                && deadline <= self.now
            {
                self.stop(client);
            }
        }
    }
}
