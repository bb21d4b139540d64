//! Lock names, checked before any I/O and by the same rules for every store.

use std::{fmt, str::FromStr, sync::Arc};

/// Separates the name of a semaphore from the number of a slot. No name of a user contains it.
const PART: char = '\0';

/// The name of a lock: UTF-8 of 1 to 255 bytes without NUL, compared byte for byte.
///
/// Case, trailing spaces and Unicode normalisation forms are significant on every store: `Job` and `job` are two locks. A store may
/// encode a name, but never rejects one.
///
/// ```
/// use polylock_core::LockName;
///
/// let name = LockName::new("orders/42")?;
/// assert_eq!(name.as_str(), "orders/42");
/// assert!(LockName::new("").is_err());
/// # Ok::<(), polylock_core::Error>(())
/// ```
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LockName(Arc<str>);

impl LockName {
    /// The greatest length of a name, in bytes.
    pub const MAX_BYTES: usize = 255;

    /// The greatest number of slots of a semaphore.
    pub(crate) const MAX_SLOTS: u32 = 1024;

    /// The greatest length of the name of a semaphore, in bytes: with the number of any slot, it is as long as that of a lock.
    pub(crate) const MAX_SEMAPHORE_BYTES: usize = 250;

    /// Creates a name from a text that is valid.
    ///
    /// # Errors
    /// [`InvalidName`] states the problem.
    pub fn new(name: impl AsRef<str>) -> Result<Self, InvalidName> {
        let name = name.as_ref();
        if name.is_empty() {
            return Err(InvalidName::Empty);
        }
        if name.len() > Self::MAX_BYTES {
            return Err(InvalidName::TooLong { bytes: name.len() });
        }
        if let Some(at) = name.bytes().position(|byte| byte == 0) {
            return Err(InvalidName::Nul { at });
        }
        Ok(Self(name.into()))
    }

    /// Returns the names of the nodes from the root to the node `path`, which a `/` separates.
    pub(crate) fn nodes_to(path: &str) -> Result<Vec<Self>, InvalidName> {
        let path = Self::new(path)?;
        let text = path.as_str();
        let ends: Vec<usize> = text.match_indices('/').map(|(at, _)| at).chain([text.len()]).collect();
        let begins = [0].into_iter().chain(ends.iter().map(|end| end + 1));
        if let Some((at, _)) = begins.zip(&ends).find(|(begin, end)| begin == *end) {
            return Err(InvalidName::EmptyComponent { at });
        }
        Ok(ends.into_iter().map(|end| Self(text[..end].into())).collect())
    }

    /// Creates a name from the text that a store has kept: a valid name, or one of the locks of which core composes a
    /// [semaphore](crate::Semaphore). These are the name of the semaphore and a NUL byte, followed by the number of the slot if it is not the
    /// turnstile. So they can't be equal to the name of a user's lock.
    ///
    /// # Errors
    /// [`InvalidName`] states the problem.
    pub fn from_store(name: impl AsRef<str>) -> Result<Self, InvalidName> {
        let name = name.as_ref();
        // No semaphore has an empty name.
        let parts = name.split_once(PART).filter(|(semaphore, _)| !semaphore.is_empty());
        let Some((semaphore, slot)) = parts else { return Self::new(name) };
        let semaphore = Self::new(semaphore)?;
        let slot =
            if slot.is_empty() { None } else { slot.parse().ok().filter(|slot| *slot < Self::MAX_SLOTS) };
        let part = semaphore.of_semaphore(slot);
        let is_valid = part.as_str() == name && semaphore.as_str().len() <= Self::MAX_SEMAPHORE_BYTES;
        if is_valid { Ok(part) } else { Err(InvalidName::Nul { at: semaphore.as_str().len() }) }
    }

    /// Returns the name of the lock of a slot of the semaphore with this name.
    ///
    /// # Errors
    /// [`InvalidName`] if the name is not one of a semaphore, or no semaphore has a slot with this number.
    pub fn of_slot(semaphore: &str, slot: u32) -> Result<Self, InvalidName> {
        Self::new(semaphore)?;
        Self::from_store(format!("{semaphore}{PART}{slot}"))
    }

    /// Returns the name of the lock of a slot of the semaphore with this name, or of its turnstile.
    pub(crate) fn of_semaphore(&self, slot: Option<u32>) -> Self {
        let name = &self.0;
        Self(slot.map_or_else(|| format!("{name}{PART}"), |slot| format!("{name}{PART}{slot}")).into())
    }

    /// Returns the name of the semaphore if this is the lock of a slot or a turnstile.
    #[must_use]
    pub fn semaphore(&self) -> Option<&str> {
        self.0.split_once(PART).map(|(semaphore, _)| semaphore)
    }

    /// Returns the name of the semaphore and the number of the slot if this is the lock of a slot.
    #[must_use]
    pub fn slot(&self) -> Option<(&str, u32)> {
        let (semaphore, slot) = self.0.split_once(PART)?;
        Some((semaphore, slot.parse().ok()?))
    }

    /// Returns true if this is the turnstile of a semaphore, for which its acquisitions wait.
    #[must_use]
    pub fn is_turnstile(&self) -> bool {
        self.0.ends_with(PART)
    }

