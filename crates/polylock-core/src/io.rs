//! The library's threads: every store operation, renewal and background release belongs to one of them. The caller may poll an
//! operation that it waits for, in the context of the thread; the thread takes the operation over if the caller drops it or does
//! not poll it.
//!
//! There is one thread for each kind of store in the process, named `polylock-<store>`. A store that blocks delays its own locks
//! and no others. The end of the user's runtime can't interrupt a release, and a blocked executor can't starve a renewal. Each
//! thread runs a current-thread tokio runtime, is started at first use, and lives as long as the process. A program can wait for
//! its work before it ends (see [`Locks::close`](crate::Locks::close)).
//!
//! User code never runs there: log events and measurements are forwarded to a separate thread.

use std::{
    any::Any,
    cell::Cell,
    collections::BTreeMap,
    fmt,
    future::{Future, poll_fn},
    panic::{AssertUnwindSafe, catch_unwind},
    pin::Pin,
    process,
    sync::{Mutex, mpsc},
    task::{Context, Poll, Waker},
    thread,
};

use tokio::{
    runtime::{Builder, Handle, Runtime},
    task::{JoinError, JoinHandle},
};

use crate::{
    Error, Fault, FirstStep, Operation, Result, Unavailable,
    delays::Delays,
    observer,
    process::{is_io_task, is_simulated, spawn_on},
    sync::lock,
};

/// The I/O thread of one kind of store.
#[derive(Debug)]
pub(crate) struct Io {
    backend: &'static str,
    runtime: Handle,
    /// The process that started the thread: a child process made by `fork` has no such thread.
    process: u32,
    delays: Delays,
}

/// The threads by their stores; simulated processes have none, and share the entry with `true`.
static THREADS: Mutex<BTreeMap<(bool, &'static str), &'static Io>> = Mutex::new(BTreeMap::new());

thread_local! {
    static IS_IO: Cell<bool> = const { Cell::new(false) };
}

/// Runs `future` on the thread of the stores called `backend` and returns its output.
///
/// A store must open its connections in here, under the name in its [`Capabilities`](crate::Capabilities): sockets and timers
/// belong to the runtime on which they are created.
///
/// # Errors
/// [`Unavailable`] if the thread can't be started, if `future` panics, or in a child process made by `fork` after the thread
/// was started.
///
/// # Cancel safety
/// Dropping the returned future does not stop `future`, which runs to its end.
///
/// ```
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// let name = polylock_core::io::run("files", async { std::thread::current().name().map(str::to_owned) }).await?;
/// assert_eq!(name.as_deref(), Some("polylock-files"));
/// # Ok::<(), polylock_core::Error>(()) }).unwrap();
/// ```
pub async fn run<F>(backend: &'static str, future: F) -> Result<F::Output>
where
    F: Future<Output: Send> + Send + 'static,
{
    let running = Io::of(backend)?.spawn("connect", future)?;
    running.await.map_err(|error| failed(backend, Operation::Connect, join_error(error)))
}

impl Io {
    /// Returns the thread of the stores called `backend`, and starts it at first use.
    pub(crate) fn of(backend: &'static str) -> Result<&'static Self> {
        let key = (is_simulated(), backend);
        let mut threads = lock(&THREADS);
        if let Some(io) = threads.get(&key) {
            return Ok(io);
        }
        let io: &'static Self = Box::leak(Box::new(
            Self::start(backend)
                .map_err(|cause| Unavailable::new(backend, Operation::Connect, Fault::Permanent, cause))?,
        ));
        threads.insert(key, io);
        Ok(io)
    }

    fn start(backend: &'static str) -> std::io::Result<Self> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let handle = runtime.handle().clone();
        if is_simulated() {
            // The tasks run on the runtime of the simulation.
            runtime.shutdown_background();
        } else {
            // A runtime that is dropped here, within that of the caller, would panic.
            let (sender, receiver) = mpsc::channel::<Runtime>();
            let started = thread::Builder::new().name(format!("polylock-{backend}")).spawn(move || {
                let Ok(runtime) = receiver.recv() else { return };
                IS_IO.set(true);
                let _forwarded = tracing::dispatcher::set_default(&observer::forwarding());
                runtime.block_on(std::future::pending::<()>());
            });
            match started {
                Ok(_) => drop(sender.send(runtime)),
                Err(error) => {
                    runtime.shutdown_background();
                    return Err(error);
                }
            }
        }
        Ok(Self { backend, runtime: handle, process: process::id(), delays: Delays::new(backend) })
    }

    /// Returns an error in a child process made by `fork`: the thread does not exist there, and a wait for it would never end.
    pub(crate) fn check_process(&self) -> Result<()> {
        if self.is_own_process() {
            return Ok(());
        }
        let cause = "this process was forked from the one that uses the store: open the store after the fork";
        Err(Unavailable::new(self.backend, Operation::Connect, Fault::Permanent, cause).into())
    }

    /// Returns true if this process has started the thread.
    pub(crate) fn is_own_process(&self) -> bool {
        self.process == process::id()
    }

    /// Returns the recorder of the thread's delays.
    pub(crate) fn delays(&self) -> &Delays {
        &self.delays
    }

    /// Starts `future` on the thread; `label` names it in warnings.
    pub(crate) fn spawn<F>(&'static self, label: &'static str, future: F) -> Result<JoinHandle<F::Output>>
    where
        F: Future<Output: Send> + Send + 'static,
    {
        self.check_process()?;
        Ok(spawn_on(&self.runtime, self.delays.measured(label, future)))
    }

    /// Begins `future`: polls it once in the thread's context, unless the thread is to take the first step.
    ///
    /// An operation that ends at once, as on the in-memory store, needs no other thread. The request of any other operation is sent
    /// before this returns.
    pub(crate) fn begin<F>(
        &'static self,
        label: &'static str,
        first_step: FirstStep,
        future: F,
    ) -> Result<Started<F::Output>>
    where
        F: Future<Output: Send> + Send + 'static,
    {
        if first_step == FirstStep::Thread && !is_current() {
            return self.spawn(label, future).map(Started::OnThread);
        }
        let mut task = CallerTask::new(self, label, future)?;
        // No task has to be woken: the caller polls the future again.
        Ok(match task.poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(output) => Started::Ended(Some(output)),
            Poll::Pending => Started::OnCaller(task),
        })
    }
}

