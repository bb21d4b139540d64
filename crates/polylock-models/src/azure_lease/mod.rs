//! Azure: the lease of a blob, and the token in its metadata.
//!
//! Modelled: acquisitions with an id of the request's own, the read and the conditional write of the grant under the lease, renewals,
//! releases, and breaks with and without force; any of these messages lost, late, or executed after its client has given it up; copies of
//! acquisitions and releases that were sent twice; the clean-up after an unanswered acquisition; the token that a process caches; and a
//! process that dies. The client's record of the lease is the store's own.
//!
//! Assumed: a copy of an acquisition arrives within the time that the clean-up lasts (the twin `VeryLate` has one that does not). A hold
//! that was broken by force is no error beside another one. If a copy of its acquisition arrives after the break, its release succeeds.
//!
//! Abstracted away: the queue of a process and fairness between processes (a request may claim at any time), notices of breaks, the
//! deletion of blobs, pauses that the service requests, leases of different durations, and clocks that run differently.
//!
//! It mirrors `grants.rs`, `backend.rs` and `breaks.rs` of `polylock-azure`, and uses its `lease_record.rs`.

mod blob;
mod bug;
#[path = "../../../polylock-azure/src/lease_record.rs"]
mod lease_record;
mod steps;

use polylock_core::{FencingToken, Mode, invariant};
use stateright::{Model, Property};

use crate::{
    check::Protocol,
    numbers::close_gaps,
    time::{at, is_before_deadline, ticks},
};
use blob::{Blob, Record, Reply, TTL};
pub use bug::Bug;
use bug::{PROCESS, REQUESTS};
use lease_record::LeaseRecord;

/// The time within which a copy of an acquisition arrives, in ticks.
const MAX_DELAY: u8 = 1;
/// The last tick.
const END: u8 = 2;

/// The events that may still happen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Budget {
    requests: usize,
    faults: u8,
    breaks: u8,
}

/// The bounds of the explorations.
const BUDGETS: [Budget; 2] =
    [Budget { requests: 3, faults: 1, breaks: 0 }, Budget { requests: 2, faults: 1, breaks: 1 }];

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
enum Stage {
    #[default]
    Idle,
    Claiming,
    /// The last claim was refused, or has failed.
    Between,
    Held,
    Releasing,
    Ended,
    Dead,
}

/// An operation of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Operation {
    Acquire,
    Read,
    Write {
        before: u8,
        token: u8,
    },
    /// Releases the request's own broken lease, to acquire a new one.
    ReleaseBroken,
    Release,
}

/// The operation that the client waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Call {
    operation: Operation,
    reply: Option<Reply>,
    /// True if another copy was sent before.
    was_resent: bool,
}

impl Call {
    fn new(operation: Operation) -> Option<Self> {
        Some(Self { operation, reply: None, was_resent: false })
    }
}

/// A renewal on its way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Renewal {
    sent: u8,
    reply: Option<Reply>,
}

/// A request and its client.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
struct Client {
    stage: Stage,
    call: Option<Call>,
    /// The tick in which the last acquisition was sent.
    sent: u8,
    lease: LeaseRecord,
    /// A copy of an acquisition that may still be executed, before this tick.
    late: Option<u8>,
    /// A write that may still be executed: the ETag and the token.
    late_write: Option<(u8, u8)>,
    renewal: Option<Renewal>,
    /// The tick in which the request was sent that the hold rests on.
    held_since: u8,
    /// The tick until which a lease that is obtained late is released.
    clean_up: Option<u8>,
    /// True if the hold has ended before its release.
    is_lost: bool,
    /// True if the lease was broken by force, and not acquired again.
    is_broken: bool,
    /// True if that break has taken the lease away.
    is_revoked: bool,
    /// True if a release has removed the lease.
    has_released: bool,
    /// True if the reply to a release was lost.
    is_repeated: bool,
    /// True if the request held the lock once.
    has_held: bool,
}

impl Client {
    fn believes(&self, now: u8) -> bool {
        self.stage == Stage::Held && !self.is_broken && is_before_deadline(now, self.held_since, TTL)
    }

