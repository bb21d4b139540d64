//! Leader election: one of several candidates leads at a time, and another one takes over when its term ends.

mod observe;
mod term;

use std::{sync::Arc, time::Duration};

pub use self::{
    observe::{Leader, LeaderWatch, Leadership},
    term::Term,
};
use crate::{
    Guard, Lock, LockName, Moment, Order, OwnerId, Progress, QueuePosition, Result, Watch,
    engine::{Backoff, StoreHandle},
    io,
    watch::Target,
};

/// The longest pause before a candidate campaigns again, before the jitter.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// The duration from which a term counts as a success: the pause after it is the shortest one.
const STEADY: Duration = Duration::from_secs(10);
/// The pause after a term on a store without a queue. Its waiters try once per [`QueuePosition::MAX_RECHECK`] at least, so each
/// other candidate tries before the former leader does.
const WITHOUT_QUEUE: Duration = QueuePosition::MAX_RECHECK.saturating_mul(2);

/// An election: of all candidates for a name, in all processes, one leads at a time.
///
/// [`Locks::election`](crate::Locks::election) creates it, and [`run`](Self::run) campaigns. A leader holds the lock of that name
/// exclusively, and followers wait for it. So a follower costs the store no more than a waiter, and where the store keeps an order
/// ([`Order::Fifo`]), candidates lead in the order in which they have begun to campaign.
///
/// The work of a leader is dropped before the next leader can begin. As with every lease, a write that is in flight while the
/// process is paused can't be stopped: pass the [fencing token](Term::fencing_token) of the term to the resource.
///
/// ```
/// use polylock_core::{Locks, memory};
///
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// let locks = Locks::new(memory::connect());
/// let jobs = locks
///     .election("scheduler")
///     .run(async |term| {
///         println!("leader with token {}", term.fencing_token());
///         12 // the work of a leader, here until it is done
///     })
///     .await?;
/// assert_eq!(jobs, 12);
/// # Ok::<(), polylock_core::Error>(()) }).unwrap();
/// ```
#[derive(Debug)]
#[must_use = "an election does nothing until it is run or observed"]
pub struct Election {
    handle: Arc<StoreHandle>,
    name: String,
    /// The lock of a term.
    lock: Lock,
    /// The grant of the last term.
    granted_at: Option<Moment>,
    pauses: Backoff,
}

impl Election {
    pub(crate) fn new(handle: Arc<StoreHandle>, name: &str) -> Self {
        // A candidate waits for other leaders, and for the store, without a limit.
        let lock = Lock::new(handle.clone(), name).wait(Duration::MAX).outage(Duration::MAX);
        let pauses = Backoff::up_to(LONGEST_PAUSE);
        Self { handle, name: name.to_owned(), lock, granted_at: None, pauses }
    }

    /// Sets the TTL: the time after which another candidate takes over from a dead leader. A longer TTL tolerates longer outages of
    /// the store.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.lock = self.lock.ttl(ttl);
        self
    }

    /// Sets the label of this candidate, which [`observe`](Self::observe) and inspection show: at most 255 bytes without control
    /// characters.
    pub fn label(mut self, label: impl AsRef<str>) -> Self {
        self.lock = self.lock.label(label);
        self
    }

    /// Sets the owner, which [`observe`](Self::observe) and inspection show. The default is the owner of the
    /// [`Locks`](crate::Locks).
    pub fn owner(mut self, owner: &OwnerId) -> Self {
        self.lock = self.lock.owner(owner);
        self
    }

    /// Sets the receiver of the queue position and of outages, for a display.
    pub fn progress(mut self, progress: &Progress) -> Self {
        self.lock = self.lock.progress(progress);
        self
    }

    /// Campaigns, runs `work` while this candidate leads, and campaigns again, until `work` returns in a term.
    ///
    /// Each term calls `work` anew, with its [`Term`]. A term ends in one of three ways:
    ///
    /// 1. `work` returns: the lock is released, and `run` returns the output. This candidate leaves the election.
    /// 2. The lock is lost, for example in an outage of the store: `work` is dropped before another candidate can lead, and this one
    ///    campaigns again.
    /// 3. [`Term::resign`] is called: `work` is dropped, the lock is released, and this candidate campaigns again behind the others.
    ///
    /// A follower waits without a time limit, also for a store that is unreachable. To stop, let `work` return, or drop the future.
    ///
    /// `work` is dropped at its next `await`. A task that `work` has spawned continues: let it end with [`Term::ended`].
    ///
    /// The future can be spawned if `work` is `async move |term| …` and owns its captures.
    ///
    /// # Errors
    /// [`Error::Lost`](crate::Error::Lost) if `work` has returned, and its end may not have been protected (see [`Guard::run`]); the
    /// same as [`Lock::acquire`] for a permanent failure of the store and for an invalid setting.
    ///
    /// # Cancel safety
    /// Dropping the future drops `work`, and releases the lock or leaves the queue.
    #[allow(clippy::future_not_send, reason = "it is as `Send` as the future of the work")]
    pub async fn run<F, T>(mut self, mut work: F) -> Result<T>
    where
        F: AsyncFnMut(Term) -> T,
    {
        loop {
            let guard = self.campaign().await?;
            let term = Term::new(&guard);
            let mut has_returned = false;
            let outcome = guard.run(async {
                tokio::select! {
                    biased;
                    () = term.resigned() => None,
                    output = work(term.clone()) => {
                        // A resignation in the last poll of the work counts.
                        has_returned = !term.has_resigned();
                        has_returned.then_some(output)
                    }
                }
            });
            match outcome.await {
                Ok(Some(output)) => return Ok(output),
                Err(error) if has_returned => return Err(error),
                Ok(None) | Err(_) => {}
            }
        }
    }

    /// Waits until this candidate leads, and returns the guard of its term. The term ends with the guard.
    ///
    /// [`run`](Self::run) calls this for each term. Call it directly if the work needs the guard itself, for example to end in an
    /// orderly way before the deadline. A second call first gives the other candidates a turn.
    ///
    /// # Errors
    /// The same as [`Lock::acquire`] for a permanent failure of the store and for an invalid setting.
    ///
    /// # Cancel safety
    /// The future may be dropped at any point. This candidate then leaves the queue.
    pub async fn campaign(&mut self) -> Result<Guard> {
        if let Some(granted_at) = self.granted_at {
            if self.handle.context.now().since(granted_at) >= STEADY {
                self.pauses.reset();
            }
            let has_queue = self.handle.context.store.backend.capabilities().order == Order::Fifo;
            self.pause(if has_queue { Duration::ZERO } else { WITHOUT_QUEUE }).await?;
        }
        let guard = self.lock.clone().acquire().await?;
        self.granted_at = Some(self.handle.context.now());
        Ok(guard)
    }

    /// Watches the leader without campaigning.
    ///
    /// # Errors
    /// The same as [`Locks::inspect`](crate::Locks::inspect), if the first read fails.
    ///
    /// # Cancel safety
    /// The future may be dropped at any point.
    pub async fn observe(&self) -> Result<LeaderWatch> {
        let target = Target::Lock(LockName::new(&self.name)?);
        Ok(LeaderWatch::new(Watch::open(self.handle.clone(), target).await?))
    }

    /// Waits for the next pause, and for `least`.
    async fn pause(&mut self, least: Duration) -> Result<()> {
        let context = self.handle.context.clone();
        let end = context.now() + self.pauses.next().max(least);
        // The runtime of the caller may have no timers.
        io::run(context.backend(), async move { context.until(end).await }).await
    }
}