/// A future that belongs to an I/O thread, and is polled by its caller in the thread's context. If it is dropped before its end, it
/// continues on the thread.
pub(crate) struct CallerTask<T: Send + 'static> {
    io: &'static Io,
    label: &'static str,
    /// `None` once the future has ended or was moved to the thread.
    future: Option<Pin<Box<dyn Future<Output = T> + Send>>>,
}

impl<T: Send + 'static> CallerTask<T> {
    /// Wraps `future`.
    ///
    /// # Errors
    /// In a child process made by `fork`.
    pub(crate) fn new(
        io: &'static Io,
        label: &'static str,
        future: impl Future<Output = T> + Send + 'static,
    ) -> Result<Self> {
        io.check_process()?;
        Ok(Self { io, label, future: Some(Box::pin(future)) })
    }

    /// Polls the future. Its output, or the reason for which there is none, is returned once.
    pub(crate) fn poll(&mut self, context: &mut Context<'_>) -> Poll<Result<T, String>> {
        let Some(future) = &mut self.future else {
            return Poll::Ready(Err("polled after its end".to_owned()));
        };
        let _context = (!is_current() && !is_simulated()).then(|| self.io.runtime.enter());
        let output = match catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(context))) {
            Ok(Poll::Pending) => return Poll::Pending,
            Ok(Poll::Ready(output)) => Ok(output),
            Err(panic) => Err(panicked(&*panic)),
        };
        self.future = None;
        Poll::Ready(output)
    }

    /// Moves the future to the thread; `None` if it has ended.
    pub(crate) fn move_to_thread(&mut self) -> Option<JoinHandle<T>> {
        let future = self.future.take()?;
        Some(spawn_on(&self.io.runtime, self.io.delays.measured(self.label, future)))
    }
}

impl<T: Send + 'static> Drop for CallerTask<T> {
    fn drop(&mut self) {
        self.move_to_thread();
    }
}

impl<T: Send + 'static> fmt::Debug for CallerTask<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CallerTask").field("label", &self.label).finish_non_exhaustive()
    }
}

/// A future that has begun. Dropping it does not stop the work.
#[derive(Debug)]
pub(crate) enum Started<T: Send + 'static> {
    /// The future has ended, or panicked; `None` once its output was returned.
    Ended(Option<Result<T, String>>),
    /// The caller polls it.
    OnCaller(CallerTask<T>),
    OnThread(JoinHandle<T>),
}

impl<T: Send + 'static> Started<T> {
    /// Returns the output, or the reason for which there is none. The returned future may be dropped, and this called again, until
    /// there is an output.
    pub(crate) async fn end(&mut self) -> Result<T, String> {
        match self {
            Self::Ended(output) => output.take().unwrap_or_else(|| Err("polled after its end".to_owned())),
            Self::OnCaller(task) => poll_fn(|context| task.poll(context)).await,
            Self::OnThread(task) => task.await.map_err(join_error),
        }
    }
}

/// Returns true on one of the threads, which must never wait for its own work.
pub(crate) fn is_current() -> bool {
    IS_IO.get() || is_io_task()
}

/// Returns the error of an operation that panicked, or that the runtime cancelled.
pub(crate) fn failed(backend: &'static str, operation: Operation, cause: String) -> Error {
    Unavailable::new(backend, operation, Fault::Permanent, cause).into()
}

/// Returns the error of an operation without a reply: the I/O thread has ended.
pub(crate) fn without_result(backend: &'static str, operation: Operation) -> Error {
    failed(backend, operation, "the operation ended without a result".to_owned())
}

pub(crate) fn join_error(error: JoinError) -> String {
    match error.try_into_panic() {
        Ok(panic) => panicked(&*panic),
        Err(error) => error.to_string(),
    }
}

pub(crate) fn panicked(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied();
    let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    format!("the store panicked: {}", text.unwrap_or("no message"))
}
