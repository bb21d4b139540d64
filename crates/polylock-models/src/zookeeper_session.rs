//! ZooKeeper: the packets that prove how long the servers keep a session.
//!
//! Modelled: the session's table at the leader, which learns of packets at a follower only by the replies to its pings; a client that sends
//! `sync`s and a transaction to the leader or to a follower, and that moves to another server; messages that are late on every connection,
//! or lost with it, because a follower dies or can't reach its leader; a leader that the majority has left, and its successor, which begins
//! all timeouts anew. The client's record of packets is the store's own. The moment that it returns is later than the deadline of any hold.
//!
//! A session ends one timeout after the last packet that the leader knows of, and the next request holds the lock then. A client whose
//! record returns a later moment may count as a holder at the same time: it is sufficient that the leader learns of no more packets. So
//! the model ends before the session does. The leader may run a twelfth faster than the client, which the record leaves.
//!
//! Assumed: the leader sends its pings in time, before other messages. The twin `OverduePing` shows what may happen after a leader was
//! stopped for longer than half a tick: it replies to a `sync` before the overdue ping, and the follower dies before the next one.
//!
//! Abstracted away: nodes, the time that a move takes, other packets of the client, and the acknowledgements of the majority, which come
//! with a transaction or never. If the leader learns of a packet late in the run, the rest is like an earlier run.
//!
//! It mirrors `lifetime.rs` and `session.rs` of `polylock-zookeeper`, and uses its `proof.rs`.

#[path = "../../polylock-zookeeper/src/proof.rs"]
mod proof;

use polylock_core::{Mode, invariant};
use stateright::{Model, Property};

use crate::{
    check::Protocol,
    time::{at, ticks},
};
use proof::Proof;

/// The timeout of the session, in ticks.
const TIMEOUT: u8 = 8;
/// The longest time between two pings.
const HALF_TICK: u8 = TIMEOUT / 4;
/// The last tick.
const END: u8 = 5;
/// The last tick in which the leader learns of a packet. After a later one, there is no time for a longer lease.
const LAST_KNOWN: u8 = END - HALF_TICK - 1;

/// A planted bug.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bug {
    /// The reply to a read renews a lease.
    ReadRenews,
    /// A `sync` counts without a transaction.
    SyncAlone,
    /// A transaction counts that was sent before the reply to the `sync`.
    TransactionBeforeReply,
    /// The first packet may be newer than half a tick.
    NewPacket,
    /// The time of a packet is that of its reply.
    TimeOfReply,
    /// The leader replies to a `sync` before a ping that is overdue.
    OverduePing,
    /// A successor counts the timeout from the opening of the session.
    OldTimeouts,
}

/// The events that may still happen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Budget {
    /// The packets before the transaction.
    queries: u8,
    transactions: u8,
    moves: u8,
}

/// The bounds of the exploration.
const BUDGET: Budget = Budget { queries: 2, transactions: 1, moves: 1 };

/// The kind of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// A read.
    Read,
    /// A `sync`.
    Sync,
    /// A transaction that changes nothing.
    Transaction,
}

/// A packet of the client, or its reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Packet {
    kind: Kind,
    sent: u8,
}

/// A message between the follower and its leader.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Message {
    /// A packet to the leader, or its reply.
    Forwarded(Packet),
    /// A ping of the leader.
    Ping,
    /// The reply to a ping: the follower has received packets of the session.
    Report,
}

/// The server that the client is connected to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Place {
    /// True if the server follows or is the successor.
    is_new: bool,
    is_leader: bool,
}

/// The connections of the client, each first in, first out.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Connection {
    place: Place,
    to_server: Vec<Packet>,
    to_client: Vec<Packet>,
    /// Between the follower and its leader.
    to_leader: Vec<Message>,
    to_follower: Vec<Message>,
    /// True if the follower has received a packet that it has not reported.
    is_touched: bool,
    /// The time until the leader's next ping; 0 for none.
    next_ping: u8,
}

impl Connection {
    fn new(place: Place, next_ping: u8) -> Self {
        Self {
            place,
            to_server: Vec::new(),
            to_client: Vec::new(),
            to_leader: Vec::new(),
            to_follower: Vec::new(),
            is_touched: false,
            next_ping,
        }
    }

    /// Returns the packets without a reply.
    fn packets(&self) -> impl Iterator<Item = Packet> {
        let forwarded = self.to_leader.iter().chain(&self.to_follower).filter_map(|message| match message {
            Message::Forwarded(packet) => Some(packet),
            Message::Ping | Message::Report => None,
        });
        self.to_server.iter().chain(&self.to_client).chain(forwarded).copied()
    }
}

