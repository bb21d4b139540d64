//! The upgrade of a hold, from the side of the user.

use std::{
    future::{Future, IntoFuture},
    pin::Pin,
    time::Duration,
};

use crate::{Mode, Result, engine::SharedHold};

/// An upgrade of a hold to a stronger mode: created by [`Guard::upgrade`](crate::Guard::upgrade), carried out by `.await`.
///
/// It is ahead of all waiters: while it waits for the other holders in its way, no request in a mode that conflicts with the new mode is
/// granted the lock. The hold keeps its mode meanwhile. A hold that was upgraded has a new, greater token.
///
/// # Errors
/// * [`Error::Deadlock`](crate::Error::Deadlock) at once if another holder waits for an upgrade that this hold is in the way of. Of two
///   readers that both upgrade, one gets it; so acquire [`Mode::ProtectedWrite`] to read first, and maybe write later, beside readers in
///   [`Mode::ConcurrentRead`].
/// * [`Error::NotAcquired`](crate::Error::NotAcquired) if the [`wait`](Self::wait) is over before the other holders have released the lock.
/// * [`Error::Lost`](crate::Error::Lost) if the lock is lost, [`Error::Unsupported`](crate::Error::Unsupported) if the store can't
///   convert holds, [`Error::Config`](crate::Error::Config) if the mode does not cover the present one,
///   [`Error::Unavailable`](crate::Error::Unavailable) if the store has failed permanently. Temporary failures are retried as long as the
///   lock is held.
///
/// After each of these, but a loss, the lock is held as before.
///
/// # Cancel safety
/// The future may be dropped at any point. The hold then keeps its mode, or gets it back if it was upgraded meanwhile; instead of
/// [`Mode::Null`], it gets [`Mode::ConcurrentRead`].
///
/// ```
/// # use std::time::Duration;
/// use polylock_core::Mode;
///
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// # let locks = polylock_core::Locks::new(polylock_core::memory::connect());
/// let mut guard = locks.lock("orders").shared().acquire().await?;
/// let before = guard.fencing_token();
/// guard.upgrade(Mode::Exclusive).wait(Duration::from_secs(5)).await?;
/// assert!(guard.fencing_token() > before);
/// guard.downgrade(Mode::Shared).await?;
/// assert!(locks.lock("orders").shared().try_acquire().await?.is_some());
/// # Ok::<(), polylock_core::Error>(()) }).unwrap();
/// ```
#[derive(Debug)]
#[must_use = "an upgrade does nothing until it is awaited"]
pub struct Upgrade<'a> {
    hold: &'a SharedHold,
    to: Mode,
    wait: Option<Duration>,
}

impl<'a> Upgrade<'a> {
    pub(crate) const fn new(hold: &'a SharedHold, to: Mode) -> Self {
        Self { hold, to, wait: None }
    }

    /// Sets the time limit for the other holders in the way, and for a conversion of the same hold by another of its guards. Without one,
    /// the upgrade waits as long as the lock is held. With [`Duration::ZERO`], it is tried once.
    pub const fn wait(mut self, wait: Duration) -> Self {
        self.wait = Some(wait);
        self
    }
}

impl<'a> IntoFuture for Upgrade<'a> {
    type Output = Result<()>;
    type IntoFuture = Pin<Box<dyn Future<Output = Result<()>> + Send + 'a>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.hold.upgrade(self.to, self.wait))
    }
}
