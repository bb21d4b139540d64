//! The names of the keys: `{prefix}:kind:lock` on one server, and `{prefix:bucket}:kind:lock` in a cluster.
//!
//! A cluster serves keys by slot, and the text in the first braces of a key determines its slot. So all locks of one bucket are in one
//! slot, and the buckets of a prefix are spread over the nodes.

use std::{collections::BTreeSet, fmt, iter, str};

use crc::{CRC_16_XMODEM, Crc};
use futures_util::{StreamExt, TryStreamExt, future, stream};
use polylock_core::{Inspect, LockName, LockStatus, Operation, Result, Semaphore};

use crate::{
    call::Call,
    link::{INSPECT_TIMEOUT, Link},
};

/// The checksum that determines the slot of a key in a cluster.
const CHECKSUM: Crc<u16> = Crc::<u16>::new(&CRC_16_XMODEM);
/// The number of slots of a cluster.
const SLOTS: u16 = 16_384;

/// The number of locks that a list inspects at a time: few enough that other operations on the same connection do not wait for them.
const CONCURRENT_INSPECTIONS: usize = 32;
/// The number of slots of a semaphore that are looked up together, if they are probably all free.
const SLOTS_AT_ONCE: usize = 32;
/// The number of keys that a server scans in one step of a list.
const SCAN_COUNT: usize = 1000;

/// The locks of a prefix that share a slot in a cluster. The division into buckets is part of the key format and never changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Bucket(u8);

impl Bucket {
    /// The number of buckets.
    pub(crate) const COUNT: usize = 256;

    /// Returns the bucket of the lock `name`: the lower half of a checksum of the name.
    pub(crate) fn of(name: &LockName) -> Self {
        let [_, lower] = CHECKSUM.checksum(name.as_str().as_bytes()).to_be_bytes();
        Self(lower)
    }

    /// Returns all buckets, in order.
    pub(crate) fn all() -> impl Iterator<Item = Self> {
        (0..=u8::MAX).map(Self)
    }

    /// Returns the index of the bucket, from 0.
    pub(crate) fn index(self) -> usize {
        usize::from(self.0)
    }

    /// Returns the text in the braces of the bucket's keys.
    fn tag(self, prefix: &str) -> String {
        format!("{prefix}:{self}")
    }

    /// Returns the cluster slot of the bucket's keys.
    pub(crate) fn slot(self, prefix: &str) -> u16 {
        CHECKSUM.checksum(self.tag(prefix).as_bytes()) % SLOTS
    }

    /// Returns the channel of the client `client` for messages about locks of this bucket. It is in the same slot as the keys.
    pub(crate) fn channel(self, prefix: &str, client: &str) -> String {
        format!("{{{}}}:{client}", self.tag(prefix))
    }
}

impl fmt::Display for Bucket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:02x}", self.0)
    }
}

/// The keys of one prefix.
#[derive(Debug)]
pub(crate) struct Keys {
    prefix: String,
    /// True if the keys are spread over the slots of a cluster.
    bucketed: bool,
}

impl Keys {
    /// Returns the keys on one server: all have the same tag.
    pub(crate) fn new(prefix: &str) -> Self {
        Self { prefix: prefix.to_owned(), bucketed: false }
    }

    /// Returns the keys in a cluster: each bucket has a tag.
    pub(crate) fn bucketed(prefix: &str) -> Self {
        Self { prefix: prefix.to_owned(), bucketed: true }
    }

    /// Returns the beginning of the keys of the lock `name`.
    fn key_prefix(&self, name: &LockName) -> String {
        if self.bucketed {
            return format!("{{{}}}:", Bucket::of(name).tag(&self.prefix));
        }
        format!("{{{}}}:", self.prefix)
    }

    /// Returns the key of this kind of the lock `name`.
    pub(crate) fn of(&self, kind: &str, name: &LockName) -> String {
        format!("{}{kind}:{}", self.key_prefix(name), name.as_str())
    }