    /// Removes what makes no difference any more.
    fn normalize(&mut self, now: u8) {
        self.late = self.late.filter(|before| *before > now);
        let Self { stage, late, late_write, clean_up, has_held, is_lost, .. } = *self;
        if matches!(stage, Stage::Ended | Stage::Dead) {
            *self = Self { stage, late, late_write, clean_up, has_held, is_lost, ..Self::default() };
        }
    }
}

/// A state of the model.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct State {
    now: u8,
    budget: Budget,
    blob: Blob,
    clients: [Client; REQUESTS],
    /// The record that each process has written last, with the ETag.
    cache: [Option<(u8, Record)>; 2],
    /// The request whose lease a break by force has ended, until the break takes it away.
    revoking: Option<usize>,
    last_token: u8,
    tokens_grow: bool,
    has_false_loss: bool,
    has_false_release: bool,
}

impl State {
    fn normalize(&mut self) {
        let mut etags = vec![&mut self.blob.etag];
        etags.extend(self.cache.iter_mut().flatten().map(|(etag, _)| etag));
        for client in &mut self.clients {
            client.normalize(self.now);
            etags.extend(client.late_write.as_mut().map(|(before, _)| before));
            if let Some(Call { operation, reply, .. }) = &mut client.call {
                if let Operation::Write { before, .. } = operation {
                    etags.push(before);
                }
                if let Some(Reply::Acquired(etag) | Reply::State(etag, _) | Reply::Written(etag)) = reply {
                    etags.push(etag);
                }
            }
        }
        close_gaps(&mut etags);
    }
}

/// A step of the request with this number, or of the process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// The request claims the lock, for the first time or again.
    Claim(usize),
    /// The service executes the operation of the request.
    Execute(usize),
    /// The client receives the reply.
    Reply(usize),
    /// The service executes a copy of an acquisition.
    ExecuteLate(usize),
    /// The service executes a write that was given up.
    ExecuteLateWrite(usize),
    /// The time limit for the reply has passed.
    GiveUp(usize),
    /// The connection breaks, and the operation is sent again.
    SendAgain(usize),
    /// The holder sends a renewal.
    Renew(usize),
    /// The service executes the renewal.
    ExecuteRenewal(usize),
    /// The holder receives the reply to the renewal.
    RenewalReply(usize),
    /// The request releases the lock, or gives up.
    Release(usize),
    /// The deadline of the hold ends it.
    Lose(usize),
    /// The process releases the lease that an unanswered acquisition may have obtained.
    CleanUp(usize),
    /// The lock is broken, with force if true.
    Break(bool),
    /// The break takes the lease away from its former holder.
    Revoke,
    /// The process dies.
    Die(usize),
    /// A tick passes.
    Tick,
}

/// The model.
#[derive(Debug)]
pub struct AzureLease {
    bug: Option<Bug>,
}

impl AzureLease {
    fn has(&self, bug: Bug) -> bool {
        self.bug == Some(bug)
    }

    fn claim(state: &mut State, index: usize) {
        let client = &mut state.clients[index];
        client.lease.on_send();
        (client.stage, client.sent) = (Stage::Claiming, state.now);
        client.call = Call::new(Operation::Acquire);
    }

    fn execute(&self, state: &mut State, index: usize) {
        let State { now, blob, clients, .. } = state;
        let client = &mut clients[index];
        let Some(call) = &mut client.call else { return };
        call.reply = Some(match call.operation {
            Operation::Acquire => blob.acquire(index, *now),
            Operation::Read => blob.read(index, *now),
            Operation::Write { before, token } => blob.write(index, self.condition(before), token, *now),
            Operation::Release | Operation::ReleaseBroken => blob.release(index),
        });
        match (call.operation, call.reply) {
            (Operation::Release, Some(Reply::Done)) => client.has_released = true,
            (_, Some(Reply::Acquired(_))) => (client.is_broken, client.is_revoked) = (false, false),
            _ => {}
        }
    }

    /// Returns the ETag that the blob must have.
    fn condition(&self, before: u8) -> Option<u8> {
        Some(before).filter(|_| !self.has(Bug::NoCondition))
    }

