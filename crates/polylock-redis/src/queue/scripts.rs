//! The Lua scripts, and the keys of their calls.

use std::{collections::HashMap, sync::Arc, time::Duration};

use polylock_core::{LockName, Request};
use redis::{Script, ScriptInvocation};

use crate::keys::Keys;

/// The scripts of a server.
#[derive(Debug)]
pub(crate) struct Scripts {
    pub(crate) keys: Keys,
    pub(crate) claim: Script,
    keep_alive: Script,
    pub(crate) release: Script,
    pub(crate) park: Script,
    pub(crate) break_lock: Script,
    pub(crate) inspect: Script,
    pub(crate) convert: Script,
    pub(crate) raise: Script,
    pub(crate) record: Script,
}

impl Scripts {
    /// Creates the scripts for these keys.
    pub(crate) fn new(keys: Keys) -> Self {
        // The part that most calls need comes first: setting up the rest takes longer than running that part.
        let script = |fast_path: &str, body: &str| {
            Script::new(&[fast_path, include_str!("scripts/common.lua"), body].concat())
        };
        Self {
            keys,
            claim: script(include_str!("scripts/claim_at_once.lua"), include_str!("scripts/claim.lua")),
            keep_alive: script("", include_str!("scripts/keep_alive.lua")),
            release: script(include_str!("scripts/release_at_once.lua"), include_str!("scripts/release.lua")),
            park: script("", include_str!("scripts/park.lua")),
            break_lock: script("", include_str!("scripts/break.lua")),
            inspect: script("", include_str!("scripts/inspect.lua")),
            convert: script("", include_str!("scripts/convert.lua")),
            raise: script("", include_str!("scripts/raise.lua")),
            record: Script::new(include_str!("scripts/record.lua")),
        }
    }

    /// Returns a call that extends the holds and queue entries of `requests`.
    pub(crate) fn keep_alive<'r>(
        &self,
        requests: impl IntoIterator<Item = &'r Arc<Request>>,
    ) -> ScriptInvocation<'_> {
        let mut call = self.keep_alive.prepare_invoke();
        let mut locks: HashMap<&LockName, usize> = HashMap::new();
        for request in requests {
            let (next, name) = (locks.len(), &request.name);
            let lock = *locks.entry(name).or_insert_with(|| {
                for kind in ["h", "q", "w", "b"] {
                    call.key(self.keys.of(kind, name));
                }
                next
            });
            add_request(&mut call, lock, request);
        }
        call
    }

    /// Returns a call that extends one hold, with the key of the holds alone.
    pub(crate) fn keep_hold(&self, request: &Request) -> ScriptInvocation<'_> {
        let mut call = self.keep_alive.prepare_invoke();
        call.key(self.keys.of("h", &request.name));
        add_request(&mut call, 0, request);
        call
    }

    /// Returns a call of `script`, with the keys of the lock `name`.
    pub(crate) fn call<'s>(&self, script: &'s Script, name: &LockName) -> ScriptInvocation<'s> {
        let mut call = script.prepare_invoke();
        for kind in ["h", "q", "w"] {
            call.key(self.keys.of(kind, name));
        }
        for shared in ["last", "gone"] {
            call.key(self.keys.shared_with(name, shared));
        }
        call.key(self.keys.of("b", name));
        call
    }
}

/// Adds the arguments of the keep-alive script for a request.
fn add_request(call: &mut ScriptInvocation<'_>, lock: usize, request: &Request) {
    call.arg(lock).arg(&request.id.to_bytes());
    call.arg(in_micros(request.ttl)).arg(in_micros(request.queue_lease()));
}

/// Converts a duration into microseconds, the unit of the scripts.
pub(crate) fn in_micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}