    /// Returns the key of this kind that all locks on one server share.
    pub(crate) fn shared(&self, kind: &str) -> String {
        format!("{{{}}}:{kind}", self.prefix)
    }

    /// Returns the key of this kind that the lock `name` shares with all locks of the same tag.
    pub(crate) fn shared_with(&self, name: &LockName, kind: &str) -> String {
        format!("{}{kind}", self.key_prefix(name))
    }

    /// Returns the pattern for keys of these kinds, of all locks with names that begin with `names`.
    pub(crate) fn pattern(&self, kinds: &str, names: &str) -> String {
        let bucket = self.bucket_pattern();
        format!("{{{}{bucket}}}:[{kinds}]:{}*", escape_pattern(&self.prefix), escape_pattern(names))
    }

    /// Returns the names that begin with `names`, of all locks that have a key of these kinds on the server of `link`.
    ///
    /// # Errors
    /// If the server is unavailable.
    pub(crate) async fn scan_names(
        &self,
        link: &Link,
        kinds: &str,
        names: &str,
    ) -> Result<BTreeSet<LockName>> {
        if let (Ok(turnstile), false) = (LockName::from_store(names), self.bucketed)
            && turnstile.is_turnstile()
        {
            return self.semaphore_names(link, kinds, &turnstile).await;
        }
        let (mut cursor, mut found, pattern) = (0, BTreeSet::new(), self.pattern(kinds, names));
        loop {
            let (next, keys) = scan(link, cursor, &pattern).await?;
            let keys = keys.iter().filter_map(|key| str::from_utf8(key).ok());
            found.extend(keys.filter_map(|key| self.name(key)));
            if next == 0 {
                return Ok(found);
            }
            cursor = next;
        }
    }

    /// Returns the names of the locks of a semaphore that have a key of these kinds on the server of `link`, without a scan of all keys.
    ///
    /// It is one message if only the first slots are in use, and two otherwise. The lookup of all slots takes the server 0.1 ms.
    async fn semaphore_names(
        &self,
        link: &Link,
        kinds: &str,
        turnstile: &LockName,
    ) -> Result<BTreeSet<LockName>> {
        let semaphore = turnstile.semaphore().unwrap_or_default();
        let slots = (0..Semaphore::MAX_SLOTS).filter_map(|slot| LockName::of_slot(semaphore, slot).ok());
        let names: Vec<LockName> = iter::once(turnstile.clone()).chain(slots).collect();
        let (first, others) = names.split_at(1 + SLOTS_AT_ONCE);
        let groups: Vec<_> = first.chunks(1).chain(others.chunks(SLOTS_AT_ONCE)).collect();
        let (single, several): (Vec<&[LockName]>, Vec<&[LockName]>) =
            self.existing(link, kinds, &groups).await?.into_iter().partition(|group| group.len() == 1);
        let several: Vec<_> = several.into_iter().flat_map(|group| group.chunks(1)).collect();
        let found = if several.is_empty() { several } else { self.existing(link, kinds, &several).await? };
        Ok(single.into_iter().chain(found).flatten().cloned().collect())
    }

    /// Returns the `groups` that have a name with a key of these kinds.
    async fn existing<'n>(
        &self,
        link: &Link,
        kinds: &str,
        groups: &[&'n [LockName]],
    ) -> Result<Vec<&'n [LockName]>> {
        let mut lookups = redis::pipe();
        for group in groups {
            let kinds = || kinds.split_inclusive(|_| true);
            let keys = group.iter().flat_map(|name| kinds().map(move |kind| self.of(kind, name)));
            lookups.cmd("EXISTS").arg(keys.collect::<Vec<_>>());
        }
        let reply = link.call(Operation::Inspect, INSPECT_TIMEOUT, Call::Batch(&lookups)).await.outcome?;
        let counts: Vec<usize> = link.read(Operation::Inspect, reply)?;
        let found = groups.iter().zip(counts).filter(|(_, count)| *count > 0);
        Ok(found.map(|(group, _)| *group).collect())
    }

    fn bucket_pattern(&self) -> &'static str {
        if self.bucketed { ":[0-9a-f][0-9a-f]" } else { "" }
    }

    /// Returns the name of the lock that `key` belongs to; `None` for another key.
    pub(crate) fn name(&self, key: &str) -> Option<LockName> {
        let tag = key.strip_prefix('{')?.strip_prefix(&self.prefix)?;
        let (bucket, kind) = tag.split_once("}:")?;
        let (_, name) = kind.split_once(':')?;
        let name = LockName::from_store(name).ok()?;
        let expected = if self.bucketed { format!(":{}", Bucket::of(&name)) } else { String::new() };
        (bucket == expected).then_some(name)
    }
}

