//! Core: the acquisition of a lock from its first claim to the end of the release, whatever its caller and the network do.
//!
//! Modelled: a try or a wait, with a first claim on the caller's connection or on that of the I/O thread; the hand-over of that first
//! claim to the thread; a caller that goes away at any point, or does not poll for the result; waits that end; claims and releases with
//! an unknown outcome, which the store executes later, earlier or never; grants that arrive after their deadline; the rollback; wake-ups
//! by a release. Leases are counted in ticks, by one clock.
//!
//! Abstracted away: the queue leases and the hand-over by the store (the models of the stores have them), renewals (a hold lasts one
//! lease), reentrancy, and outages (a failed claim is repeated, or ends the acquisition).
//!
//! It mirrors `engine/first_claim.rs`, `engine/acquisition.rs`, `engine/acquisition_task.rs`, `engine/foreground.rs`, `engine/hold.rs`
//! and `StoreContext::release_until` in `engine/context.rs` of `polylock-core`, and `memory.rs` with a note of the release as in Redis.

mod steps;

use polylock_core::{
    FencingToken, Mode, invariant,
    queue::{self, QueueEntry},
};
use stateright::{Model, Property};

use crate::{check::Protocol, numbers::close_gaps, time::is_before_deadline};

const REQUESTS: usize = 2;
/// The lease of a hold, in ticks.
const LEASE: u8 = 2;
/// The last tick.
const END: u8 = 2;
/// The greatest number of operations with an unknown outcome.
const FAULTS: u8 = 2;

/// The connection of the caller's runtime.
const CALLER: usize = 0;
/// The connection of the I/O thread.
const THREAD: usize = 1;

/// A planted bug.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bug {
    /// A try that finds the lock busy releases nothing, although its first claim may be delivered later (seed 5873016522577097298).
    BusyTryLeavesFirstClaim,
    /// The rollback releases while a claim is on its way.
    RollbackOvertakesClaim,
    /// A release does not make the store refuse a claim that may be delivered late.
    ReleaseLeavesNoNote,
    /// The caller's drop of the result does not release the lock.
    DroppedResultIsKept,
    /// The deadline of a hold counts from the reply.
    DeadlineFromReply,
    /// The caller receives a guard that was passed on.
    ReceivedAfterPassingOn,
    /// The caller counts as holder until the release is acknowledged.
    HeldUntilAcknowledged,
    /// A request is registered for wake-ups when the reply to its claim arrives.
    RegisteredByReply,
    /// A repeated release that finds nothing reports a loss.
    RepeatedReleaseReportsLoss,
}

/// The state of one acquisition in its process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
enum Stage {
    #[default]
    Idle,
    /// The caller drives the first claim.
    Driven,
    /// The I/O thread claims.
    Claiming,
    Waiting,
    /// The grant was sent to the caller.
    Delivered,
    Held,
    /// The acquisition has failed or was abandoned, and waits for the end of its claim.
    RollingBack,
    Releasing,
    Ended,
}

/// The reply to a claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Reply {
    /// The lock was granted with this token, for this many ticks.
    Granted(u8, u8),
    /// The request is in the queue.
    Queued,
    /// The lock is held, and the request does not queue.
    Busy,
    /// The request was released before.
    Refused,
}

/// An operation on its way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Message<R> {
    Sent,
    Replied(R),
}

/// One request, and the acquisition that it is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
struct Acquisition {
    queues: bool,
    stage: Stage,
    /// The tick in which the last claim was sent.
    sent: u8,
    /// The claims on both connections.
    claims: [Option<Message<Reply>>; 2],
    release: Option<Message<bool>>,
    attempts: u8,
    is_first_unknown: bool,
    may_have_entry: bool,
    /// The number of claims that the client has given up and the store may still execute.
    late: u8,
    /// True if the store may execute a claim late, in the view of the client.
    may_be_late: bool,
    /// A notification that is kept for the next wait.
    is_notified: bool,
    /// The grant: its token, the tick from which its lease counts, its lease.
    grant: Option<(u8, u8, u8)>,
    /// True if the caller works under the grant, until the deadline.
    is_holder: bool,
    /// True if the hold has ended by its deadline, and nothing is released.
    is_lost: bool,
    /// True if the request held the lock once.
    has_held: bool,
}

impl Acquisition {
    fn holds(&self, now: u8) -> bool {
        self.is_holder && self.grant.is_some_and(|(_, sent, lease)| is_before_deadline(now, sent, lease))
    }

    fn claim(&mut self, now: u8) {
        (self.stage, self.sent, self.claims[THREAD]) = (Stage::Claiming, now, Some(Message::Sent));
        self.may_have_entry = true;
    }