/// A state of the model.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct State {
    now: u8,
    budget: Budget,
    /// True if the majority has left the first leader.
    has_successor: bool,
    /// The end of the session at the leader that counts: the successor, if there is one.
    expires: u8,
    connection: Connection,
    proof: Proof,
}

impl State {
    /// Returns true if the leader of the client's server has a majority.
    fn counts(&self) -> bool {
        self.connection.place.is_new == self.has_successor
    }

    /// Counts a packet at the leader of the client's server.
    fn touch(&mut self) {
        if self.counts() {
            self.expires = self.now + TIMEOUT;
        }
    }

    /// Removes what makes no difference any more: after the transaction, a packet only extends the session.
    fn normalize(&mut self) {
        let is_in_transit = self.connection.packets().any(|packet| packet.kind == Kind::Transaction);
        let is_over = self.budget.transactions == 0 && !is_in_transit;
        if is_over {
            self.connection = Connection::new(self.connection.place, 0);
            self.budget = Budget { queries: 0, transactions: 0, moves: 0 };
        }
    }

    /// Returns true if the client counts as a holder when the session ends, unless the leader learns of more packets before.
    fn outlives_its_session(&self) -> bool {
        at(self.expires) < self.proof.until()
    }
}

/// A step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// The client sends a packet.
    Send(Kind),
    /// The client's server receives a packet.
    Receive,
    /// The leader receives a message of the follower.
    Lead,
    /// The follower receives a message of the leader.
    Follow,
    /// The client receives a reply.
    Reply,
    /// The client's connection breaks, and the client moves to this server. The leader's next ping is so many ticks later.
    Move(Place, u8),
    /// The majority elects a successor of the leader.
    Elect,
    /// A tick passes.
    Tick,
}

/// The model.
#[derive(Debug)]
pub struct Session {
    bug: Option<Bug>,
}

impl Session {
    fn has(&self, bug: Bug) -> bool {
        self.bug == Some(bug)
    }

    /// Sends a ping if it is due, before the leader does anything else in this tick.
    fn ping(&self, connection: &mut Connection) {
        let is_due = connection.next_ping == 1;
        connection.next_ping = connection.next_ping.saturating_sub(1);
        if is_due && !self.has(Bug::OverduePing) {
            connection.next_ping = HALF_TICK;
            // Of two pings in a row, the second one reports what the first one does, at least.
            if connection.to_follower.last() != Some(&Message::Ping) {
                connection.to_follower.push(Message::Ping);
            }
        }
    }

    fn receive(state: &mut State) {
        let packet = state.connection.to_server.remove(0);
        if state.connection.place.is_leader {
            state.touch();
            state.connection.to_client.push(packet);
            return;
        }
        state.connection.is_touched = true;
        match packet.kind {
            Kind::Read => state.connection.to_client.push(packet),
            _ => state.connection.to_leader.push(Message::Forwarded(packet)),
        }
    }

    fn on_reply(&self, state: &mut State) {
        let Packet { kind, sent } = state.connection.to_client.remove(0);
        let now = at(state.now);
        let counted = if self.has(Bug::TimeOfReply) { now } else { at(sent) };
        match kind {
            Kind::Read if self.has(Bug::ReadRenews) => state.proof = Proof::new(ticks(TIMEOUT), counted, now),
            Kind::Read => {}
            Kind::Sync => {
                state.proof.synced(counted, now);
                if self.has(Bug::SyncAlone) {
                    state.proof.committed(now);
                }
            }
            Kind::Transaction if self.has(Bug::TransactionBeforeReply) => state.proof.committed(now),
            Kind::Transaction => state.proof.committed(at(sent)),
        }
    }

    fn apply(&self, state: &mut State, action: Action) {
        let now = state.now;
        match action {
            Action::Send(kind) => {
                let budget = match kind {
                    Kind::Transaction => &mut state.budget.transactions,
                    Kind::Read | Kind::Sync => &mut state.budget.queries,
                };
                *budget -= 1;
                state.connection.to_server.push(Packet { kind, sent: now });
            }
            Action::Receive => Self::receive(state),
            Action::Lead => match state.connection.to_leader.remove(0) {
                message @ Message::Forwarded(_) => state.connection.to_follower.push(message),
                _ => state.touch(),
            },
            Action::Follow => {
                let connection = &mut state.connection;
                match connection.to_follower.remove(0) {
                    Message::Forwarded(packet) => connection.to_client.push(packet),
                    _ if std::mem::take(&mut connection.is_touched) => {
                        connection.to_leader.push(Message::Report);
                    }
                    _ => {}
                }
            }
            Action::Reply => self.on_reply(state),
            Action::Move(place, next_ping) => {
                state.budget.moves -= 1;
                state.connection = Connection::new(place, next_ping);
                state.touch();
            }
            Action::Elect => {
                state.has_successor = true;
                state.expires = if self.has(Bug::OldTimeouts) { TIMEOUT } else { now + TIMEOUT };
            }
            Action::Tick => {
                state.now += 1;
                self.ping(&mut state.connection);
            }
        }
    }
}