    /// Returns the name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl AsRef<str> for LockName {
    fn as_ref(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for LockName {
    /// Writes the name with control characters escaped, so that a name can't forge a log line. The lock of a slot is `gpu slot 2`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, part) =
            self.0.split_once(PART).map_or((&*self.0, None), |(name, part)| (name, Some(part)));
        for c in name.chars() {
            if c.is_control() { write!(f, "{}", c.escape_default())? } else { write!(f, "{c}")? }
        }
        match part {
            None => Ok(()),
            Some("") => f.write_str(" turnstile"),
            Some(slot) => write!(f, " slot {slot}"),
        }
    }
}

impl fmt::Debug for LockName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&*self.0, f)
    }
}

impl FromStr for LockName {
    type Err = InvalidName;

    fn from_str(name: &str) -> Result<Self, InvalidName> {
        Self::new(name)
    }
}

/// The reason for which a text is not a valid lock name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidName {
    /// The text is empty.
    #[error("a lock name can't be empty: use 1 to 255 bytes")]
    Empty,
    /// The text is longer than [`LockName::MAX_BYTES`]. It is never cut silently: two long names would become one lock.
    #[error("a lock name of {bytes} bytes is too long: use at most 255, or hash the long part")]
    TooLong {
        /// The length of the text, in bytes.
        bytes: usize,
    },
    /// The text contains a NUL byte, which several stores can't keep.
    #[error("a lock name can't contain a NUL byte (at byte {at}): remove it")]
    Nul {
        /// The position of the first NUL byte.
        at: usize,
    },
    /// The text is the path of a [tree](crate::Locks::tree) with an empty component: `/` at its begin or end, or `//`.
    #[error(
        "the path of a tree can't have an empty component (at byte {at}): use names with one / between them"
    )]
    EmptyComponent {
        /// The position of the component.
        at: usize,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_bytes_and_inclusive() {
        assert_eq!(LockName::new("x".repeat(255)).map(|n| n.as_str().len()), Ok(255));
        assert_eq!(LockName::new("x".repeat(256)), Err(InvalidName::TooLong { bytes: 256 }));
        assert_eq!(LockName::new("é".repeat(128)), Err(InvalidName::TooLong { bytes: 256 }));
        assert_eq!(LockName::new(""), Err(InvalidName::Empty));
        assert_eq!(LockName::new("a\0b"), Err(InvalidName::Nul { at: 1 }));
    }

    #[test]
    fn the_nodes_to_a_path_begin_at_the_root() {
        let nodes = |path| {
            let nodes = LockName::nodes_to(path)?;
            Ok::<Vec<String>, InvalidName>(nodes.into_iter().map(|node| node.to_string()).collect())
        };
        assert_eq!(nodes("db"), Ok(vec!["db".to_owned()]));
        assert_eq!(nodes("db/é/42"), Ok(["db", "db/é", "db/é/42"].map(str::to_owned).to_vec()));
        for (path, at) in [("/db", 0), ("db/", 3), ("db//42", 3), ("/", 0)] {
            assert_eq!(nodes(path), Err(InvalidName::EmptyComponent { at }), "{path}");
        }
        assert_eq!(nodes(""), Err(InvalidName::Empty));
    }

    #[test]
    fn the_locks_of_a_semaphore_are_no_names_of_users() {
        let gpu = LockName::new("gpu").unwrap();
        let (turnstile, slot) = (gpu.of_semaphore(None), gpu.of_semaphore(Some(12)));
        assert_eq!(
            (turnstile.to_string(), slot.to_string()),
            ("gpu turnstile".to_owned(), "gpu slot 12".to_owned())
        );
        assert_eq!((turnstile.slot(), slot.slot(), gpu.slot()), (None, Some(("gpu", 12)), None));
        assert_eq!(
            (turnstile.semaphore(), slot.semaphore(), gpu.semaphore()),
            (Some("gpu"), Some("gpu"), None)
        );
        for name in [&gpu, &turnstile, &slot] {
            assert_eq!(LockName::from_store(name.as_str()), Ok(name.clone()));
        }
        for part in [&turnstile, &slot] {
            assert!(LockName::new(part.as_str()).is_err(), "{part:?}");
        }
        for invalid in ["", "\0", "\x001", "a\0x", "a\x0007", "a\x001024", "a\x001\0", "a\0+1"] {
            assert!(LockName::from_store(invalid).is_err(), "{invalid:?}");
        }
        let longest = LockName::new("x".repeat(LockName::MAX_SEMAPHORE_BYTES)).unwrap();
        let slot = longest.of_semaphore(Some(LockName::MAX_SLOTS - 1));
        assert_eq!(slot.as_str().len(), LockName::MAX_BYTES);
        assert_eq!(LockName::from_store("\0"), Err(InvalidName::Nul { at: 0 }));
        assert_eq!(LockName::of_slot("", 0), Err(InvalidName::Empty));
        assert_eq!(LockName::from_store(slot.as_str()), Ok(slot));
        assert!(LockName::from_store(format!("{}\x001", "x".repeat(251))).is_err());
    }

    #[test]
    fn display_can_not_forge_a_log_line() {
        let name = LockName::new("a\nERROR b").unwrap();
        assert_eq!(name.to_string(), "a\\nERROR b");
        assert_eq!(name.as_str(), "a\nERROR b");
    }
}
