//! What the task of the caller drives, and how the I/O thread takes it over.
//!
//! An operation on the I/O thread costs two wake-ups of threads: one of that thread, one of the caller. They take as long as a fast
//! server. So the caller polls an operation itself as long as that is of use to it. There are two ways:
//!
//! * **[`Moving`]**: the caller polls the future of the operation in the context of the I/O thread, to which its sockets and timers
//!   belong. The I/O thread can go on with the same future at any time.
//! * **[`Driven`]**: the caller drives a claim or a release on a connection of its own runtime ([`Backend::here`]), and the I/O thread
//!   is not needed for the reply either. A future that uses such a connection can't move. The I/O thread starts the operation anew, on
//!   its own connection. That is safe, because operations are idempotent, and because a claim that arrives after its own release
//!   grants nothing.
//!
//! In both ways:
//! 1. The caller begins the operation and polls it.
//! 2. The operation ends, and the caller has its outcome.
//! 3. Or the caller drops the operation, or its runtime ends and drops it. The drop hands it over.
//! 4. Or the operation has not ended after [`PATIENCE`], because the caller is not polled, its runtime is blocked, the server is slow,
//!    or the lock is taken. The watch on the I/O thread takes it over.
//!
//! The caller and the I/O thread never drive an operation at the same time: whoever takes it out of its slot goes on alone.

use std::{
    any::Any,
    collections::VecDeque,
    fmt,
    future::Future,
    panic::{AssertUnwindSafe, catch_unwind},
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError, Weak},
    task::{Context, Poll, Waker},
    time::Duration,
};

use tokio::task::JoinHandle;

use super::shared::Shared;
use crate::{
    Backend, Clock, Error, Moment, Operation, Result,
    io::{self, Here},
};

/// The time an attempt has until the I/O thread takes it over: far more than a server takes where two wake-ups matter, and far less
/// than the shortest lease.
const PATIENCE: Duration = Duration::from_millis(50);

/// The time in which no operation is begun by its caller after one was taken over: the server is slow, or a caller is not polled.
const PAUSE: Duration = Duration::from_secs(1);

/// How long the watch stays without an attempt.
const LINGER: Duration = Duration::from_secs(1);

/// The attempts of all callers on one store.
#[derive(Debug, Default)]
pub(crate) struct Foreground(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// In the order in which they are due. An attempt that has ended stays until then.
    attempts: VecDeque<(Moment, Weak<dyn Attempt>)>,
    /// When the next attempt may begin.
    resume: Moment,
    is_watched: bool,
}

impl Foreground {
    /// The store on a connection on which the caller is to drive its next operation; `None` if the I/O thread is to do that. A child
    /// process made by `fork` must not touch the connections of its parent.
    pub(crate) fn store(&self, shared: &Shared) -> Option<Arc<dyn Backend>> {
        if !shared.is_own_process() || shared.now() < self.lock().resume {
            return None;
        }
        shared.store.backend.here()
    }

    /// An attempt that the caller drives. If the caller drops it, or the I/O thread takes it over, `hand_over` is called with `rest`.
    pub(crate) fn begin<T, R>(
        &self,
        shared: &Arc<Shared>,
        operation: Operation,
        future: impl Future<Output = Result<T>> + Send + 'static,
        rest: R,
        hand_over: fn(R),
    ) -> Driven<T, R>
    where
        T: Send + 'static,
        R: Send + 'static,
    {
        let work = Work { future: Box::pin(future), polled_by: None, rest, hand_over };
        let backend = shared.backend();
        let slot = Arc::new(Slot { backend, operation, work: Mutex::new(Some(work)) });
        self.watch(shared, operation, Arc::downgrade(&slot) as _);
        Driven(slot)
    }

