//! Stores that hand a lock over: the release grants the lock to the next waiter, and notifies it.
//!
//! Modelled: the server's operations (`server.rs`), and the client, which is core's acquisition with the wake-up registry and the keeper.
//! A claim, a keep-alive or a release may be late, lost, or executed after its client has given it up. A notification may be late or lost,
//! a process may die or lose its connection, and time may pass between any two steps. One process has two of the three requests, and only
//! the first of its waiters claims again by itself.
//!
//! Abstracted away: renewals (a hold lasts one lease), breaks, tries, the cancellation during a claim (the model of core has it), and clocks that run differently.

mod bug;
mod server;
mod steps;

use std::marker::PhantomData;

use polylock_core::{FencingToken, Mode, invariant};
use stateright::{Model, Property};

use crate::{check::Protocol, numbers::close_gaps, time::is_before_deadline};
pub use bug::Bug;
use bug::{CLIENTS, MODES, PROCESS};
use server::{Clock, Kept, Kind, Notification, Reply, Server, are_compatible};

/// The time for which a claim is valid, in ticks.
const VALIDITY: u8 = 1;
/// The most ticks until all waiters hold the lock in turn, once there are no more faults.
const CALM: u8 = 12;

/// A store that hands a lock over.
pub trait Flavor: Send + Sync + 'static {
    /// True if an operation is a transaction, which may take time.
    const HAS_TRANSACTIONS: bool;
    /// The last tick.
    const END: u8;
    /// The greatest number of faults.
    const FAULTS: u8;
    /// The name of the model.
    const NAME: &'static str;
    /// The bounds of the exploration.
    const BOUNDS: &'static str;
    /// The planted bugs, each with the property that it violates.
    const TWINS: &'static [(Bug, &'static str)];
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
enum Stage {
    #[default]
    Idle,
    Claiming,
    Waiting,
    Held,
    Releasing,
    /// The release has been acknowledged, and is repeated once no claim is valid.
    Repeating,
    Ended,
    Dead,
}

/// A claim on its way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Message {
    Sent(Claim),
    Replied(Reply),
}

/// A claim as it was sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Claim {
    expires: u8,
    /// The token, if it is drawn too early.
    token: Option<u8>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct KeepAlive {
    sent: u8,
    outcome: Option<Kept>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Grant {
    token: u8,
    sent: u8,
    lease: u8,
}

impl Grant {
    fn is_live(self, now: u8) -> bool {
        is_before_deadline(now, self.sent, self.lease)
    }
}

/// A request and its client.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
struct Client {
    stage: Stage,
    /// The tick in which the last claim was sent.
    sent: u8,
    claim: Option<Message>,
    /// A claim that was given up, and may still be executed.
    late: Option<Claim>,
    /// The time until which a claim that was given up is valid, in the client's record.
    late_until: u8,
    /// The position of the last reply; 0 for none.
    position: u8,
    /// The last notification.
    kept: Option<Notification>,
    /// The tick of the last keep-alive that found the request in the queue.
    queued_at: u8,
    keep_alive: Option<KeepAlive>,
    /// The tick of the last message that has extended the entry.
    kept_at: u8,
    grant: Option<Grant>,
    /// True if a release is on its way.
    releases: bool,
    is_lost: bool,
    /// True if the request held the lock once.
    has_held: bool,
}

impl Client {
    /// Removes what makes no difference any more.
    fn normalize(&mut self) {
        let Self { stage, late, late_until, is_lost, has_held, releases, .. } = *self;
        match stage {
            Stage::Ended | Stage::Dead => {
                let late_until = if releases || late.is_some() { late_until } else { 0 };
                *self = Self { stage, late, late_until, is_lost, has_held, releases, ..Self::default() };
            }
            Stage::Releasing | Stage::Repeating => {
                *self = Self { stage, late, late_until, has_held, releases, ..Self::default() };
            }
            Stage::Held => (self.sent, self.queued_at) = (0, 0),
            _ => {}
        }
    }

    fn believes(&self, now: u8) -> bool {
        self.stage == Stage::Held && self.grant.is_some_and(|grant| grant.is_live(now))
    }

    fn waits(&self) -> bool {
        self.stage == Stage::Waiting || self.stage == Stage::Claiming && self.position > 0
    }

    fn begin_release(&mut self) {
        (self.stage, self.releases, self.kept) = (Stage::Releasing, true, None);
    }

    fn has_ended(&self) -> bool {
        matches!(self.stage, Stage::Idle | Stage::Ended | Stage::Dead)
    }
}

/// An operation that the server executes as a transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Operation {
    /// The claim of a request.
    Claim(usize),
    /// A claim that its client has given up.
    LateClaim(usize),
    /// The release of a request.
    Release(usize),
}

