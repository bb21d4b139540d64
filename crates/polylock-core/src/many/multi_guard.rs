//! The guard of several locks that are held together.

use std::{fmt, future::Future, time::Duration};

use futures_util::future::{Either, join_all, select_all};
use tracing::{Instrument, Span};

use crate::{
    Error, FencingToken, Guard, LockName, LostReason, Moment, Result,
    guard::{Protected, RELEASE_LIMIT},
};

/// Several locks that are held together.
///
/// The loss of one lock is the loss of all: [`is_held`](Self::is_held) is true only while each lock is held, and
/// [`deadline`](Self::deadline) is the earliest one. The other locks stay taken, and are renewed, until this guard is released or dropped,
/// because the work under them may not have stopped yet. [`run`](Self::run) stops the work and then releases them.
///
/// Dropping it releases all of the locks in the background, as the drop of a [`Guard`] does.
#[must_use = "a guard that is dropped releases its locks at once"]
#[clippy::has_significant_drop]
pub struct MultiGuard {
    /// Sorted by name, and never empty.
    guards: Vec<Guard>,
}

impl MultiGuard {
    pub(super) const fn new(guards: Vec<Guard>) -> Self {
        Self { guards }
    }

    /// Returns the guards of the single locks, sorted by name.
    pub fn guards(&self) -> &[Guard] {
        &self.guards
    }

    /// Returns the guard of the lock `name`; `None` if it is not one of these locks.
    #[must_use]
    pub fn guard(&self, name: impl AsRef<str>) -> Option<&Guard> {
        self.guards.iter().find(|guard| guard.name().as_str() == name.as_ref())
    }

    /// Returns the names of the locks, sorted.
    pub fn names(&self) -> impl Iterator<Item = &LockName> {
        self.guards.iter().map(Guard::name)
    }

    /// Returns the fencing token of the lock `name`; `None` if it is not one of these locks.
    ///
    /// Tokens of different locks are not comparable: a resource compares the tokens of one lock.
    #[must_use]
    pub fn fencing_token(&self, name: impl AsRef<str>) -> Option<FencingToken> {
        self.guard(name).map(Guard::fencing_token)
    }

    /// Returns the name and the fencing token of each lock, sorted by name.
    pub fn fencing_tokens(&self) -> impl Iterator<Item = (&LockName, FencingToken)> {
        self.guards.iter().map(|guard| (guard.name(), guard.fencing_token()))
    }

    /// Returns true if all of the locks are held now. Reads only the clock: no I/O.
    #[must_use]
    pub fn is_held(&self) -> bool {
        self.guards.iter().all(Guard::is_held)
    }

    /// Returns the earliest [deadline](Guard::deadline) of the locks.
    #[must_use]
    pub fn deadline(&self) -> Moment {
        self.guards.iter().map(Guard::deadline).min().unwrap_or_default()
    }

