//! The scripts, and the keys of their calls.

use std::{collections::HashMap, sync::Arc, time::Duration};

use polylock_core::{LockName, Request};
use redis::{Script, ScriptInvocation};

use crate::keys::Keys;

/// All scripts of the server.
#[derive(Debug)]
pub(crate) struct Scripts {
    pub(crate) keys: Keys,
    pub(crate) claim: Script,
    keep_alive: Script,
    pub(crate) release: Script,
    pub(crate) break_lock: Script,
    pub(crate) inspect: Script,
}

impl Scripts {
    /// For these keys.
    pub(crate) fn new(keys: Keys) -> Self {
        // The part that most calls need comes first: setting up the rest takes longer than running that part.
        let script = |at_once: &str, own: &str| {
            Script::new(&[at_once, include_str!("scripts/common.lua"), own].concat())
        };
        Self {
            keys,
            claim: script(include_str!("scripts/claim_at_once.lua"), include_str!("scripts/claim.lua")),
            keep_alive: script("", include_str!("scripts/keep_alive.lua")),
            release: script(include_str!("scripts/release_at_once.lua"), include_str!("scripts/release.lua")),
            break_lock: script("", include_str!("scripts/break.lua")),
            inspect: script("", include_str!("scripts/inspect.lua")),
        }
    }

    /// A call that extends what `requests` have.
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
            extended(&mut call, lock, request);
        }
        call
    }

    /// The same for a hold, with the key of the holds alone.
    pub(crate) fn keep_hold(&self, request: &Request) -> ScriptInvocation<'_> {
        let mut call = self.keep_alive.prepare_invoke();
        call.key(self.keys.of("h", &request.name));
        extended(&mut call, 0, request);
        call
    }

    /// A call of `script`, with the keys of the lock `name`.
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

/// Adds what the script needs to know about a request.
fn extended(call: &mut ScriptInvocation<'_>, lock: usize, request: &Request) {
    call.arg(lock).arg(&request.id.to_bytes());
    call.arg(in_micros(request.ttl)).arg(in_micros(request.place_ttl()));
}

/// A duration as the scripts have it.
pub(crate) fn in_micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}
