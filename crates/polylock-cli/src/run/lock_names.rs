//! The names of the locks of one run.

use std::fmt;

use polylock::{InvalidName, LockName};

/// The lock of the run, and those of `--also`. Each name is in it once.
#[derive(Debug, Clone)]
pub(super) struct LockNames {
    main: LockName,
    also: Vec<LockName>,
    /// The lock of the slot that is held, if `main` is a semaphore.
    slot: Option<LockName>,
}

impl LockNames {
    pub(super) fn new(main: &str, also: &[String]) -> Result<Self, InvalidName> {
        let mut names = Self { main: LockName::new(main)?, also: Vec::new(), slot: None };
        for name in also {
            let name = LockName::new(name)?;
            if !names.iter().any(|other| *other == name) {
                names.also.push(name);
            }
        }
        Ok(names)
    }

    /// Returns the name of the lock without `--also`.
    pub(super) const fn main(&self) -> &LockName {
        &self.main
    }

    /// Records the lock of the slot that is held.
    pub(super) fn hold_slot(&mut self, lock: LockName) {
        self.slot = Some(lock);
    }

    /// Returns the number of the slot that is held.
    pub(super) fn slot(&self) -> Option<u32> {
        self.slot.as_ref().and_then(|lock| lock.slot()).map(|(_, slot)| slot)
    }

    /// Returns the locks that are held, in the order of [`iter`](Self::iter).
    pub(super) fn held(&self) -> impl Iterator<Item = &LockName> {
        std::iter::once(self.slot.as_ref().unwrap_or(&self.main)).chain(&self.also)
    }

    /// Returns the names of `--also`.
    pub(super) fn also(&self) -> &[LockName] {
        &self.also
    }

    /// Returns all names, in the order of the command line.
    pub(super) fn iter(&self) -> impl Iterator<Item = &LockName> {
        std::iter::once(&self.main).chain(&self.also)
    }
}

impl fmt::Display for LockNames {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.main)?;
        self.also.iter().try_for_each(|name| write!(f, ", {name}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_name_is_there_once_in_the_order_of_the_command_line() {
        let also = ["a", "b", "c", "a"].map(str::to_owned);
        let names = LockNames::new("b", &also).unwrap();
        assert_eq!(names.to_string(), "b, a, c");
        assert_eq!(names.main().as_str(), "b");
        assert!(LockNames::new("b", &[String::new()]).is_err());
    }
}