    /// Returns the time left until the [`deadline`](Self::deadline); zero if a hold has ended.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        self.guards.iter().map(Guard::remaining).min().unwrap_or_default()
    }

    /// Checks that all of the locks are held, before a side effect.
    ///
    /// # Errors
    /// [`Error::Lost`] with the name of the first lock that is not held.
    pub fn ensure_held(&self) -> Result<()> {
        self.guards.iter().try_for_each(Guard::ensure_held)
    }

    /// Completes when one of the locks has been lost, with its name and the reason. The future borrows nothing, and a release never
    /// completes it.
    ///
    /// Do not rely on a `select!` with it to stop work: see [`Guard::lost`].
    pub fn lost(&self) -> impl Future<Output = (LockName, LostReason)> + Send + Sync + 'static {
        let lost = self.guards.iter().map(|guard| {
            let (name, lost) = (guard.name().clone(), guard.lost());
            Box::pin(async move { (name, lost.await) })
        });
        let any = select_all(lost);
        async move { any.await.0 }
    }

    /// Completes with the new [`deadline`](Self::deadline) when renewals have moved it after this call, or with `None` when a hold has
    /// ended.
    ///
    /// To miss no renewal, call it before [`deadline`](Self::deadline).
    pub fn renewed(&self) -> impl Future<Output = Option<Moment>> + Send + Sync + 'static {
        if let [guard] = self.guards.as_slice() {
            return Either::Left(guard.renewed());
        }
        // A renewal between the two calls is not missed: it completes the future of the first one.
        let renewals = self.guards.iter().map(|guard| (Box::pin(guard.renewed()), guard.deadline()));
        let renewals: Vec<_> = renewals.collect();
        let present = renewals.iter().map(|(_, deadline)| *deadline).min().unwrap_or_default();
        let lost = self.lost();
        let moved = async move {
            let mut new = Moment::NEVER;
            for (renewed, deadline) in renewals {
                // Only the locks with the earliest deadline determine that of all.
                let deadline = if deadline == present { renewed.await? } else { deadline };
                new = new.min(deadline);
            }
            Some(new)
        };
        Either::Right(async move {
            tokio::select! {
                biased;
                _ = lost => None,
                new = moved => new,
            }
        })
    }

    /// Runs `work` under the locks, then releases them. Stops `work` if one of the locks is lost.
    ///
    /// The clock is read before every poll of `work`, as by [`Guard::run`].
    ///
    /// # Errors
    /// [`Error::Lost`] with the name of a lock that was lost before `work` completed, or that a release found gone. A release that is not
    /// acknowledged within half a second is no error: it continues in the background.
    ///
    /// # Cancel safety
    /// Dropping the future drops `work` and releases the locks.
    pub async fn run<F: Future>(self, work: F) -> Result<F::Output> {
        let span = self.guards.first().map_or_else(Span::none, Guard::span);
        let lost = Box::pin(self.lost());
        let protected = Protected::new(work.instrument(span), || self.ensure_held(), lost);
        let output = protected.await?;
        match self.release_within(Some(RELEASE_LIMIT)).await {
            Err(error @ Error::Lost { .. }) => Err(error),
            Ok(()) | Err(_) => Ok(output),
        }
    }

    /// Releases all of the locks and waits until the store has confirmed it.
    ///
    /// # Errors
    /// [`Error::Lost`] with the name of a lock that was lost before, even if only the reply to its release reports it; the others are
    /// released all the same. [`Error::Unavailable`] as of [`Guard::release`].
    ///
    /// # Cancel safety
    /// Once polled, the releases continue in the background if the future is dropped.
    pub async fn release(self) -> Result<()> {
        self.release_within(None).await
    }

    async fn release_within(self, limit: Option<Duration>) -> Result<()> {
        outcome(join_all(self.guards.into_iter().map(|guard| guard.release_within(limit))).await)
    }

    /// Stops the renewals without a release; see [`Guard::leave_to_expire`].
    ///
    /// # Errors
    /// [`Error::Lost`] with the name of a lock that was lost before; the others are left to expire all the same.
    pub fn leave_to_expire(self) -> Result<()> {
        outcome(self.guards.into_iter().map(Guard::leave_to_expire).collect())
    }

    /// Keeps the locks for another `delay`, then releases them; see [`Guard::release_after`].
    ///
    /// # Errors
    /// The same as [`release`](Self::release).
    ///
    /// # Cancel safety
    /// The same as that of [`Guard::release_after`], for each lock.
    pub async fn release_after(self, delay: Duration) -> Result<()> {
        outcome(join_all(self.guards.into_iter().map(|guard| guard.release_after(delay))).await)
    }
}

impl From<Guard> for MultiGuard {
    fn from(guard: Guard) -> Self {
        Self::new(vec![guard])
    }
}

/// Returns the loss of a lock if there is one, else the first other error.
fn outcome(results: Vec<Result<()>>) -> Result<()> {
    let mut errors: Vec<Error> = results.into_iter().filter_map(Result::err).collect();
    let first = errors.iter().position(|error| error.lost().is_some()).unwrap_or_default();
    if errors.is_empty() { Ok(()) } else { Err(errors.swap_remove(first)) }
}

impl fmt::Debug for MultiGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MultiGuard").field("guards", &self.guards).finish_non_exhaustive()
    }
}