/// A state of the model.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct State {
    now: u8,
    faults: u8,
    server: Server,
    clients: [Client; CLIENTS],
    /// The waiters of the second process, in order.
    local: Vec<usize>,
    /// The transaction in progress, and its clock.
    transaction: Option<(Operation, u8)>,
    /// The greatest token of an exclusive and of a shared hold.
    last_tokens: [u8; 2],
    tokens_grow: bool,
    has_false_loss: bool,
}

impl State {
    /// Removes what makes no difference any more.
    fn normalize(&mut self) {
        let Self { server, clients, last_tokens, .. } = self;
        clients.iter_mut().for_each(Client::normalize);
        let mut numbers: Vec<&mut u8> = last_tokens.iter_mut().collect();
        for (client, notifications) in clients.iter_mut().zip(&mut server.notifications) {
            if !matches!(client.stage, Stage::Claiming | Stage::Waiting) {
                notifications.clear();
            }
            let claims = client.late.iter_mut().filter_map(|claim| claim.token.as_mut());
            numbers.extend(claims);
            numbers.push(&mut client.position);
            numbers.extend(client.grant.as_mut().map(|grant| &mut grant.token));
            match &mut client.claim {
                Some(Message::Sent(claim)) => numbers.extend(claim.token.as_mut()),
                Some(Message::Replied(Reply::Granted(number, _) | Reply::Queued(number))) => {
                    numbers.push(number);
                }
                _ => {}
            }
            let notifications = notifications.iter_mut().chain(&mut client.kept);
            numbers.extend(notifications.flat_map(|one| [&mut one.position, &mut one.token]));
        }
        numbers.extend([&mut server.last, &mut server.last_token]);
        numbers.extend(server.entries.iter_mut().flat_map(|entry| [&mut entry.number, &mut entry.token]));
        close_gaps(&mut numbers);
    }
}

/// A step. Numbers are those of requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// A request claims for the first time.
    Acquire(usize),
    /// The server begins an operation, and completes it if it needs no transaction.
    Execute(Operation),
    /// The server completes the transaction.
    Commit,
    /// The reply to the claim arrives.
    ClaimReply(usize),
    /// The client gives a claim up, and claims again.
    Retry(usize),
    /// The client gives a claim up, and releases the request.
    GiveUp(usize),
    /// A notification arrives; its number is that in the order of positions.
    Notify(usize, usize),
    /// A notification is lost.
    LoseNotification(usize),
    /// A waiter claims again.
    ClaimAgain(usize),
    /// The wait ends.
    TimeOut(usize),
    /// A keep-alive is sent.
    KeepAlive(usize),
    /// The server executes the keep-alive.
    ExecuteKeepAlive(usize),
    /// The reply to the keep-alive arrives.
    KeepAliveReply(usize),
    /// The keep-alive or its reply is lost.
    LoseKeepAlive(usize),
    /// The holder releases the lock.
    Release(usize),
    /// The deadline of the hold ends it.
    Lose(usize),
    /// The release is sent again, because no copy of a claim is valid any more.
    RepeatRelease(usize),
    /// A process dies.
    Die(usize),
    /// The server finds that the client of a process has gone.
    Disconnect(usize),
    /// A tick passes.
    Tick,
}

/// The model.
#[derive(Debug)]
pub struct Handover<F> {
    kind: Kind,
    flavor: PhantomData<F>,
}

impl<F: Flavor> Handover<F> {
    fn has(&self, bug: Bug) -> bool {
        self.kind.has(bug)
    }

    fn send_claim(&self, state: &mut State, request: usize) {
        let token = self.has(Bug::TokenBeforeRegion).then(|| state.server.draw());
        let client = &mut state.clients[request];
        (client.stage, client.sent) = (Stage::Claiming, state.now);
        client.kept_at = state.now;
        client.claim = Some(Message::Sent(Claim { expires: state.now + VALIDITY, token }));
    }

    /// Gives the claim of `request` up.
    fn abandon_claim(&self, state: &mut State, request: usize) {
        state.faults += 1;
        let client = &mut state.clients[request];
        client.late_until = client.sent + VALIDITY;
        if let Some(Message::Sent(claim)) = client.claim.take() {
            match &mut state.transaction {
                Some((operation, _)) if *operation == Operation::Claim(request) => {
                    *operation = Operation::LateClaim(request);
                }
                _ => client.late = Some(claim),
            }
        }
    }

    fn hold(&self, state: &mut State, request: usize, grant: Grant) {
        let is_shared = MODES[request] == Mode::Shared;
        let grows = |earlier: u8| {
            let [earlier, later] = [earlier, grant.token].map(FencingToken::new);
            earlier.zip(later).is_some_and(|(earlier, later)| invariant::token_grows(earlier, later))
        };
        let [exclusive, shared] = &mut state.last_tokens;
        state.tokens_grow &= grows(*exclusive) && (is_shared || grows(*shared));
        let last = if is_shared { shared } else { exclusive };
        *last = grant.token.max(*last);
        let client = &mut state.clients[request];
        (client.stage, client.grant, client.kept) = (Stage::Held, Some(grant), None);
        client.has_held = true;
        client.position = 0;
        state.local.retain(|waiter| *waiter != request);
    }

