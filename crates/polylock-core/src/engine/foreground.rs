//! Operations that the task of the caller drives, and their hand-over to the I/O thread.
//!
//! An operation on the I/O thread costs two thread wake-ups: one of that thread, one of the caller. They take as long as the reply
//! of a fast server. So the caller polls an operation itself as long as that is useful. There are two ways:
//!
//! * **[`Moving`]**: the caller polls the future of the operation in the context of the I/O thread, to which its sockets and timers
//!   belong. The I/O thread can continue with the same future at any time.
//! * **[`Driven`]**: the caller drives a claim or a release on a connection of its own runtime ([`Backend::here`]), and the I/O
//!   thread is not needed for the reply either. A future that uses such a connection can't move. So the I/O thread starts the
//!   operation again, on its own connection. That is safe, because operations are idempotent, and because a claim that arrives
//!   after its own release grants nothing.
//!
//! In both ways:
//! 1. The caller begins the operation and polls it.
//! 2. The operation ends, and the caller has its outcome.
//! 3. Or the caller drops the operation, or its runtime ends and drops it. The drop hands it over.
//! 4. Or the operation has not ended after [`TAKEOVER_DELAY`], because the caller is not polled, its runtime is blocked, the server is
//!    slow, or the lock is taken. The watch task on the I/O thread takes it over.
//!
//! The caller and the I/O thread never drive an operation at the same time: the one that takes it out of its slot continues alone.

use std::{
    any::Any,
    collections::VecDeque,
    fmt,
    future::Future,
    panic::{AssertUnwindSafe, catch_unwind},
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, TryLockError, Weak},
    task::{Context, Poll, Waker},
    time::Duration,
};

use tokio::task::JoinHandle;

use super::context::StoreContext;
use crate::{
    Backend, Clock, Error, FirstStep, Moment, Operation, Result,
    io::{self, CallerTask},
    sync::lock,
};

/// The time after which the I/O thread takes an attempt over: much longer than the reply of a server for which two wake-ups matter,
/// and much shorter than the shortest lease.
const TAKEOVER_DELAY: Duration = Duration::from_millis(50);

/// The time after a take-over in which callers begin no operations: the server is slow, or a caller is not polled.
const PAUSE: Duration = Duration::from_secs(1);

/// The time that the watch task stays without an attempt.
const LINGER: Duration = Duration::from_secs(1);

/// The attempts of all callers on one store.
#[derive(Debug)]
pub(crate) struct Foreground {
    context: Arc<StoreContext>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// The attempts in the order in which they are due. An attempt that has ended stays until then.
    attempts: VecDeque<(Moment, Weak<dyn Attempt>)>,
    /// The time from which the next attempt may begin.
    resume: Moment,
    is_watched: bool,
}

impl Foreground {
    pub(crate) fn new(context: Arc<StoreContext>) -> Self {
        Self { context, state: Mutex::default() }
    }

    /// Returns the store on a connection on which the caller is to drive its next operation; `None` if the I/O thread is to do
    /// that. A child process made by `fork` must not touch the connections of its parent.
    pub(crate) fn store(&self) -> Option<Arc<dyn Backend>> {
        let context = &self.context;
        if !context.is_own_process() || context.now() < self.lock().resume {
            return None;
        }
        context.store.backend.here()
    }

    /// Begins `future`, which belongs to the store's I/O thread, for a caller that waits for it.
    pub(crate) fn begin<F>(self: &Arc<Self>, operation: Operation, future: F) -> Result<Moving<F::Output>>
    where
        F: Future<Output: Send> + Send + 'static,
    {
        let io = self.context.io()?;
        if self.context.store.backend.capabilities().first_step == FirstStep::Thread || io::is_current() {
            return io.spawn(operation.as_str(), future).map(Moving::on_thread);
        }
        let task = CallerTask::new(io, operation.as_str(), future)?;
        let task = Arc::new(MovableTask(Mutex::new(Stage::OnCaller { task, polled_by: None })));
        self.watch(operation, Arc::downgrade(&task) as _);
        Ok(Moving(task))
    }

