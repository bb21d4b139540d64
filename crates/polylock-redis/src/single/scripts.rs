//! The scripts, and the keys of their calls.

use polylock_core::LockName;
use redis::{Script, ScriptInvocation};

use crate::keys::Keys;

/// All scripts of the server.
#[derive(Debug)]
pub(super) struct Scripts {
    pub(super) keys: Keys,
    pub(super) claim: Script,
    pub(super) renew: Script,
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
            renew: script("", include_str!("scripts/renew.lua")),
            release: script(include_str!("scripts/release_at_once.lua"), include_str!("scripts/release.lua")),
            break_lock: script("", include_str!("scripts/break.lua")),
            inspect: script("", include_str!("scripts/inspect.lua")),
        }
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