    fn release(&self, state: &mut State, request: usize) {
        state.clients[request].begin_release();
        state.local.retain(|waiter| *waiter != request);
    }

    fn on_claim_reply(&self, state: &mut State, request: usize) {
        let now = state.now;
        let client = &mut state.clients[request];
        let Some(Message::Replied(reply)) = client.claim.take() else { return };
        match reply {
            Reply::Granted(token, lease) => {
                let grant = Grant { token, sent: client.sent, lease };
                if grant.is_live(now) {
                    self.hold(state, request, grant);
                } else {
                    self.send_claim(state, request);
                }
            }
            Reply::Queued(position) => {
                (client.stage, client.position) = (Stage::Waiting, position);
                if PROCESS[request] == 1 && !state.local.contains(&request) {
                    state.local.push(request);
                }
                self.on_wake(state, request);
            }
            Reply::Expired => self.send_claim(state, request),
        }
    }

    fn on_wake(&self, state: &mut State, request: usize) {
        let now = state.now;
        let client = &mut state.clients[request];
        let Some(Notification { position, token, lease }) = client.kept.take() else { return };
        let mut sent = client.sent.max(client.queued_at);
        if self.has(Bug::LeaseFromNotification) {
            sent = now;
        }
        let grant = Grant { token, sent, lease };
        let is_valid = position == client.position || self.has(Bug::StaleNotification);
        if is_valid && grant.is_live(now) {
            self.hold(state, request, grant);
        } else {
            self.send_claim(state, request);
        }
    }

    fn on_keep_alive_reply(&self, state: &mut State, request: usize) {
        let now = state.now;
        let client = &mut state.clients[request];
        let Some(KeepAlive { sent, outcome: Some(outcome) }) = client.keep_alive.take() else { return };
        if client.waits() {
            match outcome {
                Kept::Queued => client.queued_at = client.queued_at.max(sent),
                Kept::Held | Kept::Gone if client.stage == Stage::Waiting => self.send_claim(state, request),
                // The claim under way shows which of the two applies.
                Kept::Held | Kept::Gone => {}
            }
            return;
        }
        if client.believes(now) && outcome != Kept::Held && self.has(Bug::LateReplyEndsHold) {
            (client.stage, client.is_lost) = (Stage::Ended, true);
            state.has_false_loss |= state.server.holds(request, now);
        }
    }

    fn execute(&self, state: &mut State, operation: Operation) {
        let (Operation::Claim(request) | Operation::LateClaim(request) | Operation::Release(request)) =
            operation;
        if self.kind.has_transactions {
            let sent = state.clients[request].sent;
            let clock = if self.has(Bug::ClockBeforeRegion) { sent } else { state.now };
            state.transaction = Some((operation, clock));
        } else {
            self.commit(state, operation, state.now);
        }
    }

    fn commit(&self, state: &mut State, operation: Operation, read: u8) {
        let State { server, clients, now, .. } = state;
        let clock = Clock { read, now: *now };
        match operation {
            Operation::Claim(request) => {
                server.is_connected[PROCESS[request]] = true;
                let client = &mut clients[request];
                let Some(Message::Sent(claim)) = client.claim else { return };
                let reply = server.claim(request, claim.expires, claim.token, clock, self.kind);
                client.claim = Some(Message::Replied(reply));
            }
            Operation::LateClaim(request) => {
                let client = &mut clients[request];
                let claim = client.late.take();
                let expires = claim.map_or(client.late_until, |claim| claim.expires);
                server.claim(request, expires, claim.and_then(|claim| claim.token), clock, self.kind);
            }
            Operation::Release(request) => {
                let client = &mut clients[request];
                server.release(request, client.late_until, clock, self.kind);
                self.on_release_reply(client);
            }
        }
    }

    fn on_release_reply(&self, client: &mut Client) {
        client.releases = false;
        if client.stage == Stage::Dead {
            return;
        }
        let may_be_late = client.late_until > 0 && client.stage == Stage::Releasing;
        let repeats = self.kind.has_transactions && may_be_late && !self.has(Bug::ReleaseNotRepeated);
        client.stage = if repeats { Stage::Repeating } else { Stage::Ended };
    }

    fn die(&self, state: &mut State, process: usize) {
        state.faults += 1;
        for request in (0..CLIENTS).filter(|request| PROCESS[*request] == process) {
            let client = state.clients[request];
            if client.has_ended() {
                continue;
            }
            if matches!(client.claim, Some(Message::Sent(_))) {
                self.abandon_claim(state, request);
                state.faults -= 1;
            }
            let client = &mut state.clients[request];
            let Client { late, late_until, releases, .. } = *client;
            *client = Client { stage: Stage::Dead, late, late_until, releases, ..Client::default() };
            state.server.notifications[request].clear();
            state.local.retain(|waiter| *waiter != request);
        }
    }
}
