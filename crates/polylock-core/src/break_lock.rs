//! Breaking a lock: the order to break it, and the notice that the former holder receives.

use std::{
    fmt,
    future::{Future, IntoFuture},
    pin::Pin,
    sync::Arc,
};

use crate::{
    ConfigError, Entry, InvalidName, Label, LockName, Operation, OwnerId, Result, engine::StoreHandle, locks,
};

/// The owner that broke a lock, and the reason.
///
/// It is part of [`LostReason::Broken`](crate::LostReason::Broken), so it appears in the former holder's error and log.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub struct BreakNotice {
    /// The owner that broke the lock; `None` if the store does not know it, for example because its own tools were used.
    pub by: Option<OwnerId>,
    /// The reason, if one was given.
    pub reason: Option<Label>,
}

impl BreakNotice {
    /// Creates a notice from `by`.
    #[must_use]
    pub const fn new(by: OwnerId, reason: Option<Label>) -> Self {
        Self { by: Some(by), reason }
    }

    /// Returns the notice as one text, for stores that keep it in one field. [`from_text`](Self::from_text) parses it.
    #[must_use]
    pub fn to_text(&self) -> String {
        // Neither part contains a line feed: owners and labels have no control characters.
        let by = self.by.as_ref().map_or("", OwnerId::as_str);
        format!("{by}\n{}", self.reason.as_ref().map_or("", Label::as_str))
    }

    /// Parses [`to_text`](Self::to_text). Never fails, because other programs can write to the store, too.
    #[must_use]
    pub fn from_text(text: &str) -> Self {
        let (by, reason) = text.split_once('\n').unwrap_or((text, ""));
        Self {
            by: (!by.is_empty()).then(|| OwnerId::sanitized(by)),
            reason: (!reason.is_empty()).then(|| Label::sanitized(reason)),
        }
    }
}

impl fmt::Display for BreakNotice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.by {
            Some(by) => write!(f, "broken by {by}")?,
            None => f.write_str("broken")?,
        }
        self.reason.as_ref().map_or(Ok(()), |reason| write!(f, ": {}", reason.as_str()))
    }
}

/// An order to break a lock, as a store receives it in [`Inspect::break_lock`](crate::Inspect::break_lock).
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct BreakOrder {
    /// The notice for the former holders.
    pub notice: BreakNotice,
    /// True to remove the holds at once instead of marking them.
    pub force: bool,
}

impl BreakOrder {
    /// Creates a cooperative order: holds are marked, and end when their holders have released them or their leases have expired.
    #[must_use]
    pub const fn new(notice: BreakNotice) -> Self {
        Self { notice, force: false }
    }

    /// Returns the same order with force, which removes the holds at once.
    #[must_use]
    pub const fn force(mut self) -> Self {
        self.force = true;
        self
    }
}

/// A break to be carried out: created by [`Locks::break_lock`](crate::Locks::break_lock), sent by `.await`.
///
/// By default it is cooperative: the store marks the holds, and their holders are notified (at once if the store can push,
/// otherwise at their next renewal, within a third of their lease), stop their work and release. The next waiter is granted the
/// lock when they have released it or their leases have expired, so two holders never overlap. With [`force`](Self::force), it is
/// granted the lock at once.
///
/// Returns the holders that were marked or removed.
///
/// # Errors
/// [`Error::Unsupported`](crate::Error::Unsupported) if the store cannot be inspected,
/// [`Error::InvalidName`](crate::Error::InvalidName), [`Error::Config`](crate::Error::Config) on an invalid reason,
/// [`Error::Unavailable`](crate::Error::Unavailable).
///
/// # Cancel safety
/// Once polled, the break is carried out even if the future is dropped.
///
/// ```
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// # let locks = polylock_core::Locks::new(polylock_core::memory::connect());
/// let guard = locks.lock("nightly").acquire().await?;
/// let holders = locks.break_lock("nightly").reason("host-a is being replaced").await?;
/// assert_eq!(holders.len(), 1);
///
/// let lost = guard.lost().await;                               // broken by host:pid: host-a is being replaced
/// assert!(locks.lock("nightly").try_acquire().await?.is_none()); // not before the holder has stopped
/// drop(guard);
/// # assert!(lost.to_string().ends_with("host-a is being replaced"), "{lost}");
/// # Ok::<(), polylock_core::Error>(()) }).unwrap();
/// ```
#[derive(Debug)]
#[must_use = "a break does nothing until it is awaited"]
pub struct BreakLock {
    handle: Arc<StoreHandle>,
    name: Result<LockName, InvalidName>,
    by: OwnerId,
    reason: Option<Result<Label, ConfigError>>,
    force: bool,
}

impl BreakLock {
    pub(crate) fn new(handle: Arc<StoreHandle>, name: &str) -> Self {
        Self { handle, name: LockName::new(name), by: OwnerId::process(), reason: None, force: false }
    }

    /// Sets the owner that breaks the lock, for the former holder; `host:pid` by default.
    pub fn by(mut self, owner: &OwnerId) -> Self {
        self.by = owner.clone();
        self
    }

    /// Sets the reason, for the former holder: at most 255 bytes without control characters.
    pub fn reason(mut self, reason: impl AsRef<str>) -> Self {
        self.reason = Some(Label::new(reason));
        self
    }

    /// Removes the holds at once, without waiting for their holders.
    ///
    /// Until a former holder is notified, at its next renewal at the latest, it and the next holder may both work. Only a
    /// resource that checks fencing tokens is protected: the next token is greater.
    pub const fn force(mut self) -> Self {
        self.force = true;
        self
    }

    async fn send(self) -> Result<Vec<Entry>> {
        let name = self.name?;
        let mut order = BreakOrder::new(BreakNotice::new(self.by, self.reason.transpose()?));
        order.force = self.force;
        tracing::warn!(lock.name = %name, force = order.force, notice = %order.notice, "breaking a lock");
        let with = |inspect: Arc<dyn crate::Inspect>| async move { inspect.break_lock(&name, &order).await };
        locks::inspect_with(&self.handle, Operation::Break, with).await
    }
}

impl IntoFuture for BreakLock {
    type Output = Result<Vec<Entry>>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.send())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_notice_survives_its_text_form() {
        let by = OwnerId::new("host:1").unwrap();
        for notice in [
            BreakNotice::new(by.clone(), Some(Label::new("it hangs").unwrap())),
            BreakNotice::new(by, None),
            BreakNotice::default(),
        ] {
            assert_eq!(BreakNotice::from_text(&notice.to_text()), notice);
        }
    }

    #[test]
    fn a_forged_text_stays_on_one_line() {
        let notice = BreakNotice::from_text("evil\nlost\nk2: free\u{2028}x");
        assert_eq!(notice.to_string(), "broken by evil: lost\u{fffd}k2: free\u{fffd}x");
        assert_eq!(BreakNotice::from_text("").to_string(), "broken");
    }
}
