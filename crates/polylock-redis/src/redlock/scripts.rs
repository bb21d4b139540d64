//! The Lua scripts, and the keys and arguments of their calls.

use std::{sync::Arc, time::Duration};

use polylock_core::{LockName, Request};
use redis::{Script, ScriptInvocation};

use super::proposals::UNKNOWN;
use crate::keys::Keys;

/// The time for which a number is kept after any lease: as long as clocks may differ.
const NUMBER_RETENTION: Duration = Duration::from_secs(3600);

/// The kinds of the keys of a lock: the vote, the last number, the notices, the waiters.
const KEYS: [&str; 4] = ["r", "n", "b", "w"];

/// The scripts of a server.
#[derive(Debug)]
pub(super) struct Scripts {
    pub(super) keys: Keys,
    keep_ms: u64,
    propose: Script,
    keep_alive: Script,
    release: Script,
    break_lock: Script,
    inspect: Script,
    park: Script,
    refuse: Script,
    raise: Script,
    membership: Script,
}

/// A list of servers, and what a server does with it.
#[derive(Debug, Clone, Copy)]
pub(super) struct ListArgs<'l> {
    /// Empty for a message that is only about the server itself.
    pub(super) text: &'l str,
    /// The time for which the server keeps it.
    pub(super) keep: Duration,
    /// False if it is only compared with the lists in use.
    pub(super) records: bool,
}

/// The inputs of `membership.lua`, from which a script determines if the server's votes count.
#[derive(Debug, Clone)]
pub(super) struct MembershipArgs {
    /// The run id of the server; empty if restarts are trusted.
    pub(super) run: Arc<str>,
    /// The clock of this machine, and the time at which the server's nonce has arrived.
    pub(super) witness: String,
    pub(super) observed: String,
}

/// A request and the number of the vote to extend.
#[derive(Debug, Clone)]
pub(super) struct Renewal {
    pub(super) request: Arc<Request>,
    /// [`UNKNOWN`] for a request of another client.
    pub(super) number: i64,
}

impl Scripts {
    /// Creates the scripts for keys that begin with `prefix`, and for leases up to `max_ttl`.
    pub(super) fn new(prefix: &str, max_ttl: Duration) -> Self {
        let script = |parts: &[&str]| {
            Script::new(&[&[include_str!("scripts/membership.lua")], parts].concat().concat())
        };
        let common = include_str!("scripts/common.lua");
        Self {
            keys: Keys::new(prefix),
            keep_ms: in_millis(max_ttl + NUMBER_RETENTION),
            propose: script(&[common, include_str!("scripts/propose.lua")]),
            keep_alive: script(&[common, include_str!("scripts/keep_alive.lua")]),
            release: script(&[common, include_str!("scripts/release.lua")]),
            break_lock: script(&[common, include_str!("scripts/break.lua")]),
            park: script(&[common, include_str!("scripts/park.lua")]),
            refuse: script(&[common, include_str!("scripts/refuse.lua")]),
            inspect: script(&[common, include_str!("scripts/inspect.lua")]),
            raise: script(&[common, include_str!("scripts/raise.lua")]),
            membership: script(&[include_str!("scripts/member.lua")]),
        }
    }