/// Deletes all keys of these prefixes on the server of `link`, in a cluster or not, with one scan.
///
/// # Errors
/// If the server is unavailable, or the user may not delete keys.
pub(crate) async fn delete_all(link: &Link, prefixes: &[String]) -> Result<()> {
    let Some(first) = prefixes.first() else { return Ok(()) };
    let is_common = |end: &usize| prefixes.iter().all(|prefix| prefix.starts_with(&first[..*end]));
    let common = (0..=first.len()).rev().find(is_common).unwrap_or(0);
    let pattern = format!("{{{}*", escape_pattern(&first[..common]));
    // The key of another prefix that begins in the same way is kept.
    let is_ours = |key: &[u8]| {
        let tag = str::from_utf8(key)
            .ok()
            .and_then(|key| key.strip_prefix('{')?.split_once('}'))
            .map(|(tag, _)| tag);
        tag.is_some_and(|tag| {
            let prefix = tag.split_once(':').map_or(tag, |(prefix, _)| prefix);
            prefixes.iter().any(|own| own == prefix)
        })
    };
    let mut cursor = 0;
    loop {
        let (next, keys) = scan(link, cursor, &pattern).await?;
        for key in keys.iter().filter(|key| is_ours(key)) {
            let mut delete = redis::cmd("DEL");
            delete.arg(key);
            link.call(Operation::Inspect, INSPECT_TIMEOUT, Call::Command(&delete)).await.outcome?;
        }
        if next == 0 {
            return Ok(());
        }
        cursor = next;
    }
}

/// Scans some keys, from `cursor`. Returns the next cursor, 0 at the end, and the keys that match `pattern`.
async fn scan(link: &Link, cursor: u64, pattern: &str) -> Result<(u64, Vec<Vec<u8>>)> {
    let mut scan = redis::cmd("SCAN");
    scan.arg(cursor).arg("MATCH").arg(pattern).arg("COUNT").arg(SCAN_COUNT);
    let reply = link.call(Operation::Inspect, INSPECT_TIMEOUT, Call::Command(&scan)).await.outcome?;
    link.read(Operation::Inspect, reply)
}

/// Returns the status of the locks of `names` that are in use, in the order of their names. A few are inspected at a time, each with a time
/// limit of its own.
///
/// # Errors
/// If the store is unavailable.
pub(crate) async fn inspect_all(store: &impl Inspect, names: BTreeSet<LockName>) -> Result<Vec<LockStatus>> {
    let locks = stream::iter(names)
        .map(async move |name| store.inspect(&name).await)
        .buffered(CONCURRENT_INSPECTIONS);
    locks.try_filter(|lock| future::ready(!lock.is_free())).try_collect().await
}

/// Returns a pattern that matches only `text`.
fn escape_pattern(text: &str) -> String {
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
    fn a_key_converts_back_to_its_lock() {
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
        // Fixed for ever: a version with another mapping would use other keys for the same lock.
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
        assert_eq!(CHECKSUM.checksum(b"123456789"), 0x31C3);
        // The values that `CLUSTER KEYSLOT` returns for these keys.
        assert_eq!(CHECKSUM.checksum(b"foo") % SLOTS, 12_182);
    }

    #[test]
    fn a_pattern_escapes_special_characters() {
        assert_eq!(Keys::new("app:x").pattern("hq", "a*[b]\\"), "{app:x}:[hq]:a\\*\\[b\\]\\\\*");
    }
}
