//! The names of the keys: `{prefix}:kind:lock`.

use std::{collections::BTreeSet, str};

use futures_util::{StreamExt, TryStreamExt, future, stream};
use polylock_core::{Inspect, LockName, LockStatus, Operation, Result};

use crate::link::{Call, INSPECT_TIMEOUT, Link};

/// How many locks of a list are inspected at a time: few enough that other operations on the same connection do not wait for them.
const AT_ONCE: usize = 32;
/// How many keys a server looks at in one step of a list.
const KEYS_AT_ONCE: usize = 1000;

/// Those of one prefix.
#[derive(Debug)]
pub(crate) struct Keys {
    prefix: String,
}

impl Keys {
    pub(crate) fn new(prefix: &str) -> Self {
        // All in one slot of a cluster: they share what stands in the first braces.
        Self { prefix: format!("{{{prefix}}}:") }
    }

    /// Of this kind, of the lock `name`.
    pub(crate) fn of(&self, kind: &str, name: &LockName) -> String {
        format!("{}{kind}:{}", self.prefix, name.as_str())
    }

    /// Of this kind, shared by all locks.
    pub(crate) fn shared(&self, kind: &str) -> String {
        format!("{}{kind}", self.prefix)
    }

    /// The pattern of the keys of these kinds, of all locks whose names begin with `names`.
    pub(crate) fn pattern(&self, kinds: &str, names: &str) -> String {
        format!("{}[{kinds}]:{}*", literally(&self.prefix), literally(names))
    }

    /// The names that begin with `names`, of all locks that have a key of these kinds in the server of `link`.
    ///
    /// # Errors
    /// If the server is unavailable.
    pub(crate) async fn in_use(&self, link: &Link, kinds: &str, names: &str) -> Result<BTreeSet<LockName>> {
        let (mut cursor, mut found, pattern) = (0, BTreeSet::new(), self.pattern(kinds, names));
        loop {
            let mut scan = redis::cmd("SCAN");
            scan.arg(cursor).arg("MATCH").arg(&pattern).arg("COUNT").arg(KEYS_AT_ONCE);
            let reply = link.call(Operation::Inspect, INSPECT_TIMEOUT, Call::Command(&scan)).await.outcome?;
            let (next, keys): (u64, Vec<Vec<u8>>) = link.read(Operation::Inspect, reply)?;
            let keys = keys.iter().filter_map(|key| str::from_utf8(key).ok());
            found.extend(keys.filter_map(|key| self.name(key)));
            if next == 0 {
                return Ok(found);
            }
            cursor = next;
        }
    }

    /// The name of the lock that `key` belongs to.
    pub(crate) fn name(&self, key: &str) -> Option<LockName> {
        let (_, name) = key.strip_prefix(&self.prefix)?.split_once(':')?;
        LockName::new(name).ok()
    }
}

/// The status of those of `names` that are in use, in the order of their names. A few are inspected at a time, each with a time
/// limit of its own.
///
/// # Errors
/// If the store is unavailable.
pub(crate) async fn in_use_of(store: &impl Inspect, names: BTreeSet<LockName>) -> Result<Vec<LockStatus>> {
    let locks = stream::iter(names).map(async move |name| store.inspect(&name).await).buffered(AT_ONCE);
    locks.try_filter(|lock| future::ready(!lock.is_free())).try_collect().await
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
    fn a_key_leads_back_to_its_lock() {
        let keys = Keys::new("app:x");
        let name = LockName::new("a:b}*").unwrap();
        assert_eq!(keys.of("h", &name), "{app:x}:h:a:b}*");
        assert_eq!(keys.name(&keys.of("h", &name)), Some(name));
        assert_eq!(keys.name("{app}:h:a"), None);
        assert_eq!(keys.name(&keys.shared("last")), None);
    }

    #[test]
    fn a_pattern_matches_what_begins_with_it_only() {
        assert_eq!(Keys::new("app:x").pattern("hq", "a*[b]\\"), "{app:x}:[hq]:a\\*\\[b\\]\\\\*");
    }
}