    /// Proposes `number` for `request`. The numbers of `request` up to `withdrawn` are withdrawn. `channel` is notified when a vote becomes
    /// free; it is empty for a request that does not wait.
    pub(super) fn propose(
        &self,
        membership: &MembershipArgs,
        request: &Request,
        number: i64,
        withdrawn: i64,
        channel: &str,
    ) -> ScriptInvocation<'_> {
        let mut call = self.call(&self.propose, &request.name);
        add_membership_args(&mut call, membership);
        call.arg(&request.id.to_bytes())
            .arg(number)
            .arg(withdrawn)
            .arg(vote_ms(request.ttl))
            .arg(self.keep_ms);
        add_owner_args(&mut call, request);
        call.arg(channel).arg(in_millis(request.queue_lease()));
        call
    }

    /// Extends the votes for these numbers of requests. `restores` is true for a server that has lost the votes that others still have.
    pub(super) fn keep_alive(
        &self,
        membership: &MembershipArgs,
        batch: &[Renewal],
        restores: bool,
    ) -> ScriptInvocation<'_> {
        let mut call = self.keep_alive.prepare_invoke();
        add_membership_args(&mut call, membership);
        call.arg(self.keep_ms).arg(u8::from(restores));
        for Renewal { request, number } in batch {
            for kind in &KEYS[..3] {
                call.key(self.keys.of(kind, &request.name));
            }
            call.arg(&request.id.to_bytes()).arg(to_wire(*number)).arg(vote_ms(request.ttl));
            if restores {
                add_owner_args(&mut call, request);
            } else {
                call.arg("").arg("");
            }
        }
        call.key(self.keys.shared("member"));
        call
    }

    /// Withdraws the votes for numbers up to `number`; `channel`, unless empty, does not wait any more.
    pub(super) fn release(
        &self,
        id: &[u8],
        name: &LockName,
        number: i64,
        channel: &str,
        expiry: i64,
    ) -> ScriptInvocation<'_> {
        let mut call = self.call(&self.release, name);
        call.arg(id).arg(to_wire(number)).arg(self.keep_ms).arg(channel).arg(name.as_str()).arg(expiry);
        call
    }

    /// Refuses numbers up to `to`, for the request that holds the lock with this number.
    pub(super) fn raise(
        &self,
        membership: &MembershipArgs,
        holder: &Renewal,
        to: i64,
    ) -> ScriptInvocation<'_> {
        let Renewal { request, number } = holder;
        let mut call = self.call(&self.raise, &request.name);
        add_membership_args(&mut call, membership);
        call.arg(&request.id.to_bytes()).arg(to_wire(*number)).arg(to).arg(self.keep_ms);
        call
    }

    /// Marks the vote for `number`, or removes it with force, and publishes that on `channel`.
    pub(super) fn break_lock(
        &self,
        name: &LockName,
        number: i64,
        notice: &str,
        force: bool,
        channel: &str,
        expiry: i64,
    ) -> ScriptInvocation<'_> {
        let mut call = self.call(&self.break_lock, name);
        call.arg(number).arg(self.keep_ms).arg(name.as_str()).arg(notice).arg(u8::from(force)).arg(channel);
        call.arg(expiry);
        call
    }

    /// Refuses proposals of `request` for this time.
    pub(super) fn refuse(&self, request: &Request, time: Duration, expiry: i64) -> ScriptInvocation<'_> {
        let mut call = self.call(&self.refuse, &request.name);
        call.arg(&request.id.to_bytes()).arg(in_millis(time)).arg(expiry);
        call
    }

    /// Makes the vote for this number of `request` end in `left`.
    pub(super) fn park(
        &self,
        request: &Request,
        number: i64,
        left: Duration,
        expiry: i64,
    ) -> ScriptInvocation<'_> {
        let mut call = self.call(&self.park, &request.name);
        call.arg(&request.id.to_bytes()).arg(number).arg(vote_ms(left)).arg(self.keep_ms).arg(expiry);
        call
    }

    pub(super) fn inspect(&self, name: &LockName) -> ScriptInvocation<'_> {
        self.call(&self.inspect, name)
    }

    /// Reads the membership of a server, and compares or records the list of servers `list`, unless it is empty. `fresh` is a random identity.
    pub(super) fn membership(
        &self,
        membership: &MembershipArgs,
        list: &ListArgs<'_>,
        fresh: &str,
        expiry: i64,
    ) -> ScriptInvocation<'_> {
        let mut call = self.membership.prepare_invoke();
        call.key(self.keys.shared("member"));
        add_membership_args(&mut call, membership);
        let step = if list.records { "record" } else { "compare" };
        call.arg(list.text).arg(in_millis(list.keep)).arg(fresh).arg(step).arg(expiry);
        call
    }

    fn call<'s>(&self, script: &'s Script, name: &LockName) -> ScriptInvocation<'s> {
        let mut call = script.prepare_invoke();
        for kind in KEYS {
            call.key(self.keys.of(kind, name));
        }
        call.key(self.keys.shared("member"));
        call
    }
}

fn add_membership_args(call: &mut ScriptInvocation<'_>, membership: &MembershipArgs) {
    call.arg(&*membership.run).arg(&membership.witness).arg(&membership.observed);
}

fn add_owner_args(call: &mut ScriptInvocation<'_>, request: &Request) {
    call.arg(request.owner.as_str()).arg(request.label.as_ref().map_or("", |label| label.as_str()));
}

/// A script's reply: word, number, ms, clock in us, membership, and the notice or the outcomes. See `scripts/common.lua`.
pub(super) type Reply<T = Vec<u8>> = (i64, i64, i64, i64, Vec<u8>, T);

/// The first number of a reply.
pub(super) mod code {
    pub(in super::super) const HELD: i64 = 0;
    pub(in super::super) const YES: i64 = 1;
    pub(in super::super) const STALE: i64 = 2;
    pub(in super::super) const TOO_FAR: i64 = 3;
    pub(in super::super) const NO: i64 = 4;
    pub(in super::super) const MARKED: i64 = 5;
    pub(in super::super) const EXPIRED: i64 = 6;
    pub(in super::super) const OTHER: i64 = 7;
}

/// The constant part of the time by which a vote outlives the holder's lease. The other part is a hundredth of the lease.
const ROUNDING: Duration = Duration::from_millis(2);

/// Returns the time for which a server keeps a vote: longer than the holder's lease, by the possible drift between the servers' clocks. It
/// is the margin of the Redlock page.
fn vote_ms(lease: Duration) -> u64 {
    in_millis(lease + lease / 100 + ROUNDING)
}

/// Returns the time left of a lease with a vote that has this much time left.
pub(super) fn lease_left(vote: Duration) -> Duration {
    vote.saturating_sub(ROUNDING) * 100 / 101
}

/// Converts a number into the form of the scripts.
const fn to_wire(number: i64) -> i64 {
    if number == UNKNOWN { 0 } else { number }
}

fn in_millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
