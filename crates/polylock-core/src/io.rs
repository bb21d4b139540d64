//! The library's own threads: every store operation, renewal and background release belongs to one of them. What a caller waits for
//! may be polled by the caller, in the context of the thread; the thread takes it over if the caller drops it or does not poll it.
//!
//! There is one thread for each kind of store that the process uses, named `polylock-<store>`. A store whose code blocks delays its
//! own locks and no others. The end of the user's runtime can't cut a release short there, and a blocked executor can't starve a
//! renewal. Each is a current-thread tokio runtime, started at first use, which lives as long as the process; whoever needs its
//! work done before the end waits for it (see [`Locks::close`](crate::Locks::close)).
//!
//! Nothing of the user's runs there: log events and measurements are forwarded to a thread of their own.

use std::{
    any::Any,
    cell::Cell,
    collections::BTreeMap,
    fmt,
    future::{Future, poll_fn},
    panic::{AssertUnwindSafe, catch_unwind},
    pin::Pin,
    process,
    sync::{Mutex, PoisonError},
    task::{Context, Poll, Waker},
    thread,
};

use tokio::{
    runtime::{Builder, Handle},
    task::{JoinError, JoinHandle},
};

use crate::{Error, Fault, FirstStep, Operation, Result, Unavailable, delays::Delays, observer};

/// The thread of one kind of store.
#[derive(Debug)]
pub(crate) struct Io {
    backend: &'static str,
    runtime: Handle,
    /// The process that has started it: a child made by `fork` has no such thread.
    process: u32,
    delays: Delays,
}

static THREADS: Mutex<BTreeMap<&'static str, &'static Io>> = Mutex::new(BTreeMap::new());

thread_local! {
    static IS_IO: Cell<bool> = const { Cell::new(false) };
}

/// Runs `future` on the thread of the stores called `backend` and returns what it returns.
///
/// A store must open its connections in here, under the name that its [`Capabilities`](crate::Capabilities) have: sockets and
/// timers belong to the runtime that they are made on.
///
/// # Errors
/// [`Unavailable`] if the thread can't be started, if `future` panics, or in a child process made by `fork` after the thread
/// was started.
///
/// # Cancel safety
/// Dropping this does not stop `future`, which runs to its end.
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
    running.await.map_err(|error| failed(backend, Operation::Connect, cut_off(error)))
}

impl Io {
    /// The thread of the stores called `backend`, started if it is the first use.
    pub(crate) fn of(backend: &'static str) -> Result<&'static Self> {
        let mut threads = THREADS.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(io) = threads.get(backend) {
            return Ok(io);
        }
        let io: &'static Self = Box::leak(Box::new(
            Self::start(backend)
                .map_err(|cause| Unavailable::new(backend, Operation::Connect, Fault::Permanent, cause))?,
        ));
        threads.insert(backend, io);
        Ok(io)
    }

    fn start(backend: &'static str) -> std::io::Result<Self> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let handle = runtime.handle().clone();
        thread::Builder::new().name(format!("polylock-{backend}")).spawn(move || {
            IS_IO.set(true);
            let _forwarded = tracing::dispatcher::set_default(&observer::forwarding());
            runtime.block_on(std::future::pending::<()>());
        })?;
        Ok(Self { backend, runtime: handle, process: process::id(), delays: Delays::new(backend) })
    }

    /// An error in a child process made by `fork`, where the thread does not exist and every wait for it would last for ever.
    fn check_process(&self) -> Result<()> {
        if self.is_own_process() {
            return Ok(());
        }
        let cause = "this process was forked from the one that uses the store: open the store after the fork";
        Err(Unavailable::new(self.backend, Operation::Connect, Fault::Permanent, cause).into())
    }

    /// Whether this process has started the thread.
    pub(crate) fn is_own_process(&self) -> bool {
        self.process == process::id()
    }

    /// How long things took on the thread.
    pub(crate) fn delays(&self) -> &Delays {
        &self.delays
    }

    /// Starts `future` on the thread; `what` names it in warnings.
    pub(crate) fn spawn<F>(&'static self, what: &'static str, future: F) -> Result<JoinHandle<F::Output>>
    where
        F: Future<Output: Send> + Send + 'static,
    {
        self.check_process()?;
        Ok(self.runtime.spawn(self.delays.measured(what, future)))
    }

    /// Begins `future`: it is polled once, in the thread's context, unless the thread is to take the first step.
    ///
    /// What ends at once, as the in-memory store does, needs no other thread, and the request of any other operation is on its way
    /// before this returns.
    pub(crate) fn begin<F>(
        &'static self,
        what: &'static str,
        first_step: FirstStep,
        future: F,
    ) -> Result<Begun<F::Output>>
    where
        F: Future<Output: Send> + Send + 'static,
    {
        if first_step == FirstStep::Thread && !is_current() {
            return self.spawn(what, future).map(Begun::OnThread);
        }
        let mut here = Here::new(self, what, future)?;
        // Nothing has to be woken: whoever waits for it polls it again.
        Ok(match here.poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(output) => Begun::Ended(Some(output)),
            Poll::Pending => Begun::Here(here),
        })
    }
}

