//! The names of the keys: `{prefix}:kind:lock` on one server, and `{prefix:bucket}:kind:lock` in a cluster.
//!
//! A cluster serves keys by slot, and the slot of a key is that of the text in its first braces. So all locks of one bucket are in one
//! slot, and the buckets of a prefix are spread over the nodes.

use std::{collections::BTreeSet, fmt, str};

use crc::{CRC_16_XMODEM, Crc};
use futures_util::{StreamExt, TryStreamExt, future, stream};
use polylock_core::{Inspect, LockName, LockStatus, Operation, Result};

use crate::{
    call::Call,
    link::{INSPECT_TIMEOUT, Link},
};

/// The checksum that a cluster's slots are made of.
const CRC: Crc<u16> = Crc::<u16>::new(&CRC_16_XMODEM);
/// How many slots a cluster has.
const SLOTS: u16 = 16_384;

/// How many locks of a list are inspected at a time: few enough that other operations on the same connection do not wait for them.
const AT_ONCE: usize = 32;
/// How many keys a server looks at in one step of a list.
const KEYS_AT_ONCE: usize = 1000;

/// The locks of a prefix in a cluster that are served together. This is part of the format of the keys and never changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Bucket(u8);

impl Bucket {
    /// How many there are.
    pub(crate) const COUNT: usize = 256;

    /// The bucket of the lock `name`: the lower half of a checksum of the name.
    pub(crate) fn of(name: &LockName) -> Self {
        let [_, lower] = CRC.checksum(name.as_str().as_bytes()).to_be_bytes();
        Self(lower)
    }

    /// All of them, in order.
    pub(crate) fn all() -> impl Iterator<Item = Self> {
        (0..=u8::MAX).map(Self)
    }

    /// Its place among all.
    pub(crate) fn index(self) -> usize {
        usize::from(self.0)
    }

    /// The text in the braces of its keys.
    fn tag(self, prefix: &str) -> String {
        format!("{prefix}:{self}")
    }

    /// The slot of a cluster that its keys are in.
    pub(crate) fn slot(self, prefix: &str) -> u16 {
        CRC.checksum(self.tag(prefix).as_bytes()) % SLOTS
    }

    /// The channel of the client `client` for messages about locks of this bucket; in the same slot as the keys.
    pub(crate) fn channel(self, prefix: &str, client: &str) -> String {
        format!("{{{}}}:{client}", self.tag(prefix))
    }
}

impl fmt::Display for Bucket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:02x}", self.0)
    }
}

/// Those of one prefix.
#[derive(Debug)]
pub(crate) struct Keys {
    prefix: String,
    /// Whether they are in the slots of a cluster.
    bucketed: bool,
}

impl Keys {
    /// On one server: all keys have the same tag.
    pub(crate) fn new(prefix: &str) -> Self {
        Self { prefix: prefix.to_owned(), bucketed: false }
    }

    /// In a cluster: each bucket has a tag.
    pub(crate) fn bucketed(prefix: &str) -> Self {
        Self { prefix: prefix.to_owned(), bucketed: true }
    }

    /// The beginning of the keys of the lock `name`.
    fn beginning(&self, name: &LockName) -> String {
        if self.bucketed {
            return format!("{{{}}}:", Bucket::of(name).tag(&self.prefix));
        }
        format!("{{{}}}:", self.prefix)
    }

    /// Of this kind, of the lock `name`.
    pub(crate) fn of(&self, kind: &str, name: &LockName) -> String {
        format!("{}{kind}:{}", self.beginning(name), name.as_str())
    }

    /// Of this kind, shared by all locks; on one server.
    pub(crate) fn shared(&self, kind: &str) -> String {
        format!("{{{}}}:{kind}", self.prefix)
    }

    /// Of this kind, shared by the lock `name` and all others in its slot.
    pub(crate) fn shared_with(&self, name: &LockName, kind: &str) -> String {
        format!("{}{kind}", self.beginning(name))
    }

    /// The pattern of the keys of these kinds, of all locks whose names begin with `names`.
    pub(crate) fn pattern(&self, kinds: &str, names: &str) -> String {
        let bucket = if self.bucketed { ":[0-9a-f][0-9a-f]" } else { "" };
        format!("{{{}{bucket}}}:[{kinds}]:{}*", literally(&self.prefix), literally(names))
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
        let tag = key.strip_prefix('{')?.strip_prefix(&self.prefix)?;
        let (bucket, kind) = tag.split_once("}:")?;
        let (_, name) = kind.split_once(':')?;
        let name = LockName::new(name).ok()?;
        let expected = if self.bucketed { format!(":{}", Bucket::of(&name)) } else { String::new() };
        (bucket == expected).then_some(name)
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
    fn in_a_cluster_the_keys_of_a_lock_are_in_the_slot_of_its_bucket() {
        let keys = Keys::bucketed("polylock");
        let name = LockName::new("orders/42").unwrap();
        let bucket = Bucket::of(&name);
        // Fixed for ever: another version would use other keys for the same lock.
        assert_eq!((bucket.to_string(), bucket.slot("polylock")), ("05".to_owned(), 10_410));
        assert_eq!(keys.of("h", &name), format!("{{polylock:{bucket}}}:h:orders/42"));
        assert_eq!(keys.shared_with(&name, "last"), format!("{{polylock:{bucket}}}:last"));
        assert_eq!(bucket.channel("polylock", "c"), format!("{{polylock:{bucket}}}:c"));
        assert_eq!(keys.name(&keys.of("h", &name)), Some(name.clone()));
        assert_eq!(keys.name(&Keys::new("polylock").of("h", &name)), None);
        assert_eq!(keys.name("{polylock:zz}:h:orders/42"), None);
        assert_eq!(keys.pattern("hq", "a"), "{polylock:[0-9a-f][0-9a-f]}:[hq]:a*");
        assert_eq!(Bucket::all().count(), Bucket::COUNT);
    }

    #[test]
    fn the_checksum_is_that_of_the_specification() {
        assert_eq!(CRC.checksum(b"123456789"), 0x31C3);
        // CLUSTER KEYSLOT of these keys.
        assert_eq!(CRC.checksum(b"foo") % SLOTS, 12_182);
    }

    #[test]
    fn a_pattern_matches_what_begins_with_it_only() {
        assert_eq!(Keys::new("app:x").pattern("hq", "a*[b]\\"), "{app:x}:[hq]:a\\*\\[b\\]\\\\*");
    }
}
