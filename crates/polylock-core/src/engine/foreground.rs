//! Operations that the task of the caller drives, on a connection of its own runtime.
//!
//! An operation on the I/O thread costs two wake-ups of threads: one of that thread, one of the caller. They take as long as a fast
//! server. So the caller drives an operation itself where the store has a connection for that
//! ([`Backend::here`]), and the I/O thread takes over whatever does not end soon:
//! 1. The caller begins the operation and polls it.
//! 2. The operation ends, and the caller has its outcome. The I/O thread takes no part.
//! 3. Or the caller drops the operation, or its runtime ends and drops it. The drop hands it over.
//! 4. Or the operation has not ended after [`PATIENCE`], because the caller is not polled, its runtime is blocked, or the server is
//!    slow. The watch on the I/O thread takes it over.
//!
//! A hand-over drops the attempt and starts the operation anew on the I/O thread, which uses a connection of its own. That is safe,
//! because operations are idempotent, and because a claim that arrives after its own release grants nothing. An attempt and the
//! operation that replaces it never run at the same time: whoever takes the attempt out of its slot is the only one who goes on.

use std::{
    any::Any,
    collections::VecDeque,
    future::Future,
    panic::{AssertUnwindSafe, catch_unwind},
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError, Weak},
    task::{Context, Poll, Waker},
    time::Duration,
};

use super::shared::Shared;
use crate::{Backend, Error, Moment, Operation, Result, io};

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
        let attempt: Weak<dyn Attempt> = Arc::downgrade(&slot) as _;
        let mut state = self.lock();
        state.attempts.push_back((shared.now() + PATIENCE, attempt));
        if !std::mem::replace(&mut state.is_watched, true) {
            drop(state);
            // Without the thread there are no locks either.
            shared.spawn(operation, watch(shared.clone())).ok();
        }
        Driven(slot)
    }

    /// Takes over what is due. Returns when the watch looks again.
    fn take_over(&self, now: Moment) -> Option<Moment> {
        loop {
            let mut state = self.lock();
            let (due, attempt) = state.attempts.front()?;
            if *due > now {
                return Some(*due);
            }
            let attempt = attempt.upgrade();
            state.attempts.pop_front();
            let Some(attempt) = attempt else { continue };
            // The hand-over spawns a task, and the drop of the attempt calls the store.
            drop(state);
            match attempt.take_over() {
                TakenOver::Yes => self.lock().resume = now + PAUSE,
                TakenOver::HasEnded => {}
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

/// Takes over the attempts that are due, as long as there are any.
async fn watch(shared: Arc<Shared>) {
    let mut leaves = shared.now() + LINGER;
    loop {
        let now = shared.now();
        let next = shared.foreground.take_over(now);
        if next.is_some() {
            leaves = now + LINGER;
        }
        if now >= leaves {
            let mut state = shared.foreground.lock();
            if state.attempts.is_empty() {
                state.is_watched = false;
                return;
            }
        }
        shared.until(now + PATIENCE).await;
    }
}

/// What the watch sees of an attempt.
trait Attempt: std::fmt::Debug + Send + Sync {
    fn take_over(&self) -> TakenOver;
}

enum TakenOver {
    Yes,
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

impl<T, R> std::fmt::Debug for Slot<T, R> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Slot").field("operation", &self.operation).finish_non_exhaustive()
    }
}

impl<T: Send, R: Send> Attempt for Slot<T, R> {
    fn take_over(&self) -> TakenOver {
        let work = match self.work.try_lock() {
            Ok(mut work) => work.take(),
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner().take(),
            Err(TryLockError::WouldBlock) => return TakenOver::IsPolled,
        };
        match work {
            Some(work) => {
                work.hand_over();
                TakenOver::Yes
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
                match &mut work.polled_by {
                    Some(waker) => waker.clone_from(cx.waker()),
                    None => work.polled_by = Some(cx.waker().clone()),
                }
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
