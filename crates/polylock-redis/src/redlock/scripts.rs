//! The scripts, and the keys and arguments of their calls.

use std::{sync::Arc, time::Duration};

use polylock_core::{LockName, Request};
use redis::{Script, ScriptInvocation};

use super::proposals::UNKNOWN;
use crate::keys::Keys;

/// For how much longer than any lease a number is kept: as much as clocks may differ.
const NUMBERS_OUTLIVE: Duration = Duration::from_secs(3600);

/// The kinds of the keys of a lock: the vote, the last number, the notices, the waiters.
const KEYS: [&str; 4] = ["r", "n", "b", "w"];

/// All scripts of a server.
#[derive(Debug)]
pub(super) struct Scripts {
    pub(super) keys: Keys,
    keep_ms: u64,
    propose: Script,
    keep_alive: Script,
    release: Script,
    break_lock: Script,
    inspect: Script,
    member: Script,
}

/// What a script needs to tell whether the server's votes count. See `membership.lua`.
#[derive(Debug, Clone)]
pub(super) struct Member {
    /// The run id of the server; empty if restarts are trusted.
    pub(super) run: String,
    pub(super) is_durable: bool,
    pub(super) observed: String,
}

/// A request whose vote for a number is to be extended.
#[derive(Debug, Clone)]
pub(super) struct Renewal {
    pub(super) request: Arc<Request>,
    /// [`UNKNOWN`] for a request of another client.
    pub(super) number: i64,
}

impl Scripts {
    /// For the keys that begin with `prefix`, and leases up to `max_ttl`.
    pub(super) fn new(prefix: &str, max_ttl: Duration) -> Self {
        let script =
            |own: &[&str]| Script::new(&[&[include_str!("scripts/membership.lua")], own].concat().concat());
        let common = include_str!("scripts/common.lua");
        Self {
            keys: Keys::new(prefix),
            keep_ms: millis(max_ttl + NUMBERS_OUTLIVE),
            propose: script(&[common, include_str!("scripts/propose.lua")]),
            keep_alive: script(&[common, include_str!("scripts/keep_alive.lua")]),
            release: script(&[common, include_str!("scripts/release.lua")]),
            break_lock: script(&[common, include_str!("scripts/break.lua")]),
            inspect: script(&[common, include_str!("scripts/inspect.lua")]),
            member: script(&[include_str!("scripts/member.lua")]),
        }
    }

    /// Proposes `number` for `request`, whose numbers up to `withdrawn` are withdrawn. `channel` is notified when a vote becomes
    /// free; it is empty for a request that does not wait.
    pub(super) fn propose(
        &self,
        member: &Member,
        request: &Request,
        number: i64,
        withdrawn: i64,
        channel: &str,
    ) -> ScriptInvocation<'_> {
        let mut call = self.call(&self.propose, &request.name);
        about(&mut call, member);
        call.arg(&request.id.to_bytes()).arg(number).arg(withdrawn).arg(vote_ms(request)).arg(self.keep_ms);
        owned(&mut call, request);
        call.arg(channel).arg(millis(request.place_ttl()));
        call
    }

    /// Extends the votes for these numbers of requests. `restores` is for a server that has lost the votes that others still have.
    pub(super) fn keep_alive(
        &self,
        member: &Member,
        batch: &[Renewal],
        restores: bool,
    ) -> ScriptInvocation<'_> {
        let mut call = self.keep_alive.prepare_invoke();
        about(&mut call, member);
        call.arg(self.keep_ms).arg(u8::from(restores));
        for Renewal { request, number } in batch {
            for kind in &KEYS[..3] {
                call.key(self.keys.of(kind, &request.name));
            }
            call.arg(&request.id.to_bytes()).arg(wire(*number)).arg(vote_ms(request));
            if restores {
                owned(&mut call, request);
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
    ) -> ScriptInvocation<'_> {
        let mut call = self.call(&self.release, name);
        call.arg(id).arg(wire(number)).arg(self.keep_ms).arg(channel).arg(name.as_str());
        call
    }

    /// Marks the vote for `number`, or removes any vote with force, and publishes that on `channel`.
    pub(super) fn break_lock(
        &self,
        name: &LockName,
        number: i64,
        notice: &str,
        force: bool,
        channel: &str,
    ) -> ScriptInvocation<'_> {
        let mut call = self.call(&self.break_lock, name);
        call.arg(number).arg(self.keep_ms).arg(name.as_str()).arg(notice).arg(u8::from(force)).arg(channel);
        call
    }

    pub(super) fn inspect(&self, name: &LockName) -> ScriptInvocation<'_> {
        self.call(&self.inspect, name)
    }

    pub(super) fn member(&self, member: &Member) -> ScriptInvocation<'_> {
        let mut call = self.member.prepare_invoke();
        call.key(self.keys.shared("member"));
        about(&mut call, member);
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

fn about(call: &mut ScriptInvocation<'_>, member: &Member) {
    call.arg(&member.run).arg(u8::from(member.is_durable)).arg(&member.observed);
}

fn owned(call: &mut ScriptInvocation<'_>, request: &Request) {
    call.arg(request.owner.as_str()).arg(request.label.as_ref().map_or("", |label| label.as_str()));
}

/// The part of a vote's time by which it exceeds the holder's lease, besides a hundredth of it.
const ROUNDING: Duration = Duration::from_millis(2);

/// How long a server keeps a vote: longer than the holder's lease, by as much as the clocks of servers may run apart. It is the
/// margin of the Redlock page.
fn vote_ms(request: &Request) -> u64 {
    millis(request.ttl + request.ttl / 100 + ROUNDING)
}

/// The time that is left of a lease whose vote has this much left.
pub(super) fn lease_left(vote: Duration) -> Duration {
    vote.saturating_sub(ROUNDING) * 100 / 101
}

/// A number as the scripts have it.
const fn wire(number: i64) -> i64 {
    if number == UNKNOWN { 0 } else { number }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
