//! Breaking a lock, from the side of the user.

use std::{
    future::{Future, IntoFuture},
    pin::Pin,
    sync::Arc,
};

use crate::{
    BreakNotice, BreakOrder, ConfigError, Entry, FencingToken, Inspect, InvalidName, Label, LockName,
    Operation, OwnerId, Result, engine::StoreHandle,
};

/// A break to be carried out: created by [`Locks::break_lock`](crate::Locks::break_lock), sent by `.await`.
///
/// By default it is cooperative: the store marks the holds, and their holders are notified (at once if the store can push,
/// otherwise at their next renewal, within a third of their lease), stop their work and release. The next waiter is granted the
/// lock when they have released it or their leases have expired, so two holders never overlap. With [`force`](Self::force), it is
/// granted the lock at once.
///
/// It breaks the holds that have these [tokens](Self::token); without a token, the holds that the lock has when it is awaited. A hold
/// that begins later is never broken, and neither is one that was converted since: its token is another one.
///
/// Returns the holders that were marked or removed. The list is empty if none of these holds exists any more.
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
    tokens: Vec<FencingToken>,
    force: bool,
}

impl BreakLock {
    pub(crate) fn new(handle: Arc<StoreHandle>, name: &str) -> Self {
        Self {
            handle,
            name: LockName::from_store(name),
            by: OwnerId::process(),
            reason: None,
            tokens: Vec::new(),
            force: false,
        }
    }

    /// Breaks the hold with this fencing token, and others only if they are named as well.
    pub fn token(mut self, token: FencingToken) -> Self {
        self.tokens.push(token);
        self
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
        let mut order = BreakOrder::new(
            BreakNotice::new(self.by, self.reason.transpose()?),
            self.tokens.into_iter().map(Some),
        );
        order.force = self.force;
        tracing::warn!(lock.name = %name, force = order.force, notice = %order.notice, "breaking a lock");
        let with = |inspect: Arc<dyn Inspect>| async move {
            if order.targets.is_empty() {
                order.targets =
                    inspect.inspect(&name).await?.holders.iter().map(|holder| holder.token).collect();
            }
            match order.targets.is_empty() {
                true => Ok(Vec::new()),
                false => inspect.break_lock(&name, &order).await,
            }
        };
        self.handle.inspect(Operation::Break, with).await
    }
}

impl IntoFuture for BreakLock {
    type Output = Result<Vec<Entry>>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.send())
    }
}