/// A future that belongs to an I/O thread, and is polled by whoever waits for it, in the thread's context. If it is dropped before its
/// end, it goes on, on the thread.
pub(crate) struct Here<T: Send + 'static> {
    io: &'static Io,
    what: &'static str,
    /// Empty once it has ended, or goes on elsewhere.
    future: Option<Pin<Box<dyn Future<Output = T> + Send>>>,
}

impl<T: Send + 'static> Here<T> {
    /// # Errors
    /// In a child process made by `fork`.
    pub(crate) fn new(
        io: &'static Io,
        what: &'static str,
        future: impl Future<Output = T> + Send + 'static,
    ) -> Result<Self> {
        io.check_process()?;
        Ok(Self { io, what, future: Some(Box::pin(future)) })
    }

    /// Its output, or why there is none.
    pub(crate) fn poll(&mut self, context: &mut Context<'_>) -> Poll<Result<T, String>> {
        let Some(future) = &mut self.future else {
            return Poll::Ready(Err("returned before".to_owned()));
        };
        let _context = (!is_current()).then(|| self.io.runtime.enter());
        let output = match catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(context))) {
            Ok(Poll::Pending) => return Poll::Pending,
            Ok(Poll::Ready(output)) => Ok(output),
            Err(panic) => Err(panicked(&*panic)),
        };
        self.future = None;
        Poll::Ready(output)
    }

    /// Has the thread go on with it; `None` if it has ended.
    pub(crate) fn go_on(&mut self) -> Option<JoinHandle<T>> {
        let future = self.future.take()?;
        Some(self.io.runtime.spawn(self.io.delays.measured(self.what, future)))
    }
}

impl<T: Send + 'static> Drop for Here<T> {
    fn drop(&mut self) {
        self.go_on();
    }
}

impl<T: Send + 'static> fmt::Debug for Here<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Here").field("what", &self.what).finish_non_exhaustive()
    }
}

/// A future that was begun. Dropping it stops nothing.
#[derive(Debug)]
pub(crate) enum Begun<T: Send + 'static> {
    /// It has ended, or panicked; empty once its output was returned.
    Ended(Option<Result<T, String>>),
    /// Whoever waits for it polls it.
    Here(Here<T>),
    OnThread(JoinHandle<T>),
}

impl<T: Send + 'static> Begun<T> {
    /// Its output, or why there is none. May be dropped and called again until it has returned.
    pub(crate) async fn end(&mut self) -> Result<T, String> {
        match self {
            Self::Ended(output) => output.take().unwrap_or_else(|| Err("returned before".to_owned())),
            Self::Here(here) => poll_fn(|context| here.poll(context)).await,
            Self::OnThread(task) => task.await.map_err(cut_off),
        }
    }
}

/// Whether this is one of the threads, which must never wait for its own work.
pub(crate) fn is_current() -> bool {
    IS_IO.get()
}

/// The error of a store's operation that panicked, or was cut off by the runtime.
pub(crate) fn failed(backend: &'static str, operation: Operation, cause: String) -> Error {
    Unavailable::new(backend, operation, Fault::Permanent, cause).into()
}

pub(crate) fn cut_off(error: JoinError) -> String {
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
