//! The scripts, and the keys of their calls.

use std::{collections::HashMap, sync::Arc, time::Duration};

use polylock_core::{LockName, Request};
use redis::{Script, ScriptInvocation};

use crate::keys::Keys;

/// All scripts of the server.
#[derive(Debug)]
pub(super) struct Scripts {
    pub(super) keys: Keys,
    pub(super) claim: Script,
    keep_alive: Script,
    pub(super) release: Script,
    pub(super) break_lock: Script,
    pub(super) inspect: Script,
}

impl Scripts {
    /// For the keys that begin with `prefix`.
    pub(super) fn new(prefix: &str) -> Self {
        // The part that most calls need comes first: setting up the rest takes longer than running that part.
        let script = |at_once: &str, own: &str| {
            Script::new(&[at_once, include_str!("scripts/common.lua"), own].concat())
        };
        Self {
            keys: Keys::new(prefix),
            claim: script(include_str!("scripts/claim_at_once.lua"), include_str!("scripts/claim.lua")),
            keep_alive: script("", include_str!("scripts/keep_alive.lua")),
            release: script(include_str!("scripts/release_at_once.lua"), include_str!("scripts/release.lua")),
            break_lock: script("", include_str!("scripts/break.lua")),
            inspect: script("", include_str!("scripts/inspect.lua")),
        }
    }

    /// A call that extends what `requests` have.
    pub(super) fn keep_alive(&self, requests: &[Arc<Request>]) -> ScriptInvocation<'_> {
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
            call.arg(lock).arg(&request.id.to_bytes());
            call.arg(in_micros(request.ttl)).arg(in_micros(request.place_ttl()));
        }
        call
    }

    /// A call of `script`, with the keys of the lock `name`.
    pub(super) fn call<'s>(&self, script: &'s Script, name: &LockName) -> ScriptInvocation<'s> {
        let mut call = script.prepare_invoke();
        for kind in ["h", "q", "w"] {
            call.key(self.keys.of(kind, name));
        }
        for shared in ["last", "gone"] {
            call.key(self.keys.shared(shared));
        }
        call.key(self.keys.of("b", name));
        call
    }
}

/// A duration as the scripts have it.
pub(super) fn in_micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}