    /// A future that the caller polls, in the context of the I/O thread.
    pub(crate) fn poll<T: Send + 'static>(
        &self,
        shared: &Arc<Shared>,
        operation: Operation,
        here: Here<T>,
    ) -> Moving<T> {
        let site = Arc::new(Site(Mutex::new(Stage::Here { here, polled_by: None })));
        self.watch(shared, operation, Arc::downgrade(&site) as _);
        Moving(site)
    }

    /// Has the I/O thread take `attempt` over when it is due.
    fn watch(&self, shared: &Arc<Shared>, operation: Operation, attempt: Weak<dyn Attempt>) {
        let mut state = self.lock();
        state.attempts.push_back((shared.now() + PATIENCE, attempt));
        if !std::mem::replace(&mut state.is_watched, true) {
            drop(state);
            let watch = watch(Arc::downgrade(shared), shared.clock.clone());
            // Without the thread there are no locks either.
            shared.spawn(operation, watch).ok();
        }
    }

    /// Takes over what is due. Returns whether any attempt is left.
    fn take_over(&self, now: Moment) -> bool {
        loop {
            let mut state = self.lock();
            let Some((due, attempt)) = state.attempts.front() else { return false };
            if *due > now {
                return true;
            }
            let attempt = attempt.upgrade();
            state.attempts.pop_front();
            let Some(attempt) = attempt else { continue };
            // The hand-over spawns a task, and the drop of the attempt calls the store.
            drop(state);
            match attempt.take_over() {
                TakenOver::StartsAnew => self.lock().resume = now + PAUSE,
                TakenOver::HasMoved | TakenOver::HasEnded => {}
                TakenOver::IsPolled => {
                    self.lock().attempts.push_back((now + PATIENCE, Arc::downgrade(&attempt)));
                }
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Takes over the attempts that are due, as long as there are any. It keeps no store open.
async fn watch(store: Weak<Shared>, clock: Arc<dyn Clock>) {
    let mut leaves = clock.now() + LINGER;
    while let Some(shared) = store.upgrade() {
        let now = clock.now();
        if shared.foreground.take_over(now) {
            leaves = now + LINGER;
        }
        if now >= leaves {
            let mut state = shared.foreground.lock();
            if state.attempts.is_empty() {
                state.is_watched = false;
                return;
            }
        }
        drop(shared);
        clock.sleep_until(now + PATIENCE).await;
    }
}

/// What the watch sees of an attempt.
trait Attempt: fmt::Debug + Send + Sync {
    fn take_over(&self) -> TakenOver;
}

enum TakenOver {
    StartsAnew,
    HasMoved,
    HasEnded,
    /// The caller polls it at this moment.
    IsPolled,
}

struct Slot<T, R> {
    backend: &'static str,
    operation: Operation,
    /// Empty once somebody has taken it.
    work: Mutex<Option<Work<T, R>>>,
}

struct Work<T, R> {
    future: Pin<Box<dyn Future<Output = Result<T>> + Send>>,
    /// The task that has polled it last.
    polled_by: Option<Waker>,
    rest: R,
    hand_over: fn(R),
}

impl<T, R> Work<T, R> {
    fn hand_over(self) {
        let Self { future, polled_by, rest, hand_over } = self;
        // First, so that the store knows that its request may come late.
        drop(future);
        hand_over(rest);
        if let Some(caller) = polled_by {
            caller.wake();
        }
    }
}

impl<T, R> fmt::Debug for Slot<T, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Slot").field("operation", &self.operation).finish_non_exhaustive()
    }
}

/// Where a future is that can move.
enum Stage<T: Send + 'static> {
    Here {
        here: Here<T>,
        /// The task that has polled it last.
        polled_by: Option<Waker>,
    },
    OnThread(JoinHandle<T>),
    Ended,
}

struct Site<T: Send + 'static>(Mutex<Stage<T>>);

impl<T: Send + 'static> Site<T> {
    fn lock(&self) -> MutexGuard<'_, Stage<T>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T: Send + 'static> fmt::Debug for Site<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Site").finish_non_exhaustive()
    }
}

impl<T: Send + 'static> Attempt for Site<T> {
    fn take_over(&self) -> TakenOver {
        let Some(mut stage) = unless_polled(&self.0) else { return TakenOver::IsPolled };
        let Stage::Here { here, polled_by } = &mut *stage else { return TakenOver::HasEnded };
        let (task, polled_by) = (here.go_on(), polled_by.take());
        *stage = task.map_or(Stage::Ended, Stage::OnThread);
        drop(stage);
        if let Some(caller) = polled_by {
            caller.wake();
        }
        TakenOver::HasMoved
    }
}