    /// Begins an attempt that the caller drives. If the caller drops it, or the I/O thread takes it over, `on_takeover` is called
    /// with `rest`.
    pub(crate) fn drive<T, R>(
        self: &Arc<Self>,
        operation: Operation,
        future: impl Future<Output = Result<T>> + Send + 'static,
        rest: R,
        on_takeover: fn(R),
    ) -> Driven<T, R>
    where
        T: Send + 'static,
        R: Send + 'static,
    {
        let work = Work { future: Box::pin(future), polled_by: None, rest, on_takeover };
        let backend = self.context.backend();
        let slot = Arc::new(Slot { backend, operation, work: Mutex::new(Some(work)) });
        self.watch(operation, Arc::downgrade(&slot) as _);
        Driven(slot)
    }

    /// Makes the I/O thread take `attempt` over when it is due.
    fn watch(self: &Arc<Self>, operation: Operation, attempt: Weak<dyn Attempt>) {
        let context = &self.context;
        let mut state = self.lock();
        state.attempts.push_back((context.now() + TAKEOVER_DELAY, attempt));
        if !std::mem::replace(&mut state.is_watched, true) {
            drop(state);
            let watch = watch(Arc::downgrade(self), context.clock.clone());
            // Without the thread, there are no locks either.
            context.spawn(operation, watch).ok();
        }
    }

    /// Takes over the attempts that are due. Returns true if any attempt is left.
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
            // Before the hand-over, which admits the next claim: that one must not begin on a connection of its caller, too.
            let pause = || self.lock().resume = now + PAUSE;
            if let Takeover::Polled = attempt.take_over(&pause) {
                self.lock().attempts.push_back((now + TAKEOVER_DELAY, Arc::downgrade(&attempt)));
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }
}

/// Takes over the attempts that are due, as long as there are any. It does not keep the store open.
async fn watch(foreground: Weak<Foreground>, clock: Arc<dyn Clock>) {
    let mut stop_at = clock.now() + LINGER;
    while let Some(foreground) = foreground.upgrade() {
        let now = clock.now();
        if foreground.take_over(now) {
            stop_at = now + LINGER;
        }
        if now >= stop_at {
            let mut state = foreground.lock();
            if state.attempts.is_empty() {
                state.is_watched = false;
                return;
            }
        }
        drop(foreground);
        clock.sleep_until(now + TAKEOVER_DELAY).await;
    }
}

/// The interface of an attempt for the watch task.
trait Attempt: fmt::Debug + Send + Sync {
    /// Takes the attempt over, and calls `pause` before it is begun again on the I/O thread.
    fn take_over(&self, pause: &dyn Fn()) -> Takeover;
}

enum Takeover {
    Moved,
    Finished,
    /// The caller polls it at this moment.
    Polled,
}

struct Slot<T, R> {
    backend: &'static str,
    operation: Operation,
    /// `None` once it was taken.
    work: Mutex<Option<Work<T, R>>>,
}

struct Work<T, R> {
    future: Pin<Box<dyn Future<Output = Result<T>> + Send>>,
    /// The task that has polled it last.
    polled_by: Option<Waker>,
    rest: R,
    on_takeover: fn(R),
}

impl<T, R> Work<T, R> {
    fn continue_on_thread(self) {
        let Self { future, polled_by, rest, on_takeover } = self;
        // The future is dropped first: this notifies the store that its request may arrive late.
        drop(future);
        on_takeover(rest);
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

/// The state of a future that can move.
enum Stage<T: Send + 'static> {
    OnCaller {
        task: CallerTask<T>,
        /// The task that has polled it last.
        polled_by: Option<Waker>,
    },
    OnThread(JoinHandle<T>),
    Ended,
}

struct MovableTask<T: Send + 'static>(Mutex<Stage<T>>);

impl<T: Send + 'static> MovableTask<T> {
    fn lock(&self) -> MutexGuard<'_, Stage<T>> {
        lock(&self.0)
    }
}

impl<T: Send + 'static> fmt::Debug for MovableTask<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MovableTask").finish_non_exhaustive()
    }
}

