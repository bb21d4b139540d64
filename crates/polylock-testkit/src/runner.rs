//! Runs one case against one target, with its own runtime and a time limit, and returns the verdict.

use std::{
    any::Any,
    fmt,
    io::Write as _,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::mpsc::{self, RecvTimeoutError},
    thread,
    time::Duration,
};

use crate::{
    TargetFactory, cases,
    target::Missing,
    trial::{Trial, scaled},
};

/// The result of a case that did not fail.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// The promise is kept.
    Passed,
    /// The store's capabilities do not include the promise, or it can't be observed.
    Unsupported(String),
    /// The store is not available: see [`Missing`].
    Missing(String),
}

/// A case that failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// The name of the case.
    pub case: String,
    /// The observation that contradicts the promise.
    pub message: String,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.case, self.message)
    }
}

impl std::error::Error for Failure {}

/// The time limit for creating a target: a server may have to be started.
const CREATION_TIMEOUT: Duration = Duration::from_secs(120);

/// Runs the case `name` of [`CASES`](crate::CASES), and blocks until it has ended or its time limit has passed.
///
/// # Errors
/// [`Failure`] if the promise is broken, the case hangs, or there is no such case.
///
/// ```
/// use polylock_core::{Result, Store, memory};
/// use polylock_testkit::{TargetFactory, Target, Verdict, check};
///
/// struct Memory(String);
///
/// #[async_trait::async_trait]
/// impl Target for Memory {
///     async fn connect(&self) -> Result<Store> {
///         Ok(memory::named(&self.0))
///     }
/// }
///
/// let verdict = check("wait::a_wait_of_zero_tries_once", &TargetFactory::new(|| async { Memory("doc".into()) }));
/// assert_eq!(verdict, Ok(Verdict::Passed));
/// ```
pub fn check(name: &str, factory: &TargetFactory) -> Result<Verdict, Failure> {
    let failure = |message: String| Failure { case: name.to_owned(), message };
    let Some(case) = cases::TABLE.iter().find(|case| case.name == name) else {
        return Err(failure("no such case: see CASES".to_owned()));
    };
    let (sender, messages) = mpsc::channel();
    let factory = factory.clone();
    let thread = thread::Builder::new().name(name.to_owned()).spawn(move || {
        let outcome = catch_unwind(AssertUnwindSafe(|| run_here(case, &factory, &sender)));
        sender.send(Message::Ended(outcome.map_err(|panic| panic_text(&*panic)))).ok();
    });
    if let Err(error) = thread {
        return Err(failure(format!("can't start a thread for the case: {error}")));
    }
    let mut limit = CREATION_TIMEOUT;
    loop {
        match messages.recv_timeout(limit) {
            Ok(Message::Limit(new)) => limit = new,
            Ok(Message::Ended(outcome)) => return outcome.map_err(failure),
            Err(RecvTimeoutError::Timeout) => {
                return Err(failure(format!("hangs: not finished within {limit:?}")));
            }
            Err(RecvTimeoutError::Disconnected) => {
                return Err(failure("the thread of the case ended without a verdict".to_owned()));
            }
        }
    }
}

/// A message from the thread of a case.
enum Message {
    /// Restarts the time limit with this value.
    Limit(Duration),
    /// The case has ended, or panicked.
    Ended(Result<Verdict, String>),
}

fn run_here(case: &cases::Case, factory: &TargetFactory, messages: &mpsc::Sender<Message>) -> Verdict {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let runtime = runtime.unwrap_or_else(|error| panic!("can't create a runtime: {error}"));
    let verdict = runtime.block_on(async {
        let target = match factory.create().await {
            Ok(target) => target,
            Err(Missing(reason)) => return Verdict::Missing(reason),
        };
        let limit = scaled(target.time_limit());
        messages.send(Message::Limit(limit)).ok();
        let trial = Trial::new(target.clone()).await;
        messages.send(Message::Limit(limit + 40 * trial.short())).ok();
        for need in case.needs {
            if let Some(lack) = trial.lacks(*need).await {
                return Verdict::Unsupported(lack);
            }
        }
        // It runs on a worker of the runtime, as users' tasks do.
        match tokio::spawn((case.run)(trial)).await {
            Ok(Ok(())) => {
                let logged = target.errors_logged().await;
                assert!(logged.is_empty(), "the server logged errors:\n{}", logged.join("\n"));
                Verdict::Passed
            }
            Ok(Err(unsupported)) => Verdict::Unsupported(unsupported.0),
            Err(error) => match error.try_into_panic() {
                Ok(panic) => std::panic::resume_unwind(panic),
                Err(error) => panic!("the case was cancelled: {error}"),
            },
        }
    });
    runtime.shutdown_timeout(Duration::from_secs(5));
    verdict
}

/// Runs a case as a test. [`conformance!`](crate::conformance) calls it.
///
/// Prints an unsupported or missing case to standard error, past the test harness, so that it is visible.
///
/// # Panics
/// If the case fails, or the store is missing and `POLYLOCK_TEST_REQUIRE` is `all`.
#[doc(hidden)]
pub fn test(target: &str, case: &str, factory: &TargetFactory) {
    let report = |verdict: &str, reason: &str| {
        writeln!(std::io::stderr(), "{verdict}: {target} {case}: {reason}").ok();
    };
    match check(case, factory) {
        Ok(Verdict::Passed) => {}
        Ok(Verdict::Unsupported(reason)) => report("unsupported", &reason),
        Ok(Verdict::Missing(reason)) => {
            let required = std::env::var("POLYLOCK_TEST_REQUIRE").is_ok_and(|required| required == "all");
            assert!(!required, "{target} is required by POLYLOCK_TEST_REQUIRE and missing: {reason}");
            report("missing", &reason);
        }
        Err(failure) => panic!("{target} {failure}"),
    }
}

fn panic_text(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied();
    let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    text.unwrap_or("a panic without a message").to_owned()
}