    /// Gives up the operation on `connection`. The store may execute it later, unless it has replied.
    fn abandon(&mut self, connection: usize) {
        if self.claims[connection].take() == Some(Message::Sent) {
            self.late += 1;
        }
        self.may_be_late = true;
    }

    fn roll_back(&mut self, bug: Option<Bug>) {
        if self.claims[THREAD].is_some() {
            if bug != Some(Bug::RollbackOvertakesClaim) {
                self.stage = Stage::RollingBack;
                return;
            }
            if self.claims[THREAD].take() == Some(Message::Sent) {
                self.late += 1;
            }
        }
        if self.may_have_entry {
            self.release();
        } else {
            self.stage = Stage::Ended;
        }
    }

    fn release(&mut self) {
        self.stage = Stage::Releasing;
        self.release = Some(Message::Sent);
        self.attempts = 1;
    }

    fn receives_notifications(&self, bug: Option<Bug>) -> bool {
        match self.stage {
            Stage::Waiting => true,
            Stage::Driven | Stage::Claiming => bug != Some(Bug::RegisteredByReply),
            _ => false,
        }
    }
}

/// An entry of the lock in the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Entry {
    request: usize,
    number: u8,
    is_held: bool,
    token: u8,
    expires: u8,
}

/// The store: one lock with a queue.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
struct Store {
    entries: Vec<Entry>,
    /// The last number drawn: for queue positions and tokens.
    last: u8,
    /// The requests with a note of their release.
    refused: [bool; REQUESTS],
    /// The requests with a hold that has expired.
    expired: [bool; REQUESTS],
    /// The notifications on their way.
    notified: [bool; REQUESTS],
}

impl Store {
    fn queue_entries(&self) -> Vec<QueueEntry> {
        let entry = |entry: &Entry| QueueEntry {
            seq: entry.number.into(),
            mode: Mode::Exclusive,
            held: entry.is_held,
        };
        self.entries.iter().map(entry).collect()
    }

    fn is_blocked(&self, entry: &Entry) -> bool {
        queue::watched(&self.queue_entries(), entry.number.into(), Mode::Exclusive).is_some()
    }

    fn claim(&mut self, request: usize, queues: bool, now: u8) -> Reply {
        let is_expired = |entry: &Entry| entry.is_held && entry.expires <= now;
        for entry in &self.entries {
            self.expired[entry.request] |= is_expired(entry);
        }
        self.entries.retain(|entry| !is_expired(entry));
        if self.refused[request] {
            return Reply::Refused;
        }
        let known = self.entries.iter().position(|entry| entry.request == request);
        let index = known.unwrap_or_else(|| {
            self.last += 1;
            self.entries.push(Entry { request, number: self.last, is_held: false, token: 0, expires: 0 });
            self.entries.len() - 1
        });
        let entry = self.entries[index];
        if entry.is_held {
            return Reply::Granted(entry.token, entry.expires - now);
        }
        if !self.is_blocked(&entry) {
            self.last += 1;
            self.entries[index] = Entry { is_held: true, token: self.last, expires: now + LEASE, ..entry };
            return Reply::Granted(self.last, LEASE);
        }
        if !queues {
            self.entries.remove(index);
            return Reply::Busy;
        }
        Reply::Queued
    }

    /// Returns true if there was an entry of `request`.
    fn release(&mut self, request: usize, refuses: bool) -> bool {
        let before = self.entries.len();
        self.entries.retain(|entry| entry.request != request);
        self.refused[request] |= refuses;
        let granted = self.entries.iter().find(|entry| !entry.is_held && !self.is_blocked(entry));
        if let Some(entry) = granted.copied() {
            self.notified[entry.request] = true;
        }
        self.entries.len() < before
    }
}

/// A state of the model.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct State {
    now: u8,
    faults: u8,
    store: Store,
    acquisitions: [Acquisition; REQUESTS],
    /// The token of the last hold that began.
    last_token: u8,
    tokens_grow: bool,
    /// True if a release has reported a loss.
    reports_loss: bool,
    /// True if one did so although the hold had not expired.
    has_false_loss: bool,
}