/// A future that its caller polls until the I/O thread takes it over. Its output is that of the future, or why there is none. Dropping
/// it moves it to the I/O thread.
#[derive(Debug)]
pub(crate) struct Moving<T: Send + 'static>(Arc<Site<T>>);

impl<T: Send + 'static> Moving<T> {
    /// Of a task that the I/O thread has begun.
    pub(crate) fn on_thread(task: JoinHandle<T>) -> Self {
        Self(Arc::new(Site(Mutex::new(Stage::OnThread(task)))))
    }
}

impl<T: Send + 'static> Future for Moving<T> {
    type Output = Result<T, String>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut stage = self.0.lock();
        let output = match &mut *stage {
            Stage::Here { here, polled_by } => {
                let poll = here.poll(context);
                if poll.is_pending() {
                    remember(polled_by, context);
                }
                poll
            }
            Stage::OnThread(task) => Pin::new(task).poll(context).map_err(io::cut_off),
            Stage::Ended => Poll::Ready(Err("returned before".to_owned())),
        };
        if output.is_ready() {
            *stage = Stage::Ended;
        }
        output
    }
}

impl<T: Send + 'static> Drop for Moving<T> {
    fn drop(&mut self) {
        // What has not ended goes on, on the thread.
        let stage = std::mem::replace(&mut *self.0.lock(), Stage::Ended);
        drop(stage);
    }
}

/// What the caller polls under this lock; `None` if it does that at this moment. It may be long about it, so nobody waits for it.
fn unless_polled<T>(slot: &Mutex<T>) -> Option<MutexGuard<'_, T>> {
    match slot.try_lock() {
        Ok(slot) => Some(slot),
        Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}

/// Notes the task that polls.
fn remember(polled_by: &mut Option<Waker>, context: &Context<'_>) {
    match polled_by {
        Some(waker) => waker.clone_from(context.waker()),
        None => *polled_by = Some(context.waker().clone()),
    }
}

impl<T: Send, R: Send> Attempt for Slot<T, R> {
    fn take_over(&self) -> TakenOver {
        let Some(mut work) = unless_polled(&self.work) else { return TakenOver::IsPolled };
        let taken = work.take();
        drop(work);
        match taken {
            Some(work) => {
                work.hand_over();
                TakenOver::StartsAnew
            }
            None => TakenOver::HasEnded,
        }
    }
}

impl<T, R> Slot<T, R> {
    fn lock(&self) -> MutexGuard<'_, Option<Work<T, R>>> {
        self.work.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn panicked(&self, panic: &(dyn Any + Send)) -> Error {
        io::failed(self.backend, self.operation, io::panicked(panic))
    }
}

/// An attempt under way. Its output is the outcome and the rest; `None` if the I/O thread has taken it over. Dropping it hands it over.
#[derive(Debug)]
pub(crate) struct Driven<T, R>(Arc<Slot<T, R>>);

impl<T, R> Future for Driven<T, R> {
    type Output = Option<(Result<T>, R)>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut slot = self.0.lock();
        let Some(work) = &mut *slot else { return Poll::Ready(None) };
        let outcome = match catch_unwind(AssertUnwindSafe(|| work.future.as_mut().poll(cx))) {
            Ok(Poll::Pending) => {
                remember(&mut work.polled_by, cx);
                return Poll::Pending;
            }
            Ok(Poll::Ready(outcome)) => outcome,
            Err(panic) => Err(self.0.panicked(&*panic)),
        };
        let work = slot.take();
        drop(slot);
        Poll::Ready(work.map(|work| (outcome, work.rest)))
    }
}

impl<T, R> Drop for Driven<T, R> {
    fn drop(&mut self) {
        let work = self.0.lock().take();
        if let Some(work) = work {
            work.hand_over();
        }
    }
}