impl<T: Send + 'static> Attempt for MovableTask<T> {
    fn take_over(&self, _: &dyn Fn()) -> Takeover {
        let Some(mut stage) = lock_unless_polled(&self.0) else { return Takeover::Polled };
        let Stage::OnCaller { task, polled_by } = &mut *stage else { return Takeover::Finished };
        let (task, polled_by) = (task.move_to_thread(), polled_by.take());
        *stage = task.map_or(Stage::Ended, Stage::OnThread);
        drop(stage);
        if let Some(caller) = polled_by {
            caller.wake();
        }
        Takeover::Moved
    }
}

/// A future that its caller polls until the I/O thread takes it over. Its output is that of the inner future, or the reason for
/// which there is none. Dropping it moves the inner future to the I/O thread.
#[derive(Debug)]
pub(crate) struct Moving<T: Send + 'static>(Arc<MovableTask<T>>);

impl<T: Send + 'static> Moving<T> {
    /// Wraps a task that the I/O thread has begun.
    fn on_thread(task: JoinHandle<T>) -> Self {
        Self(Arc::new(MovableTask(Mutex::new(Stage::OnThread(task)))))
    }
}

impl<T: Send + 'static> Future for Moving<T> {
    type Output = Result<T, String>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut stage = self.0.lock();
        let output = match &mut *stage {
            Stage::OnCaller { task, polled_by } => {
                let poll = task.poll(context);
                if poll.is_pending() {
                    store_waker(polled_by, context);
                }
                poll
            }
            Stage::OnThread(task) => Pin::new(task).poll(context).map_err(io::join_error),
            Stage::Ended => Poll::Ready(Err("polled after its end".to_owned())),
        };
        if output.is_ready() {
            *stage = Stage::Ended;
        }
        output
    }
}

impl<T: Send + 'static> Drop for Moving<T> {
    fn drop(&mut self) {
        // A future that has not ended continues on the thread.
        let stage = std::mem::replace(&mut *self.0.lock(), Stage::Ended);
        drop(stage);
    }
}

/// Locks the slot; `None` if the caller polls its content at this moment. A poll may take long, so the watch task does not wait for
/// it.
fn lock_unless_polled<T>(slot: &Mutex<T>) -> Option<MutexGuard<'_, T>> {
    match slot.try_lock() {
        Ok(slot) => Some(slot),
        Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}

/// Records the task that polls.
fn store_waker(polled_by: &mut Option<Waker>, context: &Context<'_>) {
    match polled_by {
        Some(waker) => waker.clone_from(context.waker()),
        None => *polled_by = Some(context.waker().clone()),
    }
}

impl<T: Send, R: Send> Attempt for Slot<T, R> {
    fn take_over(&self, pause: &dyn Fn()) -> Takeover {
        let Some(mut work) = lock_unless_polled(&self.work) else { return Takeover::Polled };
        let taken = work.take();
        drop(work);
        match taken {
            Some(work) => {
                pause();
                work.continue_on_thread();
                Takeover::Moved
            }
            None => Takeover::Finished,
        }
    }
}

impl<T, R> Slot<T, R> {
    fn lock(&self) -> MutexGuard<'_, Option<Work<T, R>>> {
        lock(&self.work)
    }

    fn panicked(&self, panic: &(dyn Any + Send)) -> Error {
        io::failed(self.backend, self.operation, io::panicked(panic))
    }
}

/// An attempt in progress. Its output is the outcome and the rest; `None` if the I/O thread has taken it over. Dropping it hands it
/// over.
#[derive(Debug)]
pub(crate) struct Driven<T, R>(Arc<Slot<T, R>>);

impl<T, R> Future for Driven<T, R> {
    type Output = Option<(Result<T>, R)>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut slot = self.0.lock();
        let Some(work) = &mut *slot else { return Poll::Ready(None) };
        let outcome = match catch_unwind(AssertUnwindSafe(|| work.future.as_mut().poll(cx))) {
            Ok(Poll::Pending) => {
                store_waker(&mut work.polled_by, cx);
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
            work.continue_on_thread();
        }
    }
}
