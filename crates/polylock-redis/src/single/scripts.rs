//! The scripts, and the keys that they are called with.

use polylock_core::LockName;
use redis::{Script, ScriptInvocation};

/// All of them.
#[derive(Debug)]
pub(super) struct Scripts {
    prefix: String,
    pub(super) claim: Script,
    pub(super) renew: Script,
    pub(super) release: Script,
    pub(super) break_lock: Script,
    pub(super) inspect: Script,
}

impl Scripts {
    /// For the keys that begin with `prefix`.
    pub(super) fn new(prefix: &str) -> Self {
        let script = |own: &str| Script::new(&format!("{}{own}", include_str!("scripts/common.lua")));
        Self {
            // All in one slot of a cluster: they share what stands in the first braces.
            prefix: format!("{{{prefix}}}:"),
            claim: script(include_str!("scripts/claim.lua")),
            renew: script(include_str!("scripts/renew.lua")),
            release: script(include_str!("scripts/release.lua")),
            break_lock: script(include_str!("scripts/break.lua")),
            inspect: script(include_str!("scripts/inspect.lua")),
        }
    }

    /// A call of `script`, with the keys of the lock `name`.
    pub(super) fn call<'s>(&self, script: &'s Script, name: &LockName) -> ScriptInvocation<'s> {
        let mut call = script.prepare_invoke();
        for kind in ["h", "q", "w"] {
            call.key(format!("{}{kind}:{}", self.prefix, name.as_str()));
        }
        for shared in ["last", "gone"] {
            call.key(format!("{}{shared}", self.prefix));
        }
        call
    }

    /// The pattern of the keys of all locks in use whose names begin with `names`.
    pub(super) fn pattern(&self, names: &str) -> String {
        format!("{}[hq]:{}*", literally(&self.prefix), literally(names))
    }

    /// The name of the lock that `key` belongs to.
    pub(super) fn name_of(&self, key: &str) -> Option<LockName> {
        let (_, name) = key.strip_prefix(&self.prefix)?.split_once(':')?;
        LockName::new(name).ok()
    }
}

/// `text` as a pattern that matches only itself.
fn literally(text: &str) -> String {
    let mut pattern = String::with_capacity(text.len());
    for c in text.chars() {
        if matches!(c, '*' | '?' | '[' | ']' | '^' | '\\') {
            pattern.push('\\');
        }
        pattern.push(c);
    }
    pattern
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_matches_what_begins_with_it_only() {
        let scripts = Scripts::new("app:x");
        assert_eq!(scripts.pattern("a*[b]\\"), "{app:x}:[hq]:a\\*\\[b\\]\\\\*");
        assert_eq!(scripts.name_of("{app:x}:h:a:b}").unwrap().as_str(), "a:b}");
        assert_eq!(scripts.name_of("{app}:h:a"), None);
        assert_eq!(scripts.name_of("{app:x}:last"), None);
    }
}