    fn on_reply(&self, state: &mut State, index: usize) {
        let client = &mut state.clients[index];
        let Some(Call { operation, reply: Some(reply), was_resent }) = client.call.take() else { return };
        match operation {
            Operation::Acquire => {
                let is_forgotten = matches!(reply, Reply::Acquired(_)) && self.has(Bug::SuccessForgetsCopy);
                if was_resent && !is_forgotten {
                    client.lease.on_no_reply(at(state.now));
                }
                self.on_acquire_reply(state, index, reply);
            }
            Operation::Read => match reply {
                Reply::State(etag, record) => self.write_grant(state, index, etag, record),
                _ => Self::claim(state, index),
            },
            Operation::Write { token, .. } => match reply {
                Reply::Written(etag) => {
                    state.cache[PROCESS[index]] = Some((etag, Record { token, grant: index + 1 }));
                    self.grant(state, index, token);
                }
                Reply::Changed => client.call = Call::new(Operation::Read),
                _ => Self::claim(state, index),
            },
            Operation::ReleaseBroken => {
                client.lease.on_refusal();
                Self::claim(state, index);
            }
            Operation::Release => self.on_release_reply(state, index, reply, was_resent),
        }
    }

    fn on_acquire_reply(&self, state: &mut State, index: usize, reply: Reply) {
        let client = &mut state.clients[index];
        match reply {
            Reply::Acquired(etag) => {
                let cached = state.cache[PROCESS[index]];
                match cached.filter(|(known, _)| *known == etag || self.has(Bug::StaleToken)) {
                    Some((_, record)) => self.write_grant(state, index, etag, record),
                    None => client.call = Call::new(Operation::Read),
                }
            }
            Reply::Breaking => client.call = Call::new(Operation::ReleaseBroken),
            _ => {
                client.lease.on_refusal();
                client.lease.may_hold &= !self.has(Bug::RefusalForgetsCopy);
                client.stage = Stage::Between;
            }
        }
    }

    /// Writes the grant after the last one, unless that one is the request's own.
    fn write_grant(&self, state: &mut State, index: usize, before: u8, last: Record) {
        if last.grant == index + 1 {
            return self.grant(state, index, last.token);
        }
        state.clients[index].call = Call::new(Operation::Write { before, token: last.token + 1 });
    }

    fn grant(&self, state: &mut State, index: usize, token: u8) {
        let client = &mut state.clients[index];
        let sent = if self.has(Bug::DeadlineFromReply) { state.now } else { client.sent };
        client.lease.on_grant(ticks(TTL), at(sent));
        (client.stage, client.held_since) = (Stage::Held, sent);
        if client.believes(state.now) {
            client.has_held = true;
            let [earlier, later] = [state.last_token, token].map(FencingToken::new);
            // There is no token before the first one.
            state.tokens_grow &=
                earlier.zip(later).is_none_or(|(earlier, later)| invariant::token_grows(earlier, later));
            state.last_token = token;
        }
    }

    fn release(&self, state: &mut State, index: usize) {
        let client = &mut state.clients[index];
        client.renewal = None;
        if client.lease.may_hold {
            client.stage = Stage::Releasing;
            client.call = Call::new(Operation::Release);
        } else {
            client.stage = Stage::Ended;
        }
    }

    fn on_release_reply(&self, state: &mut State, index: usize, reply: Reply, was_resent: bool) {
        let client = &mut state.clients[index];
        client.stage = Stage::Ended;
        let is_unknown = client.is_repeated || was_resent && !self.has(Bug::SecondReplyCounts);
        state.has_false_release |= client.is_revoked && client.has_released;
        state.has_false_loss |= reply == Reply::Gone && client.has_released && !is_unknown;
        let until = client.lease.unanswered.map(|unanswered| unanswered + ticks(MAX_DELAY));
        let until = until.filter(|_| !self.has(Bug::NoCleanUp));
        client.clean_up = until.and_then(|until| (0..=END + MAX_DELAY).find(|tick| at(*tick) >= until));
    }
}