impl Model for Session {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let mut proof = Proof::new(ticks(TIMEOUT), at(0), at(0));
        if self.has(Bug::NewPacket) {
            proof.half_tick = ticks(0);
        }
        let state = |(is_leader, next_ping)| State {
            now: 0,
            budget: BUDGET,
            has_successor: false,
            expires: TIMEOUT,
            connection: Connection::new(Place { is_new: false, is_leader }, next_ping),
            proof: proof.clone(),
        };
        [(true, 0), (false, 1), (false, HALF_TICK)].map(state).into()
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        let State { now, budget, connection, .. } = state;
        let is_follower = !connection.place.is_leader;
        if budget.queries > 0 {
            let kind = if self.has(Bug::ReadRenews) { Kind::Read } else { Kind::Sync };
            actions.push(Action::Send(kind));
        }
        if budget.transactions > 0 {
            actions.push(Action::Send(Kind::Transaction));
        }
        if budget.moves > 0 {
            for is_new in [false, true].into_iter().filter(|is_new| !is_new || state.has_successor) {
                actions.push(Action::Move(Place { is_new, is_leader: true }, 0));
                let place = Place { is_new, is_leader: false };
                actions.extend((1..=HALF_TICK).map(|next_ping| Action::Move(place, next_ping)));
            }
        }
        if !state.has_successor {
            actions.push(Action::Elect);
        }
        // A leader without a majority commits nothing.
        let can_lead = |packet: &Packet| packet.kind != Kind::Transaction || state.counts();
        if connection.to_server.first().is_some_and(|packet| is_follower || can_lead(packet)) {
            actions.push(Action::Receive);
        }
        match connection.to_leader.first() {
            Some(Message::Forwarded(packet)) if !can_lead(packet) => {}
            Some(_) => actions.push(Action::Lead),
            None => {}
        }
        if !connection.to_follower.is_empty() {
            actions.push(Action::Follow);
        }
        // The client's clock shows that the transaction was sent before the reply.
        let is_ambiguous =
            || connection.packets().any(|packet| packet.kind == Kind::Transaction && packet.sent == *now);
        if connection.to_client.first().is_some_and(|packet| packet.kind != Kind::Sync || !is_ambiguous()) {
            actions.push(Action::Reply);
        }
        if *now < END {
            actions.push(Action::Tick);
        }
    }

    fn next_state(&self, state: &State, action: Action) -> Option<State> {
        let mut next = state.clone();
        self.apply(&mut next, action);
        next.normalize();
        (next.expires <= LAST_KNOWN + TIMEOUT).then_some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("one holder at a time", |_, state: &State| {
                // The next request holds the lock when the session ends.
                let holders = [true, state.outlives_its_session()].into_iter().filter(|holds| *holds);
                invariant::holders_are_compatible(holders.map(|_| Mode::Exclusive))
            }),
            Property::sometimes("a follower proves a longer lease", |_, state: &State| {
                state.proof.until() > at(TIMEOUT) && !state.connection.place.is_leader
            }),
            Property::sometimes("a lease is proved after an election", |_, state: &State| {
                state.proof.until() > at(TIMEOUT) && state.has_successor
            }),
        ]
    }
}

impl Protocol for Session {
    const NAME: &'static str = "ZooKeeper session";
    const BOUNDS: &'static str =
        "a timeout of 8 ticks, 5 ticks; 2 packets before 1 transaction, 1 move, 1 election";
    type Bug = Bug;
    const TWINS: &'static [(Bug, &'static str)] = &[
        (Bug::ReadRenews, "one holder at a time"),
        (Bug::SyncAlone, "one holder at a time"),
        (Bug::TransactionBeforeReply, "one holder at a time"),
        (Bug::NewPacket, "one holder at a time"),
        (Bug::TimeOfReply, "one holder at a time"),
        (Bug::OverduePing, "one holder at a time"),
        (Bug::OldTimeouts, "one holder at a time"),
    ];

    fn new(bug: Option<Bug>) -> Self {
        Self { bug }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::check;

    #[test]
    fn a_lease_ends_before_its_session() {
        println!("{:#?}", check::<Session>());
    }
}
