//! The scripts, and the keys that they are called with.

use std::time::Duration;

use polylock_core::{LockName, Request};
use redis::{Script, ScriptInvocation};

use crate::keys::Keys;

/// For how much longer than any lease a number is kept: as much as clocks may differ.
const NUMBERS_OUTLIVE: Duration = Duration::from_secs(3600);

/// All of them.
#[derive(Debug)]
pub(super) struct Scripts {
    pub(super) keys: Keys,
    keep_ms: u64,
    propose: Script,
    renew: Script,
    release: Script,
    break_lock: Script,
    pub(super) inspect: Script,
}

impl Scripts {
    /// For the keys that begin with `prefix`, and leases up to `max_ttl`.
    pub(super) fn new(prefix: &str, max_ttl: Duration) -> Self {
        let script = |own: &str| Script::new(&format!("{}{own}", include_str!("scripts/common.lua")));
        Self {
            keys: Keys::new(prefix),
            keep_ms: millis(max_ttl + NUMBERS_OUTLIVE),
            propose: script(include_str!("scripts/propose.lua")),
            renew: script(include_str!("scripts/renew.lua")),
            release: script(include_str!("scripts/release.lua")),
            break_lock: script(include_str!("scripts/break.lua")),
            inspect: script(include_str!("scripts/inspect.lua")),
        }
    }

    pub(super) fn propose(&self, request: &Request, number: i64, channel: &str) -> ScriptInvocation<'_> {
        let mut call = self.about(&self.propose, request, number);
        call.arg(channel).arg(millis(request.place_ttl()));
        call
    }

    /// `brings_back` is for a node that has lost the vote which others still have.
    pub(super) fn renew(&self, request: &Request, number: i64, brings_back: bool) -> ScriptInvocation<'_> {
        let mut call = self.about(&self.renew, request, number);
        call.arg(u8::from(brings_back));
        call
    }

    pub(super) fn release(&self, request: &Request, number: i64, channel: &str) -> ScriptInvocation<'_> {
        let mut call = self.call(&self.release, &request.name);
        call.arg(&request.id.to_bytes())
            .arg(number)
            .arg(self.keep_ms)
            .arg(channel)
            .arg(request.name.as_str());
        call
    }

    pub(super) fn break_lock(&self, name: &LockName) -> ScriptInvocation<'_> {
        let mut call = self.call(&self.break_lock, name);
        call.arg(self.keep_ms).arg(name.as_str());
        call
    }

    pub(super) fn inspect(&self, name: &LockName) -> ScriptInvocation<'_> {
        self.call(&self.inspect, name)
    }

    fn about<'s>(&self, script: &'s Script, request: &Request, number: i64) -> ScriptInvocation<'s> {
        let mut call = self.call(script, &request.name);
        // Longer than the holder's lease, by as much as the clocks of nodes may run apart: the margin of the Redlock page.
        let ttl = request.ttl + request.ttl / 100 + Duration::from_millis(2);
        call.arg(&request.id.to_bytes()).arg(number).arg(millis(ttl)).arg(self.keep_ms);
        call.arg(request.owner.as_str()).arg(request.label.as_ref().map_or("", |label| label.as_str()));
        call
    }

    fn call<'s>(&self, script: &'s Script, name: &LockName) -> ScriptInvocation<'s> {
        let mut call = script.prepare_invoke();
        for kind in ["r", "n", "w"] {
            call.key(self.keys.of(kind, name));
        }
        call
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