impl State {
    /// Removes what makes no difference any more.
    fn normalize(&mut self) {
        let Self { now, store, acquisitions, last_token, .. } = self;
        for (request, acquisition) in acquisitions.iter_mut().enumerate() {
            if acquisition.stage == Stage::Ended {
                let Acquisition { stage, queues, late, is_lost, has_held, .. } = *acquisition;
                let queues = queues && late > 0;
                *acquisition =
                    Acquisition { stage, queues, late, is_lost, has_held, ..Acquisition::default() };
                (store.expired[request], store.notified[request]) = (false, false);
                store.refused[request] &= late > 0;
            }
            acquisition.sent = acquisition.sent.max(now.saturating_sub(LEASE));
            acquisition.attempts = acquisition.attempts.min(2);
            if acquisition.stage != Stage::Idle
                && acquisition.claims == [None; 2]
                && acquisition.release.is_some()
            {
                (acquisition.sent, acquisition.is_first_unknown, acquisition.is_notified) = (0, false, false);
            }
        }
        let mut numbers: Vec<&mut u8> = vec![&mut store.last, last_token];
        numbers.extend(store.entries.iter_mut().flat_map(|entry| [&mut entry.number, &mut entry.token]));
        for acquisition in acquisitions {
            numbers.extend(acquisition.grant.as_mut().map(|(token, ..)| token));
            for claim in &mut acquisition.claims {
                if let Some(Message::Replied(Reply::Granted(token, _))) = claim {
                    numbers.push(token);
                }
            }
        }
        close_gaps(&mut numbers);
    }

    fn begin_hold(&mut self, request: usize) {
        let acquisition = &mut self.acquisitions[request];
        let Some((token, sent, lease)) = acquisition.grant else { return };
        (acquisition.stage, acquisition.is_holder, acquisition.has_held) = (Stage::Held, true, true);
        if !is_before_deadline(self.now, sent, lease) {
            // The caller receives a guard that is lost.
            return;
        }
        let [earlier, later] = [self.last_token, token].map(FencingToken::new);
        self.tokens_grow &=
            earlier.zip(later).is_some_and(|(earlier, later)| invariant::token_grows(earlier, later));
        self.last_token = token;
    }
}

/// A step. Numbers are those of requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// A caller begins an acquisition.
    Acquire {
        /// The request.
        request: usize,
        /// True if it waits.
        queues: bool,
        /// True if the caller drives the first claim.
        driven: bool,
    },
    /// The store executes the claim on this connection.
    Claim(usize, usize),
    /// The reply to the claim on this connection arrives.
    Reply(usize, usize),
    /// The store executes a claim that its client has given up.
    LateClaim(usize),
    /// The I/O thread takes over the first claim.
    TakeOver(usize),
    /// The caller goes away, or its time limit has passed.
    Drop(usize),
    /// The operation fails with a temporary error, and is repeated if its request queues or it is a release.
    Fail(usize),
    /// The operation fails with a temporary error at the end of the outage that the caller accepts.
    FailAtLast(usize),
    /// A notification arrives.
    Notify(usize),
    /// A waiter claims again, by a notification or after a tick.
    ClaimAgain(usize),
    /// The caller receives its guard.
    Receive(usize),
    /// The caller has not received its guard in time.
    PassOn(usize),
    /// The caller releases the lock.
    Release(usize),
    /// The deadline of the hold ends it.
    Lose(usize),
    /// The store executes the release.
    ExecuteRelease(usize),
    /// The reply to the release arrives.
    ReleaseReply(usize),
    /// A tick passes.
    Tick,
}

/// The model.
#[derive(Debug)]
pub struct Core {
    bug: Option<Bug>,
}

impl Core {
    fn has(&self, bug: Bug) -> bool {
        self.bug == Some(bug)
    }

    /// Applies the reply to a claim of the I/O thread, or of the caller if that did not decide the acquisition.
    fn on_reply(&self, acquisition: &mut Acquisition, reply: Reply, now: u8) {
        match reply {
            Reply::Granted(token, lease) => {
                let sent = if self.has(Bug::DeadlineFromReply) { now } else { acquisition.sent };
                if is_before_deadline(now, sent, lease) {
                    acquisition.grant = Some((token, sent, lease));
                    acquisition.stage = Stage::Delivered;
                } else if acquisition.queues {
                    acquisition.claim(now);
                } else {
                    acquisition.roll_back(self.bug);
                }
            }
            Reply::Queued => acquisition.stage = Stage::Waiting,
            Reply::Busy => {
                acquisition.may_have_entry =
                    acquisition.is_first_unknown && !self.has(Bug::BusyTryLeavesFirstClaim);
                acquisition.roll_back(self.bug);
            }
            Reply::Refused => acquisition.roll_back(self.bug),
        }
    }

    fn on_driven_reply(&self, state: &mut State, request: usize, reply: Reply) {
        let now = state.now;
        let acquisition = &mut state.acquisitions[request];
        match reply {
            Reply::Granted(..) => {
                self.on_reply(acquisition, reply, now);
                if acquisition.stage == Stage::Delivered {
                    state.begin_hold(request);
                }
            }
            Reply::Busy => acquisition.stage = Stage::Ended,
            _ => {
                acquisition.may_have_entry = true;
                self.on_reply(acquisition, reply, now);
            }
        }
    }
}
